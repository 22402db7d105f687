"""A run's results for given problems, read from the store for a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelwright.campaign._results import RunResult
from kernelwright.campaign.paired import Measured
from kernelwright.campaign.runs import rows_of
from kernelwright.records import Backend, Speedup
from kernelwright.records.base import timed_together

if TYPE_CHECKING:
    from kernelwright.store import RunRow, Store


class Result(NamedTuple):
    """One run's result for one problem.

    Attributes:
        done: whether the run has finished the problem. If not, this is the best result of its search so far.
        correct: whether a kernel passed. ``untimed``: a kernel passed, but its speedup was not measured.
        speedup: over the baseline; None without a kernel or without a time.
        confirmed: whether the speedup was measured in fresh processes.
        withdrawn: whether the winner was quarantined after the run.
    """

    row: RunResult
    done: bool
    correct: bool = False
    speedup: Speedup | None = None
    confirmed: bool = False
    withdrawn: bool = False

    @property
    def untimed(self) -> bool:
        """Whether the kernel is correct but has no time."""
        return self.correct and self.speedup is None

    @property
    def measured(self) -> Measured:
        """The speedup as a mean counts it. Without a kernel the reference stays, so the log is 0."""
        return Measured(0.0) if self.speedup is None else Measured.of(self.speedup)


class Judged(NamedTuple):
    """The fields of an evaluation that a comparison uses; ``seconds`` is the referee's time."""

    id: str
    problem: str
    candidate: str
    backend: Backend
    environment: str
    passed: bool
    timed: bool
    speedup: Speedup | None
    withdrawn: bool
    is_confirmation: bool
    seconds: float


class RunData(NamedTuple):
    """A run with its evaluations and one result for each common problem, in the order of ``problems``.

    Attributes:
        searched: evaluations of the search by problem, in the order in which they were made.
        confirmations: all evaluations that are confirmations.
    """

    row: RunRow
    problems: tuple[str, ...]
    results: tuple[Result, ...]
    searched: Mapping[str, Sequence[Judged]]
    confirmations: Sequence[Judged]

    @property
    def evaluations(self) -> int:
        """The number of evaluations of the search."""
        return sum(len(judged) for judged in self.searched.values())

    @property
    def judged(self) -> list[Judged]:
        """All evaluations."""
        return [*self.confirmations, *(one for problem in self.problems for one in self.searched[problem])]


_JUDGED = """
SELECT evaluations.id, candidates.problem, candidates.sha256 AS candidate, candidates.backend,
    evaluations.environment_id AS environment, evaluations.status = 'PASSED' AS passed,
    evaluations.latency_ms IS NOT NULL AS timed,
    EXISTS (SELECT 1 FROM quarantines WHERE evaluation_id = evaluations.id) AS withdrawn,
    evaluations.confirmed OR evaluations.failed_stage IS 'confirm' AS is_confirmation,
    (SELECT total(value) FROM json_each(evaluations.verdict_json, '$.seconds')) AS seconds,
    speedups.median, speedups.low, speedups.high, speedups.faster
FROM evaluations
JOIN candidates ON candidates.id = evaluations.candidate_id
LEFT JOIN speedups ON speedups.evaluation_id = evaluations.id AND speedups.baseline = ?
WHERE evaluations.run_id = ? AND evaluations.control = 0
ORDER BY evaluations.id
"""


def _judged(row: dict[str, Any]) -> Judged:
    median, speedup = row["median"], None
    if median is not None:
        speedup = Speedup(median=median, low=row["low"], high=row["high"], faster=bool(row["faster"]))
    return Judged(
        row["id"],
        row["problem"],
        row["candidate"],
        row["backend"],
        row["environment"],
        bool(row["passed"]),
        bool(row["timed"]),
        speedup,
        bool(row["withdrawn"]),
        bool(row["is_confirmation"]),
        row["seconds"],
    )


def read_run(store: Store, run: RunRow, problems: Sequence[str], baseline: str) -> RunData:
    """Read a run's evaluations and results for some problems, with speedups over ``baseline``."""
    searched: dict[str, list[Judged]] = {problem: [] for problem in problems}
    confirmations: list[Judged] = []
    for judged in map(_judged, store.query(_JUDGED, [baseline, run.id])):
        if judged.problem in searched:
            (confirmations if judged.is_confirmation else searched[judged.problem]).append(judged)
    rows = {row.problem: row for row in rows_of(store, run.id)}
    results = []
    for problem in problems:
        kept = [*searched[problem], *(c for c in confirmations if c.problem == problem)]
        best = best_so_far(searched[problem], run.config.backend)
        results.append(_result(rows[problem], kept, best, baseline))
    return RunData(run, tuple(problems), tuple(results), searched, confirmations)


def _result(row: RunResult, kept: Sequence[Judged], best: Sequence[Judged | None], baseline: str) -> Result:
    if row.state in {"done", "failed"} and not row.retry:
        chosen = next((evaluation for evaluation in kept if evaluation.id == row.evaluation), None)
        if row.candidate is None or (chosen is not None and chosen.withdrawn):
            return Result(row, True, withdrawn=row.candidate is not None)
        return Result(row, True, True, row.speedup.get(baseline), row.confirmed)
    found = best[-1] if best else None
    return Result(row, False) if found is None else Result(row, False, True, found.speedup)


def best_so_far(judged: Sequence[Judged], backend: Backend) -> list[Judged | None]:
    """After each evaluation, the evaluation whose speedup has the greatest lower bound; None while none has passed.

    A kernel that was judged several times counts by its last evaluation. A kernel does not count if it was quarantined,
    or if its backend is timed on another device than ``backend``.
    """
    latest: dict[str, Judged] = {}
    found: list[Judged | None] = []
    best: Judged | None = None
    for one in judged:
        gone = latest.pop(one.candidate, None)
        competes = not one.timed or timed_together(one.backend, backend)
        if one.passed and competes and not one.withdrawn:
            latest[one.candidate] = one
        if best is not None and gone is best:
            best = max(latest.values(), key=_bound, default=None)
        elif one.candidate in latest and (best is None or _bound(one) > _bound(best)):
            best = one
        found.append(best)
    return found


def curve_of(data: RunData) -> tuple[float, ...]:
    """The geometric mean of the best speedups so far after 1, 2, 3... evaluations; a problem without a kernel has 1."""
    from kernelwright.evaluator import geometric_mean

    lines = [best_so_far(data.searched[problem], data.row.config.backend) for problem in data.problems]
    length = max((len(line) for line in lines), default=0)
    return tuple(
        geometric_mean([_ratio(line[min(place, len(line) - 1)] if line else None) for line in lines])
        for place in range(length)
    )


def _bound(judged: Judged) -> float:
    return judged.speedup.low if judged.speedup else 0.0


def _ratio(judged: Judged | None) -> float:
    return judged.speedup.median if judged is not None and judged.speedup else 1.0
