"""A search's archive as a grid of the best kernels, along the two axes with the most different values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelwright.errors import UsageError

if TYPE_CHECKING:
    from kernelwright.campaign import Elite
    from kernelwright.campaign.searched import IslandView
    from kernelwright.store import Store

STEPS = 10  # of the colour scale
_MOST_EVALUATIONS = 5_000  # of a run; the archive is rebuilt from all of them


class Cell(NamedTuple):
    """A place of the grid. ``step`` is its colour, from 0 to 9; None without a timed kernel."""

    elite: Elite | None
    step: int | None
    more: int  # further elites at this place, which differ on other axes


class Map(NamedTuple):
    """An island's grid."""

    name: str
    backend: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    across: str
    down: str
    elites: Sequence[Elite]
    axes: Sequence[str]


def archive_of(store: Store, problem: str, run_id: str | None) -> dict[str, Any]:
    """The archive of a run for a problem; without a run's id, that of the latest run that searched on the problem.

    Returns:
        ``run``: the run's id or None; ``reason``: why there is no map, or empty; ``maps``: one for each island.
    """
    from kernelwright.campaign import searches_of

    rows = store.query(
        "SELECT runs.id, sum(tallies.evaluations) AS evaluations FROM tallies JOIN runs ON runs.id = tallies.run_id "
        "WHERE problem_version IN (SELECT version FROM problems WHERE problem = ?) "
        "AND json_extract(config_json, '$.search') IS NOT NULL AND (? IS NULL OR runs.id = ?) "
        "GROUP BY runs.id ORDER BY runs.id DESC LIMIT 1",
        [problem, run_id, run_id],
    )
    if not rows:
        return {"run": run_id, "reason": "no run has searched on this problem with an archive", "maps": []}
    run = rows[0]["id"]
    if rows[0]["evaluations"] > _MOST_EVALUATIONS:
        return {"run": run, "reason": f"too large to draw here: kernelwright runs archive {run}", "maps": []}
    try:
        views = searches_of(store, store.run(run), problem)
    except (UsageError, ValueError) as error:
        return {"run": run, "reason": f"its archive cannot be rebuilt: {error}", "maps": []}
    islands = [island for view in views for island in view.islands if island.elites]
    return {"run": run, "reason": "" if islands else "nothing passed yet", "maps": [map_of(i) for i in islands]}


def map_of(island: IslandView) -> Map:
    """An island's grid, coloured by speedup from its slowest to its fastest elite."""
    bins = {axis: sorted({elite.cell[axis] for elite in island.elites}, key=_order) for axis in island.axes}
    by_spread = sorted(island.axes, key=lambda axis: -len(bins[axis]))
    across = by_spread[0] if by_spread else ""
    down = by_spread[1] if len(by_spread) > 1 else ""
    ratios = [elite.speedup.low for elite in island.elites if elite.speedup is not None and elite.speedup.low > 0]
    low, high = (math.log(min(ratios)), math.log(max(ratios))) if ratios else (0.0, 0.0)

    def cell(x: int | str, y: int | str | None) -> Cell:
        here = [e for e in island.elites if e.cell.get(across) == x and (y is None or e.cell[down] == y)]
        best = max(here, key=lambda e: e.speedup.low if e.speedup else 0.0, default=None)
        step = None
        if best is not None and best.speedup is not None and best.speedup.low > 0:
            share = (math.log(best.speedup.low) - low) / (high - low) if high > low else 1.0
            step = min(STEPS - 1, int(share * STEPS))
        return Cell(best, step, max(0, len(here) - 1))

    columns = bins.get(across, [])
    rows: list[tuple[str, Sequence[Cell]]] = [
        ("" if y is None else str(y), [cell(x, y) for x in columns]) for y in (bins[down] if down else [None])
    ]
    elites = sorted(island.elites, key=lambda e: -(e.speedup.low if e.speedup else 0.0))
    return Map(island.name, island.backend, [str(x) for x in columns], rows, across, down, elites, island.axes)


def _order(value: int | str) -> tuple[bool, int | str]:
    return isinstance(value, str), value
