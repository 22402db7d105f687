"""``kernelwright compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernelwright.cli._common import Common, common_options
from kernelwright.cli._runs import find_run
from kernelwright.cli._tables import duration, ratio, shorten_ids, table

if TYPE_CHECKING:
    from rich.table import Table

    from kernelwright.campaign import Mean
    from kernelwright.campaign.compare import Comparison, Side
    from kernelwright.records import Interval


@click.command()
@click.argument("run_a", metavar="RUN_A")
@click.argument("run_b", metavar="RUN_B")
@click.option(
    "--baseline", metavar="NAME", help="Baseline of the speedups: eager, compile... (default: RUN_A's first)."
)
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw the curves into this SVG file.")
@common_options
def compare(common: Common, run_a: str, run_b: str, baseline: str | None, plot: Path | None) -> None:
    """Compare two runs on their common problems, and say whether they differ by more than noise.

    Name a run by its id, the start of its id, or 'last'. 'last~1' is the run before the last one.
    """
    from rich.markup import escape

    from kernelwright.campaign import compare_runs
    from kernelwright.errors import UsageError
    from kernelwright.files import write_for_user
    from kernelwright.plots import curves_svg

    settings = common.settings()
    with common.open_store(settings, readonly=True) as store:
        found = compare_runs(store, find_run(store, run_a), find_run(store, run_b), baseline)
    sides = (found.a, found.b)
    if plot is not None:
        if not all(side.curve for side in sides):
            raise UsageError("there is nothing to draw: a run has judged nothing yet", hint="leave --plot out")
        lines = {
            f"{name}: {side.recipe}": list(enumerate(side.curve, 1)) for name, side in zip("AB", sides, strict=True)
        }
        across, up = "evaluations of each problem", f"speedup over {found.baseline}, geometric mean"
        write_for_user(plot, curves_svg(lines, across=across, up=up, log2=True, steps=True, unit="x", mark=1.0) + "\n")
    warnings = [f"[yellow]warning: {escape(warning)}[/yellow]" for warning in found.warnings]
    differing = "; ".join(f"{name} {a or '-'} | {b or '-'}" for name, (a, b) in found.differing.items())
    common.show(
        found,
        _summary(found),
        _problems(found),
        *([_curves(found)] if any(side.curve for side in sides) else []),
        *([f"settings that differ: {escape(differing)}"] if differing else []),
        *warnings,
        f"[bold]{escape(found.conclusion)}[/bold]",
        *([f"curves: {escape(str(plot))}"] if plot is not None else []),
    )


def _summary(found: Comparison) -> Table:
    """A row for each figure, a column for each run."""
    from rich.markup import escape

    made = table(f"{len(found.problems)} common problems", ">A", ">B", ">A/B")
    a, b = found.a, found.b
    made.add_row("run", a.run, b.run, "")
    made.add_row("recipe", escape(a.recipe), escape(b.recipe), "")
    made.add_row("coder", escape(a.coder), escape(b.coder), "")
    made.add_row(f"geometric mean vs {escape(found.baseline)}", _mean(a.mean), _mean(b.mean), _mean(found.ratio))
    made.add_row("correct", _share(a), _share(b), "")
    for p in a.fast_p:
        made.add_row(f"fast_{p}", f"{a.fast_p[p]:.0%}", f"{b.fast_p[p]:.0%}", "")
    made.add_row("evaluations", str(a.evaluations), str(b.evaluations), "")
    made.add_row("referee", duration(a.device_seconds), duration(b.device_seconds), "")
    made.add_row("tokens", f"{a.tokens:,}", f"{b.tokens:,}", "")
    made.add_row("cost", _cost(a.cost_usd), _cost(b.cost_usd), "")
    return made


def _share(side: Side) -> str:
    return f"{side.correct} ({side.correct_rate:.0%})"


def _cost(cost_usd: float | None) -> str:
    return "unknown" if cost_usd is None else f"${cost_usd:.4f}"


def _mean(mean: Mean | None) -> str:
    """A mean with its interval, where it has one; brackets are escaped for rich."""
    if mean is None:
        return "-"
    ends = "" if mean.low is None or mean.high is None else rf" \[{mean.low:.2f}, {mean.high:.2f}]"
    return f"{mean.value:.2f}x{ends}"


def _problems(found: Comparison) -> Table:
    """A row for each problem."""
    from rich.markup import escape

    made = table("problem", ">A", ">B", ">A/B")
    names = shorten_ids([pair.problem for pair in found.problems])
    for pair in found.problems:
        made.add_row(
            escape(names[pair.problem]),
            "none" if not pair.a_correct else escape(ratio(pair.a)) if pair.a else "not timed",
            "none" if not pair.b_correct else escape(ratio(pair.b)) if pair.b else "not timed",
            _interval(pair.ratio),
        )
    return made


def _interval(found: Interval | None) -> str:
    return "-" if found is None else rf"{found.median:.2f}x \[{found.low:.2f}, {found.high:.2f}]"


def _curves(found: Comparison) -> Table:
    """The best speedup so far, after 1, 2, 4, ... evaluations."""
    most = max(len(found.a.curve), len(found.b.curve))
    made = table(">evaluations of each problem", ">A", ">B", title="geometric mean of the best so far, in the search")
    numbers = [2**power for power in range(most.bit_length())]
    for number in [*numbers, *([most] if most not in numbers else [])]:
        made.add_row(str(number), *(_at(side, number) for side in (found.a, found.b)))
    return made


def _at(side: Side, number: int) -> str:
    """The curve's value after ``number`` evaluations. A run that ended earlier keeps its last value."""
    if not side.curve:
        return "-"
    return f"{side.curve[min(number, len(side.curve)) - 1]:.2f}x{'' if number <= len(side.curve) else ' (ended)'}"
