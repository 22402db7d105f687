"""Progress of a run on standard error: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kernelwright.cli._common import say, stderr_console
from kernelwright.cli._tables import duration, milliseconds, short

if TYPE_CHECKING:
    from rich.progress import Progress

    from kernelwright.campaign import CampaignEvent


class Listener(Protocol):
    """A callback for the events of a campaign."""

    def __call__(self, event: CampaignEvent) -> None:
        """Take one event."""
        ...


def wants_live_display() -> bool:
    """True on a terminal that moves its cursor, unless ``NO_COLOR`` asks for plain output."""
    console = stderr_console()
    return console.is_terminal and not console.no_color and not console.is_dumb_terminal


def describe_speedup(speedup: Mapping[str, Any]) -> str:
    """``1.84x eager [1.80, 1.88], 1.21x compile [1.18, 1.24]`` from plain JSON."""
    return ", ".join(
        f"{value['median']:.2f}x {name} [{value['low']:.2f}, {value['high']:.2f}]" for name, value in speedup.items()
    )


def describe_verdict(data: Mapping[str, Any]) -> str:
    """A judged candidate in one line."""
    if data["speedup"]:
        return f"{data['status']} {milliseconds(data['latency_ms'])}, {describe_speedup(data['speedup'])}"
    if data["status"] == "PASSED":
        return f"PASSED (stage {data['stage']})"
    return f"{data['status']}: {first_line(data['reason'])}"


def first_line(text: str, limit: int = 100) -> str:
    """The first line of a text, cut."""
    line = text.strip().splitlines()[0] if text.strip() else ""
    return line if len(line) <= limit else line[: limit - 1] + "…"


_VERDICT = ".answer.json"  # how the files of a spool's answers end


class Ending(NamedTuple):
    """How a problem ended: a mark for a live display (rich markup), a few words, and the figures."""

    mark: str
    outcome: str
    figures: str


def describe_ending(row: Mapping[str, Any]) -> Ending:
    """A finished problem in one line. It says "faster" only for baselines over which the row claims a speedup.

    Args:
        row: a ``RunResult`` as plain JSON.
    """
    if row["state"] == "pending":
        return Ending("[dim]·[/dim]", "written", f"{row['rounds']} sample{'s' * (row['rounds'] != 1)}, not judged")
    if row["candidate"] is None:
        return Ending("[red]✗[/red]", "FAILED", f"no kernel: {first_line(row['reason'], 300)}")
    kernel = f"kernel {short(row['candidate'])}, {duration(row['seconds'])}"
    if not row["speedup"]:
        return Ending("[green]✓[/green]", "right, not timed", f"stage {row['stage']}, {kernel}")
    figures = f"{describe_speedup(row['speedup'])}, {kernel}"
    beaten = [name for name, speedup in row["speedup"].items() if speedup["faster"]]
    if not beaten:
        return Ending("[yellow]=[/yellow]", "right, not faster", figures)
    deciding = next(iter(row["speedup"]))
    mark = "[green]✓[/green]" if deciding in beaten else "[yellow]=[/yellow]"
    return Ending(mark, f"faster than {' and '.join(beaten)}", figures)


class Tracker:
    """Keeps the state that progress shows: the problem, the round, the best speedup so far, the time left."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self.run_id = ""
        self.rounds = 0
        self.total = 0
        self.index = 0
        self.finished = 0
        self.worked = 0
        self.problem = ""
        self.round = ""
        self.activity = ""
        self.best = 0.0
        self.open: set[str] = set()  # problems that are being worked on
        self.again = False  # whether this process had started the current problem before
        self.awaited: list[str] = []  # places of awaited replies that were not reported before
        self._order: list[str] = []
        self._told: set[str] = set()
        self._begun: set[str] = set()

    def take(self, event: CampaignEvent) -> None:
        """Update the state with an event."""
        data = event.data
        if event.kind == "run-started":
            self.run_id, self._order = data["run"], list(data["problems"])
            self.total, self.rounds = len(self._order), int(data["rounds"])
            self.finished = int(data.get("done", 0))
        elif event.kind == "problem-started":
            self.problem, self.best, self.round, self.activity = event.problem, 0.0, "", "opening"
            self.index = self._order.index(event.problem)
            self.open.add(event.problem)
            self.again = event.problem in self._begun
            self._begun.add(event.problem)
        elif event.kind == "stage":
            self.activity = data["stage"]
            self.round = "" if self.activity == "confirm" else self.round
        elif event.kind == "proposed":
            self.round, self.activity = f"round {data['round'] + 1}/{self.rounds}", "proposed"
        elif event.kind == "judged":
            bounds = [value["median"] for value in list(data["speedup"].values())[:1]]
            counts = data["status"] == "PASSED" and data.get("competes", True)
            self.best = max([self.best, *bounds]) if counts else self.best
        elif event.kind == "problem-finished":
            self.open.discard(event.problem)
            self.finished += 1
            self.worked += 1
        elif event.kind == "writing":
            self.activity = f"{data['role']} writes, {data['characters']:,} characters"
        elif event.kind == "awaiting":
            verdicts = [place for place in data["places"] if place.endswith(_VERDICT)]
            replies = len(data["places"]) - len(verdicts)
            counts = [_counted(replies, "reply", "replies")] if replies else []
            counts += [_counted(len(verdicts), "verdict")] if verdicts else []
            self.activity = f"{' and '.join(counts)} awaited"
            self.awaited = [place for place in data["places"] if place not in self._told]
            self._told.update(self.awaited)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run was started or resumed."""
        return self._clock() - self._started

    @property
    def eta_s(self) -> float | None:
        """Expected seconds left, from the mean time of the finished problems; None before the first one ends."""
        if not self.worked:
            return None
        return self.elapsed_s / self.worked * (self.total - self.finished)


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def _spool_of(place: str) -> str:
    return os.path.dirname(os.path.dirname(place))


class PlainProgress:
    """Prints one line for each event, with the time since the start."""

    def __init__(self) -> None:
        self.tracker = Tracker()

    def __call__(self, event: CampaignEvent) -> None:
        """Print the lines of the event."""
        several = len(self.tracker.open | ({event.problem} if event.problem else set())) > 1
        name = (
            f"{event.problem.rpartition('/')[2]}: "
            if several and event.problem and event.kind != "problem-started"
            else ""
        )
        self.tracker.take(event)
        for line in event_lines(event, self.tracker):
            say(f"[{self.tracker.elapsed_s:5.0f} s] {name}{line.strip() if name else line}")


def event_lines(event: CampaignEvent, tracker: Tracker) -> list[str]:
    """The plain lines of an event; none if the event is not shown."""
    data = event.data
    if event.kind == "run-started":
        count = tracker.total
        return [f"run {data['run']}: {count} problem{'s' * (count != 1)}, up to {data['rounds']} rounds each"]
    if event.kind == "problem-started" and tracker.again:
        return []
    if event.kind == "problem-started":
        eta = tracker.eta_s
        left = "" if eta is None else f", about {duration(eta)} left"
        return [f"[{tracker.index + 1}/{tracker.total}] {event.problem}{left}"]
    if event.kind == "judged":
        return [f"  round {data['round'] + 1}/{data['rounds']}: {describe_verdict(data)}"]
    if event.kind == "confirmed":
        return [f"  confirmation: {describe_verdict(data)}"]
    if event.kind == "advised":
        told = data["bottleneck"] if data["mode"] == "stop" else f"{data['plan']} ({data['bottleneck']})"
        return [f"    {data['mode']}: {first_line(told, 120)}"]
    if event.kind == "problem-finished":
        ending = describe_ending(data["row"])
        return [f"  {ending.outcome}: {ending.figures}"]
    if event.kind == "stopping":
        return ["stopping after the work in flight; press Ctrl-C again to drop it"]
    if event.kind == "note":
        return [f"  {data['text']}"]
    if event.kind == "awaiting":
        verdicts = [place for place in tracker.awaited if place.endswith(_VERDICT)]
        lines = [f"awaiting a reply: {place}.reply.md" for place in tracker.awaited if place not in verdicts]
        if verdicts:
            lines.append(f"awaiting {_counted(len(verdicts), 'verdict')} in {_spool_of(verdicts[0])}")
        return lines
    return []


class LiveProgress:
    """A line for each finished problem, and below it one live line with stage, best so far and time left."""

    def __init__(self, progress: Progress) -> None:
        from rich.markup import escape

        self._progress = progress
        self._escape = escape
        self._task = progress.add_task("starting", total=None, eta="")
        self.tracker = Tracker()

    def __call__(self, event: CampaignEvent) -> None:
        """Update the live line, and print the lines that stay above it."""
        tracker = self.tracker
        tracker.take(event)
        if event.kind in {"run-started", "note", "stopping", "awaiting"}:
            for line in event_lines(event, tracker):
                self._progress.console.print(self._escape(line.strip()), style="dim")
        if event.kind == "problem-finished":
            self._print_row(event.problem, event.data["row"])
        best = f"best {tracker.best:.2f}x" if tracker.best else ""
        eta = "" if tracker.eta_s is None else f"about {duration(tracker.eta_s)} left"
        name = tracker.problem.rpartition("/")[2]
        self._progress.update(
            self._task,
            description=self._escape(" · ".join(filter(None, (name, tracker.round, tracker.activity, best)))),
            total=tracker.total or None,
            completed=tracker.finished,
            eta=eta,
        )

    def _print_row(self, problem: str, row: Mapping[str, Any]) -> None:
        ending = describe_ending(row)
        said = f"[bold]{self._escape(problem)}[/bold]: {self._escape(ending.outcome)}\n  {self._escape(ending.figures)}"
        self._progress.console.print(f"{ending.mark} {said}")


class _LiveContext:
    """Opens the live display and hands out its listener."""

    def __enter__(self) -> Listener:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            SpinnerColumn(),
            MofNCompleteColumn(),
            BarColumn(bar_width=16),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[eta]}[/dim]"),
            console=stderr_console(),
            transient=True,
        )
        self._progress.start()
        return LiveProgress(self._progress)

    def __exit__(self, *details: object) -> None:
        self._progress.stop()


def show_progress(quiet: bool = False) -> AbstractContextManager[Listener]:
    """The listener for standard error: live on a terminal, plain lines elsewhere, silent if ``quiet``."""
    if quiet:
        return nullcontext(lambda event: None)
    return _LiveContext() if wants_live_display() else nullcontext(PlainProgress())
