"""What a run knows of earlier ones: the library of measured moves, what Judges found out, and what kernels cost.

Each is mined once, when it is first asked for, from what the store held when the run began.
"""

from __future__ import annotations

import difflib
import math
import random
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelwright.agents import Attempt, Coder, ModelRole, StepContext
from kernelwright.agents.roles import best_attempt
from kernelwright.campaign._costs import Costs, learned_costs
from kernelwright.datasets import operators_of
from kernelwright.evolution import Choice, Library, MeasuredMove, Rank, closeness, contrast
from kernelwright.prompts import KernelView
from kernelwright.records import Backend, Candidate, Environment, Problem, Status
from kernelwright.records.runs import SEVERITIES, Insight

if TYPE_CHECKING:
    from kernelwright.config import Settings
    from kernelwright.store import Store, StoredInsight, TriedKernel

MOST_TRANSFERS = 8  # moves that a search is offered for a kernel
DIFF_CHARACTERS = 1500  # of what was changed where a move gained most


def library_of(store: Store, *, before_run: str | None = None, backend: Backend | None = None) -> Library:
    """The library of a store's measured moves.

    Args:
        before_run: only what was measured before this run began, and never by it.
    """
    return Library.mined(store.tried(before_run=before_run, backend=backend), store.problem_sources())


class RunMemory:
    """What was there when a run began, so that a run that is resumed knows what it knew before.

    Args:
        judged_in: where the kernels of each language of the run are judged; of a language, what was measured on devices
            of another class is left out, and what kernels cost is learned from this very environment.
        settings: say how much prompts show.
    """

    def __init__(self, store: Store, run_id: str, judged_in: Mapping[Backend, Environment], settings: Settings) -> None:
        self._settings = settings
        self._store = store
        self._run_id = run_id
        self._judged_in = judged_in
        self._learned: dict[Backend, Costs] = {}
        self._diffs: dict[str, str] = {}
        self._tried: dict[Backend, Sequence[TriedKernel]] = {}
        self._sources: Mapping[str, str] = {}
        self._mined: dict[Backend, Library] = {}
        self._said: dict[Backend, Sequence[tuple[StoredInsight, Mapping[str, int]]]] = {}
        self._lock = threading.Lock()  # problems are worked on side by side

    def of(self, problem: Problem) -> ProblemMemory:
        """What is known about a problem."""
        return ProblemMemory(
            self, problem, moves=self._settings.recipe.moves_shown, insights=self._settings.recipe.insights_shown
        )

    def near(self, backend: Backend, operators: Mapping[str, int], bound: str) -> list[MeasuredMove]:
        """Moves of a language that paid, those measured on the likest problems first."""
        near = self._library(backend).near(operators, bound=bound, device_class=self._judged_in[backend].device_class)
        return [one.move for one in near if one.move.paid]

    def insights(self, backend: Backend) -> Sequence[tuple[StoredInsight, Mapping[str, int]]]:
        """What Judges found out of a language before the run began, with each problem's operators, oldest first."""
        with self._lock:
            if backend not in self._said:
                found = self._store.insights(before_run=self._run_id, backend=backend)
                sources = self._store.problem_sources() if found else {}
                here = [one for one in found if one.device_class == self._judged_in[backend].device_class]
                self._said[backend] = [(one, operators_of(sources[one.version])) for one in here]
            return self._said[backend]

    def timed(self, problem: Problem, backend: Backend, baseline: str) -> list[tuple[str, Choice]]:
        """Of each kernel that was timed for a problem as it is now, on this machine: its latest evaluation and speed.

        The speed is the log of the lower end of the speedup's interval.
        """
        with self._lock:
            if backend not in self._tried:
                self._tried[backend] = self._store.tried(before_run=self._run_id, backend=backend)
                self._sources = self._sources or self._store.problem_sources()
        found: dict[str, tuple[str, Choice]] = {}
        for row in self._tried[backend]:
            here = row.problem == problem.id and row.environment == self._judged_in[backend].id
            speedup = row.speedup.get(baseline) if here and row.status is Status.PASSED else None
            if speedup is not None and speedup.low > 0 and self._sources.get(row.version) == problem.declared.source:
                found[row.candidate] = (row.id, Choice(row.candidate, math.log(speedup.low)))
        return list(found.values())

    def contrasts(self, problem: Problem, context: StepContext, count: int) -> tuple[KernelView, ...]:
        """See :class:`~kernelwright.agents.Memory`."""
        timed = self.timed(problem, context.backend, context.baseline)
        asked = context.assignment
        rng = random.Random(f"{self._run_id}/{problem.id}/{context.round}/{asked.sample}/{asked.seed}")
        chosen = contrast([choice for _, choice in timed], count, rng)
        rows = {choice.sha256: evaluation_id for evaluation_id, choice in timed}
        evaluations = [self._store.evaluation(rows[choice.sha256]).evaluation for choice in chosen]
        return tuple(KernelView.of(one.candidate, one.verdict) for one in evaluations)

    def diff(self, move: MeasuredMove) -> str:
        """What was changed where a move gained most, as a unified difference cut to a length."""
        if move.id not in self._diffs:
            self._diffs[move.id] = self._diff(move)
        return self._diffs[move.id]

    def _diff(self, move: MeasuredMove) -> str:
        place = move.best_place
        before, after = (self._store.candidate(sha256, problem=place.problem).source for sha256 in place.kernels)
        lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1)
        return "\n".join(list(lines)[2:])[:DIFF_CHARACTERS]

    def costs(self, backend: Backend) -> Costs:
        """The cost model of a language, learned from the store's own verdicts."""
        with self._lock:
            if backend not in self._learned:
                environment = self._judged_in[backend].id
                found = self._learned[backend] = learned_costs(self._store, backend, environment, self._run_id)
                use = {"backend": backend, **found.use.model_dump(mode="json")}
                self._store.event(self._run_id, "cost-model", use)
            return self._learned[backend]

    def _library(self, backend: Backend) -> Library:
        with self._lock:
            if backend not in self._mined:
                self._mined[backend] = library_of(self._store, before_run=self._run_id, backend=backend)
            return self._mined[backend]


