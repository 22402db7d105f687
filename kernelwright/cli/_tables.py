"""Numbers and tables as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kernelwright.cli._lint import marked

if TYPE_CHECKING:
    from rich.table import Table

    from kernelwright.campaign import CampaignResult, RunResult
    from kernelwright.cli._lint import Findings
    from kernelwright.records import Speedup, Verdict

HASH_DIGITS = 12
NARROW = 118  # columns that the winners' table needs on one line a row
MISSING_LAYER = "no-"
UNCONFINED = "unconfined"
NO_TIME = (
    "no time was measured: there is no device here for these kernels. They are checked, and ranked by the time that a "
    "model expects (Triton alone), then by the compiler's figures: spilled registers, traffic, occupancy"
)
CAP = 3.0  # limit of each ratio in the capped mean, so that one outlier does not decide it


def table(*columns: str, title: str | None = None) -> Table:
    """An empty table in the house style; a column whose name starts with ``>`` is right-aligned."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left", overflow="fold")
    return made


def language_line(languages: Sequence[str]) -> str:
    """The languages of a run's kernels, for its head line; the run's own language comes first."""
    first, *others = languages
    return f"backend {first}" + (f" (islands for {', '.join(others)} as well)" if others else "")


def short(candidate: str | None) -> str:
    """The first digits of a hash; ``-`` without one."""
    return candidate[:HASH_DIGITS] if candidate else "-"


def milliseconds(value: float | None) -> str:
    """A latency with a unit that suits it."""
    if value is None:
        return "-"
    return f"{value:.3g} ms" if value >= 1 else f"{value * 1000:.3g} µs"


def ratio(speedup: Speedup | None, *, stacked: bool = False) -> str:
    """A speedup with its 95% interval; ``stacked`` puts the interval on a second line."""
    if speedup is None:
        return "-"
    gap = "\n" if stacked else " "
    return f"{speedup.median:.2f}x{gap}[{speedup.low:.2f}, {speedup.high:.2f}]"


def coloured_ratio(speedup: Speedup | None, *, stacked: bool = False) -> str:
    """As :func:`ratio`, in rich markup: green if "faster" may be claimed, red if surely slower, else yellow."""
    text = ratio(speedup, stacked=stacked).replace("[", r"\[")
    if speedup is None:
        return text
    colour = "green" if speedup.faster else "red" if speedup.high < 1 else "yellow"
    return f"[{colour}]{text}[/{colour}]"


def duration(seconds: float) -> str:
    """Seconds in words, such as ``2 min 05 s``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def shorten_ids(ids: Sequence[str], *, narrow: bool = False) -> dict[str, str]:
    """Problem ids without their suite, if all are of one suite; with ``narrow``, only the names, if unique."""
    bare = {name: name.rpartition("/")[2] for name in ids}
    if narrow and len(set(bare.values())) == len(bare):
        return bare
    one_suite = len({name.partition("/")[0] for name in ids}) == 1 and all("/" in name for name in ids)
    return {name: name.partition("/")[2] if one_suite else name for name in ids}


def winners_table(rows: Sequence[RunResult], baselines: Sequence[str], width: int, lints: Findings) -> Table:
    """The winners' table of a run; on a narrow terminal, two lines a row. A problem that fails the lint is marked."""
    from rich.markup import escape

    narrow = width < NARROW
    timing = (">latency",) if narrow else (">latency", "stage")
    made = table("problem", *(f">vs {name}" for name in baselines), *timing, "kernel")
    for column in made.columns[1:]:
        column.no_wrap = True
    names = shorten_ids([row.problem for row in rows], narrow=narrow)
    for row in rows:
        latency, stage = milliseconds(row.latency_ms.median if row.latency_ms else None), _stage(row)
        made.add_row(
            escape(marked(names[row.problem], lints[row.problem])),
            *(coloured_ratio(row.speedup.get(name), stacked=narrow) for name in baselines),
            *((f"{latency}\n{stage}",) if narrow else (latency, stage)),
            short(row.candidate),
        )
    return made


def result_tables(
    rows: Sequence[RunResult], baselines: Sequence[str], width: int, lints: Findings
) -> list[Table | str]:
    """The winners' table of a run. Problems that could not be timed get a table of their own, with a note."""
    untimed = [row for row in rows if row.ranked]
    timed = [row for row in rows if not row.ranked]
    shown: list[Table | str] = []
    if timed or not untimed:
        shown.append(winners_table(timed, baselines, width, lints))
    if untimed:
        shown += [untimed_table(untimed, lints), f"[yellow]{NO_TIME}[/yellow]"]
    return shown


def untimed_table(rows: Sequence[RunResult], lints: Findings) -> Table:
    """The table of problems that could not be timed: for each, its kernels, the best first."""
    from rich.markup import escape

    made = table("problem", ">rank", "compiler's figures", "kernel")
    names = shorten_ids([row.problem for row in rows])
    for row in rows:
        name = escape(marked(names[row.problem], lints[row.problem]))
        for rank, kernel in enumerate(row.ranked, start=1):
            made.add_row(name if rank == 1 else "", str(rank), escape(kernel.evidence or "-"), short(kernel.candidate))
        if not row.ranked:
            made.add_row(name, "-", _stage(row), short(row.candidate))
    return made


