"""A run's knowledge of earlier runs: the library of measured moves, Judges' insights, and the learned cost model.

Each is mined once, on first use, from the rows that the store held when the run began.
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

MOST_TRANSFERS = 8  # moves offered to a search for one kernel
DIFF_CHARACTERS = 1500  # of the change where a move gained most


def library_of(store: Store, *, before_run: str | None = None, backend: Backend | None = None) -> Library:
    """The library of a store's measured moves.

    Args:
        before_run: use only measurements from before this run began.
    """
    return Library.mined(store.tried(before_run=before_run, backend=backend), store.problem_sources())


class RunMemory:
    """The knowledge of the store when a run began, so that a resumed run knows the same.

    Args:
        judged_in: the environment that judges each language of the run. Measurements on another class of device are
            left out. The cost model is learned from this environment alone.
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
        """The knowledge about one problem."""
        return ProblemMemory(
            self, problem, moves=self._settings.recipe.moves_shown, insights=self._settings.recipe.insights_shown
        )

    def near(self, backend: Backend, operators: Mapping[str, int], bound: str) -> list[MeasuredMove]:
        """Moves in a language that paid, those measured on the most similar problems first."""
        near = self._library(backend).near(operators, bound=bound, device_class=self._judged_in[backend].device_class)
        return [one.move for one in near if one.move.paid]

    def insights(self, backend: Backend) -> Sequence[tuple[StoredInsight, Mapping[str, int]]]:
        """Judges' insights on a language from before the run, the oldest first, each with its problem's operators."""
        with self._lock:
            if backend not in self._said:
                found = self._store.insights(before_run=self._run_id, backend=backend)
                sources = self._store.problem_sources() if found else {}
                here = [one for one in found if one.device_class == self._judged_in[backend].device_class]
                self._said[backend] = [(one, operators_of(sources[one.version])) for one in here]
            return self._said[backend]

    def timed(self, problem: Problem, backend: Backend, baseline: str) -> list[tuple[str, Choice]]:
        """The latest evaluation id and speed of each kernel timed on this machine for the problem's current text.

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
        """The change where a move gained most, as a unified diff cut to :data:`DIFF_CHARACTERS`."""
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
    """An insight and the other problem that it is from (``elsewhere``; empty for the same problem)."""

    insight: Insight
    elsewhere: str
    closeness: float


class ProblemMemory:
    """The knowledge about one problem: moves for its search and its prompts, and insights."""

    def __init__(self, run: RunMemory, problem: Problem, *, moves: int, insights: int) -> None:
        self._run = run
        self._problem = problem
        self._operators = operators_of(problem.source)
        self._moves = moves
        self._most_insights = insights
        self._by_bound: dict[tuple[Backend, str], list[MeasuredMove]] = {}

    def transfers(self, coder: Coder, attempt: Attempt) -> list[dict[str, Any]]:
        """Moves to try on a kernel, the best first. The offline Coder gets only moves that fit its schedule."""
        told = isinstance(coder, ModelRole)
        moves = self._near(attempt.candidate.backend, _bound_of(attempt))
        fitting = [move for move in moves if told or _fits(move, attempt.action.get("schedule"))]
        return [self._transfer(move, told) for move in fitting[:MOST_TRANSFERS]]

    def ranks(self, candidate: Candidate) -> Rank | None:
        """A function that predicts the worth of knob settings of a kernel, or None.

        It is None unless the cost model orders kernels of held-out problems better than chance.
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
        """Insights on similar problems, of kernels with the same bound or with a tag that came up on this problem."""
        found = []
        for one, operators in self._run.insights(backend):
            same = one.insight.tag in tags or (one.bound == bound and bound != "unknown")
            near = closeness(self._operators, bound, operators, one.bound)
            if one.problem != self._problem.id and same and near > 0.0:
                found.append(_Said(one.insight, one.problem, near))
        return found


def _insights_on(attempt: Attempt, backend: Backend) -> tuple[Insight, ...]:
    """The insights of an attempt's advice; none if the attempt is in another language."""
    return attempt.advice.insights if attempt.advice and attempt.candidate.backend == backend else ()


def _ranked(said: Sequence[_Said]) -> list[_Said]:
    """Insights without repetition, the most severe first, then those of the most similar problem."""
    ranked = sorted(said, key=lambda one: (SEVERITIES.index(one.insight.severity), -round(one.closeness, 1)))
    return list({(one.insight.tag, one.insight.text.casefold()): one for one in reversed(ranked)}.values())[::-1]


def _said_line(one: _Said) -> str:
    where = f" (on {one.elsewhere})" if one.elsewhere else ""
    found = one.insight
    return f"{found.severity} {found.type} [{found.tag}]{where}: {found.text}"


def _fits(move: MeasuredMove, schedule: Any) -> bool:
    """Whether a schedule has the values from which the move was measured."""
    if not move.change or not isinstance(schedule, Mapping):
        return False
    return all(knob in schedule and schedule[knob] == move.before.get(knob) for knob in move.change)


def _line(move: MeasuredMove) -> str:
    """A move and its measured outcome on one line."""
    return f"{move.told}: {move.outcome()}"


def _bound(context: StepContext) -> str:
    """The bound of the first parent kernel, or of the best kernel if there is no parent."""
    parents = context.assignment.parents
    first = next((a for a in context.attempts if parents and a.candidate.sha256 == parents[0]), None)
    chosen = first or best_attempt(context.in_language(context.backend).attempts, context.baseline)
    return "unknown" if chosen is None else _bound_of(chosen)


def _bound_of(attempt: Attempt) -> str:
    return "unknown" if attempt.verdict.profile is None else attempt.verdict.profile.bound