class _Said(NamedTuple):
    """An insight with where it is from: empty for the problem itself."""

    insight: Insight
    elsewhere: str
    closeness: float


class ProblemMemory:
    """What is known about one problem: moves for its search and its prompts, and insights."""

    def __init__(self, run: RunMemory, problem: Problem, *, moves: int, insights: int) -> None:
        self._run = run
        self._problem = problem
        self._operators = operators_of(problem.source)
        self._moves = moves
        self._most_insights = insights
        self._by_bound: dict[tuple[Backend, str], list[MeasuredMove]] = {}

    def transfers(self, coder: Coder, attempt: Attempt) -> list[dict[str, Any]]:
        """Moves that may be made on a kernel, the best first; for the code generator those that its schedule admits."""
        told = isinstance(coder, ModelRole)
        moves = self._near(attempt.candidate.backend, _bound_of(attempt))
        fitting = [move for move in moves if told or _fits(move, attempt.action.get("schedule"))]
        return [self._transfer(move, told) for move in fitting[:MOST_TRANSFERS]]

    def ranks(self, candidate: Candidate) -> Rank | None:
        """What says of settings of a kernel's knobs what they are expected to be worth; None where nothing is known.

        Known is what a cost model says that orders kernels of problems that it was not trained on better than chance.
        """
        costs = self._run.costs(candidate.backend)
        if costs.before.model is None:
            return None
        return lambda settings: costs.expected(
            self._problem,
            [candidate.model_copy(update={"knobs": {**candidate.knobs, **setting}}) for setting in settings],
        )

    def _transfer(self, move: MeasuredMove, told: bool) -> dict[str, Any]:
        made: dict[str, Any] = {"id": move.id, "told": _line(move)}
        return {**made, "diff": self._run.diff(move)} if told else {**made, "change": dict(move.change)}

    def _near(self, backend: Backend, bound: str) -> list[MeasuredMove]:
        if (backend, bound) not in self._by_bound:
            self._by_bound[backend, bound] = self._run.near(backend, self._operators, bound)
        return self._by_bound[backend, bound]

    def paid(self, context: StepContext) -> tuple[str, ...]:
        """See :class:`~kernelwright.agents.Memory`."""
        if not self._moves:
            return ()
        return tuple(_line(move) for move in self._near(context.backend, _bound(context))[: self._moves])

    def insights(self, context: StepContext) -> tuple[str, ...]:
        """See :class:`~kernelwright.agents.Memory`."""
        if not self._most_insights:
            return ()
        known = self._run.insights(context.backend)
        own = [_Said(insight, "", 1.0) for a in context.attempts for insight in _insights_on(a, context.backend)]
        earlier = [_Said(one.insight, "", 1.0) for one, _ in known if one.problem == self._problem.id]
        ours = [*earlier, *own][::-1]
        tags = {one.insight.tag for one in ours}
        others = self._elsewhere(context.backend, _bound(context), tags)[::-1]
        return tuple(_said_line(one) for one in _ranked([*ours, *others])[: self._most_insights])

    def contrasts(self, context: StepContext, count: int) -> tuple[KernelView, ...]:
        """See :class:`~kernelwright.agents.Memory`."""
        return self._run.contrasts(self._problem, context, count)

    def _elsewhere(self, backend: Backend, bound: str, tags: set[str]) -> list[_Said]:
        """What was found out on problems like this one, of kernels limited by the same, or of what came up here."""
        found = []
        for one, operators in self._run.insights(backend):
            same = one.insight.tag in tags or (one.bound == bound and bound != "unknown")
            near = closeness(self._operators, bound, operators, one.bound)
            if one.problem != self._problem.id and same and near > 0.0:
                found.append(_Said(one.insight, one.problem, near))
        return found