def _stage(row: RunResult) -> str:
    """The stage of a winner, with ``hybrid`` or ``library`` if libraries take part; else the problem's outcome."""
    if row.skipped:
        return "skipped"
    if row.candidate and row.stage:
        label = row.own_kernel_label
        return f"{row.stage.value} ({label})" if label in ("hybrid", "library") else row.stage.value
    return row.status.value if row.status else row.state


def variant_lines(rows: Sequence[RunResult]) -> list[str]:
    """Notes on the rows: other variants than the first, skipped problems, denied speedups, sizes too small to time."""
    lines = []
    for row in rows:
        if row.variant is not None and row.variant.number:
            lines.append(f"{row.problem}: timed on {row.variant.describe()}")
        if row.skipped:
            lines.append(f"{row.problem}: {row.reason}")
        if row.denied:
            lines.append(f"{row.problem}: no speedup is claimed: {row.denied}")
        if row.too_small:
            lines.append(f"{row.problem}: too small to time: {row.too_small}")
    return lines


def unjudged_lines(result: CampaignResult) -> list[str]:
    """The number of problems without a verdict, and the reason of each; empty if there are none."""
    ended = result.unjudged
    if not ended:
        return []
    count = f"{len(ended)} of {len(result.rows)} problems ended without a verdict"
    return [f"{count}:", *(f"  {row.problem}: {row.reason}" for row in ended)]


def weak_sandbox(layers: Sequence[str]) -> str:
    """A warning if layers of the sandbox were missing; empty if none were, or if no candidate ran."""
    missing = [layer for layer in layers if layer.startswith(MISSING_LAYER) or layer == UNCONFINED]
    return (
        f"the sandbox was not complete here ({', '.join(missing)}); its layers: {', '.join(layers)}" if missing else ""
    )


def suite_summary(rows: Sequence[RunResult], baselines: Sequence[str]) -> list[str]:
    """One line a baseline over several problems; empty for a single one. A problem without a winner counts as 1x."""
    from statistics import median

    from kernelwright.evaluator import geometric_mean

    lines = []
    for name in baselines if len(rows) > 1 else ():
        timed = [row.speedup.get(name) for row in rows]
        if not any(timed):
            continue
        ratios = [speedup.median if speedup else 1.0 for speedup in timed]
        faster = sum(speedup is not None and speedup.faster for speedup in timed)
        lines.append(
            f"vs {name}: faster in {faster} of {len(rows)}, median {median(ratios):.2f}x, geometric mean "
            f"{geometric_mean(ratios):.2f}x ({geometric_mean(ratios, CAP):.2f}x with each ratio capped at {CAP:g}x)"
        )
    return lines


def whose(verdict: Verdict) -> str:
    """How much of the work the candidate's own kernels do, in words."""
    if verdict.own_kernel_share is not None:
        return f"{verdict.own_kernel_share:.0%} of the time ({verdict.own_kernel_label})"
    return f"{verdict.own_kernel_label}, torch does the reference's arithmetic"


def verdict_lines(verdict: Verdict) -> list[str]:
    """A verdict in a few lines of text."""
    from kernelwright.records.verdicts import TOO_SMALL_TO_TIME

    stage = verdict.stage.value if verdict.stage else "none"
    lines = [f"{verdict.status.value}  (stage {stage}{', control' if verdict.control else ''})"]
    if verdict.reason:
        lines.append(f"reason: {verdict.reason}")
    if verdict.correctness:
        seen = verdict.correctness
        lines.append(
            f"checked: {seen.trials} trials, {seen.variants} variants, "
            f"error {seen.max_error:.3g} of a budget of {seen.error_budget:.3g}"
        )
    if verdict.timing:
        latency = verdict.timing.latency_ms
        lines.append(
            f"latency: {milliseconds(latency.median)} [{milliseconds(latency.low)}, {milliseconds(latency.high)}]"
        )
        if verdict.variant:
            lines.append(f"timed on: {verdict.variant.describe()}")
        lines += [f"vs {name}: {ratio(value)}" for name, value in sorted(verdict.timing.speedup.items())]
        denied = {name: verdict.timing.denial(name) for name in sorted(verdict.timing.speedup)}
        lines += [f"no speedup over {name} is claimed: {why}" for name, why in denied.items() if why]
        if verdict.too_small:
            lines.append(f"too small to time: {verdict.too_small}")
    if verdict.own_kernel_label is not None:
        boards = "; not eligible for boards" if verdict.passed and not verdict.eligible else ""
        lines.append(f"own kernels: {whose(verdict)}{boards}")
    if verdict.profile:
        known = "no time was measured" if verdict.timing is None else f"bound by {verdict.profile.bound}"
        lines.append(f"profile ({verdict.profile.rung}): {known}")
        lines += [f"  {note}" for note in verdict.profile.notes]
    lines += [
        ": ".join(filter(None, (f"finding {found.rule} ({found.effect}) {found.where}".rstrip(), found.evidence)))
        for found in verdict.findings
        if found.rule != TOO_SMALL_TO_TIME
    ]
    lines.append(f"kernel {short(verdict.candidate)}, environment {verdict.environment}")
    lines.append(f"sandbox: {', '.join(verdict.sandbox) or 'none'}")
    return lines


def plain_text(text: str) -> str:
    """Untrusted text without control characters, which a terminal would obey."""
    return "".join(character if character.isprintable() else " " for character in text)
