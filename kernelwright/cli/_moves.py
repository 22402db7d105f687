"""``kernelwright moves``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernelwright.cli._common import Common, common_options
from kernelwright.cli._tables import short, table

if TYPE_CHECKING:
    from rich.table import Table

    from kernelwright.evolution import MeasuredMove, Near
    from kernelwright.records import Backend

_MOST = 40


@click.group()
def moves() -> None:
    """List measured changes of kernels."""


@moves.command("list")
@click.option("--backend", type=click.Choice(["cpp", "triton", "cuda"]), help="Only kernels in this language.")
@click.option("--like", metavar="P", help="Only moves measured on problems similar to P, most similar first.")
@click.option("--limit", type=click.IntRange(min=1), default=_MOST, show_default=True, help="Most moves to show.")
@click.option(
    "--suite-dir", "suite_dirs", multiple=True, type=click.Path(path_type=Path), help="Folder of more suites."
)
@common_options
def list_moves(
    common: Common, backend: Backend | None, like: str | None, limit: int, suite_dirs: tuple[Path, ...]
) -> None:
    """List each change with its gain (95% interval), its problems, and how often it was measured and failed."""
    from kernelwright.campaign.memory import library_of

    settings = common.settings(suite_dirs=suite_dirs)
    with common.open_store(settings, readonly=True) as store:
        library = library_of(store, backend=backend)
    if like is None:
        near: list[Near] | None = None
        found = library.ranked
    else:
        from kernelwright.datasets import find_problem, operators_of

        near = library.near(operators_of(find_problem(like, settings.suite_dirs).source))
        found = [one.move for one in near]
    rows = [_row(move, None if near is None else near[number].closeness) for number, move in enumerate(found[:limit])]
    shown = [_table(rows)] if rows else ["no change like that was measured yet"]
    left = len(found) - len(rows)
    common.show({"moves": rows}, *shown, *([f"{left} more: --limit {len(found)}"] if left > 0 else []))


def _row(move: MeasuredMove, closeness: float | None) -> dict[str, Any]:
    row = {**move.model_dump(mode="json"), "paid": move.paid}
    return row if closeness is None else {**row, "closeness": round(closeness, 3)}


def _table(rows: list[dict[str, Any]]) -> Table:
    from rich.markup import escape

    like = "closeness" in rows[0]
    made = table("move", "change", ">gain", ">times", ">failed", "measured on", *([">like"] * like))
    for row in rows:
        names = list(dict.fromkeys(place["problem"] for place in row["places"]))
        bounds = sorted({place["bound"] for place in row["places"]} - {"unknown"})
        where = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        made.add_row(
            short(row["id"]),
            escape(row["told"]),
            _gain(row["gain"]).replace("[", r"\["),
            str(row["times"]),
            str(row["failures"]),
            escape(where + (f" ({', '.join(bounds)})" if bounds else "")),
            *([f"{row['closeness']:.2f}"] if like else []),
        )
    return made


def _gain(gain: dict[str, float] | None) -> str:
    return "-" if gain is None else f"{gain['median']:.2f}x [{gain['low']:.2f}, {gain['high']:.2f}]"