def _insights_on(attempt: Attempt, backend: Backend) -> tuple[Insight, ...]:
    """What the advice that stands with an attempt found out, where that is of kernels in a language."""
    return attempt.advice.insights if attempt.advice and attempt.candidate.backend == backend else ()


def _ranked(said: Sequence[_Said]) -> list[_Said]:
    """The most severe first, of equals those of the likest problem, each finding once."""
    ranked = sorted(said, key=lambda one: (SEVERITIES.index(one.insight.severity), -round(one.closeness, 1)))
    return list({(one.insight.tag, one.insight.text.casefold()): one for one in reversed(ranked)}.values())[::-1]


def _said_line(one: _Said) -> str:
    where = f" (on {one.elsewhere})" if one.elsewhere else ""
    found = one.insight
    return f"{found.severity} {found.type} [{found.tag}]{where}: {found.text}"


def _fits(move: MeasuredMove, schedule: Any) -> bool:
    """Whether a schedule has the choices that the move changes, as they were before it where it was measured."""
    if not move.change or not isinstance(schedule, Mapping):
        return False
    return all(knob in schedule and schedule[knob] == move.before.get(knob) for knob in move.change)


def _line(move: MeasuredMove) -> str:
    """A move with what was measured of it, on one line."""
    return f"{move.told}: {move.outcome()}"


def _bound(context: StepContext) -> str:
    """What limits the kernel that is gone on from, or the best one where nothing is."""
    parents = context.assignment.parents
    first = next((a for a in context.attempts if parents and a.candidate.sha256 == parents[0]), None)
    chosen = first or best_attempt(context.in_language(context.backend).attempts, context.baseline)
    return "unknown" if chosen is None else _bound_of(chosen)


def _bound_of(attempt: Attempt) -> str:
    return "unknown" if attempt.verdict.profile is None else attempt.verdict.profile.bound
