"""A run's search, rebuilt from the store: its archives and the worth of its operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kernelwright.agents import RIVALS as BESIDE
from kernelwright.agents import Attempt, Unjudged
from kernelwright.campaign.ledger import duplicates_of, fruitless_of
from kernelwright.config import NAMES
from kernelwright.evolution import Evolution, Moves, Ranks, Search, SearchPlan, Value
from kernelwright.records import Backend, Candidate, Interval, Record, RunConfig

if TYPE_CHECKING:
    from kernelwright.store import RunRow, Store, StoredEvaluation


class Elite(Record):
    """The best kernel of a cell.

    Attributes:
        cell: its bin on each axis of the archive; classes by their name, ranges by their number from 0.
        values: its known values on all axes of its backend.
        speedup: by all of its measurements; None if it was not timed.
        measurements: number of its measurements.
    """

    kernel: str
    operator: str
    cell: Mapping[str, int | str]
    values: Mapping[str, Value]
    speedup: Interval | None
    measurements: int


class ArmRow(Record):
    """The gain (a log-ratio) and cost of an operator with a model on an island. Older steps count less."""

    operator: str
    model: str
    steps: float
    gain: float
    cost_usd: float
    device_s: float


class IslandView(Record):
    """One island at the end of a run, or in its current state."""

    name: str
    backend: Backend
    axes: tuple[str, ...]
    elites: tuple[Elite, ...]
    arms: tuple[ArmRow, ...]
    restarts: int


class SearchView(Record):
    """The search over one problem."""

    problem: str
    evaluations: int
    passed: int
    islands: tuple[IslandView, ...]


def _no_moves(attempt: Attempt) -> Sequence[Mapping[str, Any]]:
    return ()


def languages_of(config: RunConfig) -> tuple[Backend, ...]:
    """The backends of a run's kernels, the winner's first."""
    if config.search is None:
        return (config.backend,)
    islands = SearchPlan.model_validate(config.search).backends(config.backend)
    return tuple(dict.fromkeys((config.backend, *islands)))


def _no_rank(candidate: Candidate) -> None:
    return None


def make_search(
    config: RunConfig, problem_id: str, *, samples: int = 1, moves: Moves = _no_moves, ranks: Ranks = _no_rank
) -> Evolution:
    """A new search of a run over a problem, without any evaluations. The run's recipe must set one up.

    Args:
        moves: returns the moves that the search may transfer from other problems.
        ranks: returns a function that predicts the worth of a kernel's knob settings, or None.
    """
    make = partial(
        Search,
        SearchPlan.model_validate(config.search),
        seed=f"{NAMES.recorded(config.settings).get('recipe.search_seed', 0)}/{problem_id}",
        backend=config.backend,
        baseline=config.baselines[0],
        moves=moves,
        ranks=ranks,
    )
    return Evolution(make, samples=samples)


def searches_of(store: Store, run: RunRow, problem: str | None = None) -> tuple[SearchView, ...]:
    """A run's searches in the order of its problems, or the one on ``problem``; empty if its recipe has no search."""
    if run.config.search is None:
        return ()
    by_problem: dict[str, list[Attempt]] = {}
    for evaluation in store.evaluations(run_id=run.id, problem=problem, control=False, confirmed=False):
        by_problem.setdefault(evaluation.candidate.problem_id, []).append(attempt_of_row(evaluation))
    again: dict[str, list[Unjudged]] = {}
    rows: list[tuple[str, Unjudged]] = [*duplicates_of(store, run.id), *fruitless_of(store, run.id)]
    for problem_id, unjudged in rows:
        again.setdefault(problem_id, []).append(unjudged)
    views = []
    for problem_id in (name for name in run.config.problems if name in by_problem):
        attempts = by_problem[problem_id]
        views.append(
            _view(problem_id, make_search(run.config, problem_id).told(attempts, again.get(problem_id, ())), attempts)
        )
    return tuple(views)


def attempt_of_row(stored: StoredEvaluation) -> Attempt:
    """A stored evaluation in the form that the search takes."""
    return Attempt(
        round=stored.step or 0,
        evaluation_id=stored.id,
        candidate=stored.candidate,
        verdict=stored.verdict,
        action=stored.action,
        purpose=stored.purpose,
        rivals=tuple(stored.action.get(BESIDE) or ()),
    )


def _view(problem_id: str, search: Search, attempts: list[Attempt]) -> SearchView:
    islands = []
    for island, bandit in zip(search.islands, search.bandits, strict=True):
        axes = tuple(axis.name for axis in island.archive.axes)
        elites = []
        for cell, sha256 in island.archive.cells.items():
            member = search.member(sha256)
            elites.append(
                Elite(
                    kernel=sha256,
                    operator=member.attempt.candidate.operator,
                    cell=dict(zip(axes, cell, strict=True)),
                    values=dict(member.descriptor),
                    speedup=None if member.standing is None else member.standing.ratio,
                    measurements=len(member.measures),
                )
            )
        arms = [ArmRow(operator=arm.operator, model=arm.model, **t._asdict()) for arm, t in bandit.state.items()]
        view = IslandView(
            name=island.plan.name,
            backend=island.backend,
            axes=axes,
            elites=tuple(elites),
            arms=tuple(arms),
            restarts=island.restarts,
        )
        islands.append(view)
    return SearchView(
        problem=problem_id,
        evaluations=len(attempts),
        passed=len(search.members),
        islands=tuple(islands),
    )
