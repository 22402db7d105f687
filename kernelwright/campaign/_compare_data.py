"""What a run has for given problems, read from the store for a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kernelwright.campaign._campaign import rows_of
from kernelwright.campaign._paired import Measured
from kernelwright.campaign._results import RunResult
from kernelwright.records import Backend, Speedup, Verdict, timed_together

if TYPE_CHECKING:
    from kernelwright.store import RunRow, Store, StoredEvaluation


class Result(NamedTuple):
    """What one run has for one problem.

    Attributes:
        done: whether the run is through with it; else this is the best of its search so far.
        correct: whether there is a kernel that passed. ``untimed``: there is, and nobody measured its speedup.
        speedup: over the baseline; None where there is no kernel, or no time.
        confirmed: in fresh processes.
        withdrawn: the winner was quarantined after the run.
    """

    row: RunResult
    done: bool
    correct: bool = False
    speedup: Speedup | None = None
    confirmed: bool = False
    withdrawn: bool = False

    @property
    def untimed(self) -> bool:
        """Right, and without a time."""
        return self.correct and self.speedup is None

    @property
    def measured(self) -> Measured:
        """As a mean counts it: no kernel leaves the reference as it is."""
        return Measured(0.0) if self.speedup is None else Measured.of(self.speedup)


class RunData(NamedTuple):
    """A run with its evaluations and its result for each of the common problems, in their order.

    Attributes:
        searched: evaluations of the search by problem, in their order.
        confirmations: evaluations of all confirmations.
    """

    row: RunRow
    problems: tuple[str, ...]
    results: tuple[Result, ...]
    searched: Mapping[str, Sequence[StoredEvaluation]]
    confirmations: Sequence[StoredEvaluation]

    @property
    def evaluations(self) -> int:
        """Of the search."""
        return sum(len(judged) for judged in self.searched.values())


def read_run(store: Store, run: RunRow, problems: Sequence[str], baseline: str) -> RunData:
    """What a run has for problems, by their speedup over a baseline."""
    searched: dict[str, list[StoredEvaluation]] = {problem: [] for problem in problems}
    confirmations = []
    for evaluation in store.evaluations(run_id=run.id, control=False, confirmed=False):
        if evaluation.candidate.problem_id in searched:
            searched[evaluation.candidate.problem_id].append(evaluation)
    for evaluation in store.evaluations(run_id=run.id, control=False, confirmed=True):
        if evaluation.candidate.problem_id in searched:
            confirmations.append(evaluation)
    rows = {row.problem: row for row in rows_of(store, run.id)}
    results = []
    for problem in problems:
        kept = [*searched[problem], *(c for c in confirmations if c.candidate.problem_id == problem)]
        best = best_so_far(searched[problem], baseline, run.config.backend)
        results.append(_result(rows[problem], kept, best, baseline))
    return RunData(run, tuple(problems), tuple(results), searched, confirmations)


def _result(row: RunResult, kept: Sequence[StoredEvaluation], best: Sequence[Verdict | None], baseline: str) -> Result:
    if row.state in {"done", "failed"} and not row.retry:
        chosen = next((evaluation for evaluation in kept if evaluation.id == row.evaluation), None)
        if row.candidate is None or (chosen is not None and chosen.quarantined is not None):
            return Result(row, True, withdrawn=row.candidate is not None)
        return Result(row, True, True, row.speedup.get(baseline), row.confirmed)
    found = best[-1] if best else None
    return Result(row, False) if found is None else Result(row, False, True, found.speedup(baseline))


def best_so_far(judged: Sequence[StoredEvaluation], baseline: str, backend: Backend) -> list[Verdict | None]:
    """After each evaluation, the verdict on the kernel of the greatest lower bound; None while none has passed.

    A kernel that was judged several times counts by the last of them; one that was quarantined, or timed elsewhere than
    kernels of ``backend`` are, not at all.
    """
    latest: dict[str, Verdict] = {}
    found: list[Verdict | None] = []
    for evaluation in judged:
        verdict = evaluation.verdict
        latest.pop(verdict.candidate, None)
        competes = verdict.timing is None or timed_together(verdict.backend, backend)
        if verdict.passed and competes and evaluation.quarantined is None:
            latest[verdict.candidate] = verdict
        found.append(max(latest.values(), key=lambda known: _bound(known, baseline), default=None))
    return found


def curve_of(data: RunData, baseline: str) -> tuple[float, ...]:
    """The geometric mean of the best so far after 1, 2, 3... evaluations of each problem; without a kernel it is 1."""
    from kernelwright.evaluator import geometric_mean

    backend = data.row.config.backend
    lines = [best_so_far(data.searched[problem], baseline, backend) for problem in data.problems]
    length = max((len(line) for line in lines), default=0)
    return tuple(
        geometric_mean([_ratio(line[min(place, len(line) - 1)] if line else None, baseline) for line in lines])
        for place in range(length)
    )


def _bound(verdict: Verdict, baseline: str) -> float:
    speedup = verdict.speedup(baseline)
    return speedup.low if speedup else 0.0


def _ratio(verdict: Verdict | None, baseline: str) -> float:
    speedup = None if verdict is None else verdict.speedup(baseline)
    return speedup.median if speedup else 1.0
