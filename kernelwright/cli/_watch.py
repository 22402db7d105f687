"""How a run stands, in lines, once or again and again."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from time import sleep
from typing import TYPE_CHECKING

from kernelwright.cli._common import Common, stdout_console
from kernelwright.cli._tables import duration, plain_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kernelwright.campaign.live import Standing, Watcher

EVERY_S = 2.0
_OLD_S = 30.0  # the age from which a record's is told
_SHORT_S = 10.0  # below it, tenths of seconds are told
_NAMED = 5  # problems that are named as worked on


def head_line(standing: Standing) -> str:
    """The run, its status, and who drives it."""
    return f"run {standing.run}: {standing.status}, {duration(standing.seconds)}{_driver(standing)}"


def _driver(standing: Standing) -> str:
    if standing.processes:
        several = "es" if len(standing.processes) > 1 else ""
        return f", driven by process{several} {', '.join(map(str, standing.processes))}"
    if standing.driven:
        return ", driven by a process"
    return ", but no process drives it" if standing.status == "running" else ""


def problem_line(standing: Standing) -> str:
    """How many problems are done, and the time until all are."""
    parts = [f"{standing.done} of {standing.problems} problems done, {standing.winners} with a right kernel"]
    if standing.driven:
        parts.append(f"{standing.running} worked on, {standing.left} left")
    if standing.driven and standing.eta_s:
        parts.append(f"about {duration(standing.eta_s)} to go")
    return ", ".join(parts)


def winner_line(standing: Standing) -> str:
    """What each right kernel took; empty without one."""
    if standing.device_seconds_per_winner is None:
        return ""
    cost = standing.cost_usd_per_winner
    dollars = f" and ${cost:.4f}" if cost else ""
    seconds = standing.device_seconds_per_winner
    device = duration(seconds) if seconds >= _SHORT_S else f"{seconds:.1f} s"
    return f"{device} of the referee{dollars} for each right kernel"


def live_lines(standing: Standing) -> list[str]:
    """What only a run that is driven has: its rate, its pool, what it awaits and works on."""
    if not standing.driven:
        return []
    lines = [f"{standing.verdicts} verdicts, {standing.verdicts_per_minute:.1f} a minute over the last 10 minutes"]
    lines += filter(None, (_pool(standing), _awaited(standing)))
    if standing.working_on:
        now = datetime.now(UTC)
        named = [f"{one.problem} ({duration(_age_s(one.since, now))})" for one in standing.working_on[:_NAMED]]
        more = len(standing.working_on) - len(named)
        lines.append(f"working on {', '.join(named)}{f' and {more} more' if more else ''}")
    if standing.written_at and (age_s := _age_s(standing.written_at, datetime.now(UTC))) >= _OLD_S:
        lines.append(f"as the process said {duration(age_s)} ago")
    return lines


def _pool(standing: Standing) -> str:
    pool = standing.pool
    if pool is None:
        return ""
    share = "" if standing.busy_share is None else f" ({standing.busy_share:.0%} of the time)"
    return (
        f"pool {pool.kind}: {pool.busy} of {pool.seats} seats busy{share}, {pool.waiting} jobs wait, "
        f"{pool.lost} seats lost, {pool.drained} put aside"
    )


def _awaited(standing: Standing) -> str:
    counts = ((standing.replies_awaited, "replies"), (standing.verdicts_awaited, "verdicts"))
    told = " and ".join(f"{count} {what}" for count, what in counts if count)
    return told and f"{told} awaited"


def _age_s(since: str, now: datetime) -> float:
    return max(0.0, (now - datetime.fromisoformat(since)).total_seconds())


def _spent_line(standing: Standing) -> str:
    cost = "unknown" if standing.cost_usd is None else f"${standing.cost_usd:.4f}"
    return f"referee {duration(standing.device_seconds)}, cost {cost}"


def watch(common: Common, watcher: Watcher) -> None:
    """Show how a run stands until it ends: redrawn on a terminal, else a line whenever something has changed."""
    from rich.live import Live
    from rich.text import Text

    console = stdout_console()
    redraws = console.is_terminal and not console.is_dumb_terminal and not common.as_json
    live = Live(console=console, auto_refresh=False) if redraws else None
    before = ""
    if live is not None:
        live.start()
    try:
        while True:
            standing = watcher.look()
            if live is not None:
                live.update(_screen(standing), refresh=True)
            elif common.as_json or (line := _one_line(standing)) != before:
                before = "" if common.as_json else line
                at = datetime.now(UTC).isoformat(timespec="seconds")
                common.show({"at": at, **standing.model_dump()}, Text(f"{_now()} {before}"))
                sys.stdout.flush()
            if standing.status != "running":
                return
            sleep(EVERY_S)
    except KeyboardInterrupt:
        return
    finally:
        if live is not None:
            live.stop()


def _screen(standing: Standing) -> RenderableType:
    from rich.text import Text

    lines = [head_line(standing), problem_line(standing), _spent_line(standing), winner_line(standing)]
    return Text("\n".join(map(plain_text, filter(None, (*lines, *live_lines(standing))))), overflow="fold")


def _one_line(standing: Standing) -> str:
    share = "" if standing.busy_share is None else f" ({standing.busy_share:.0%})"
    pool = "" if standing.pool is None else f"{standing.pool.busy} of {standing.pool.seats} seats busy{share}"
    rate = f"{standing.verdicts} verdicts, {standing.verdicts_per_minute:.1f} a minute"
    driver = "" if standing.driven or standing.status != "running" else "no process drives it"
    parts = (standing.status, driver, problem_line(standing), rate, pool, _awaited(standing), _spent_line(standing))
    return "; ".join(filter(None, parts))


def _now() -> str:
    return datetime.now().astimezone().strftime("%H:%M:%S")
