"""The learned cost model of a run, trained on the verdicts that this store held for this machine before it began."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kernelwright.campaign.tune_results import CostModelUse
from kernelwright.evolution import Example, Learned, features_of, learn, static_metrics
from kernelwright.records import Backend, Candidate, Problem

if TYPE_CHECKING:
    from kernelwright.store import Store

LATEST = 1000  # number of evaluations to read, which takes a second
BASELINE = "eager"  # it always runs, since timed outputs are compared with its outputs


class Costs(NamedTuple):
    """Two cost models: ``before`` uses what is known before a kernel is built, ``after`` also its machine code."""

    before: Learned
    after: Learned

    @property
    def use(self) -> CostModelUse:
        """The summary for a result, of the model that orders settings before they are built."""
        learned = self.before
        return CostModelUse(
            used=learned.model is not None,
            rank_correlation=learned.rank_correlation,
            kernels=learned.kernels,
            problems=learned.problems,
            reason=learned.reason,
        )

    def expected(self, problem: Problem, candidates: Sequence[Candidate]) -> list[float]:
        """The expected log speedups of candidates before they are built; all equal without a model."""
        return _predicted(self.before, problem, candidates, {})

    def expected_built(
        self, problem: Problem, candidates: Sequence[Candidate], metrics: Mapping[str, Mapping[str, float]]
    ) -> list[float]:
        """The expected log speedups of built candidates; ``metrics`` are figures of machine code by candidate hash."""
        return _predicted(self.after, problem, candidates, metrics)


def learned_costs(store: Store, backend: Backend, environment: str, before: str) -> Costs:
    """Learn from all verdicts of one environment that were recorded before the id ``before``, in any run."""
    examples = _examples(store, backend, environment, before)
    return Costs(learn(examples, "before"), learn(examples, "after"))


def _examples(store: Store, backend: Backend, environment: str, before: str) -> list[Example]:
    """One example for each timed kernel, with the mean of its measurements."""
    rows = store.evaluations(
        environment=environment, control=False, passed=True, before=before, newest_first=True, limit=LATEST
    )
    problems: dict[str, Problem] = {}
    measured: dict[tuple[str, str], tuple[dict[str, float], list[float]]] = {}
    for row in rows:
        speedup = row.verdict.speedup(BASELINE)
        candidate = row.candidate
        if speedup is None or candidate.backend != backend or row.quarantined is not None:
            continue
        if candidate.problem_id not in problems:
            problems[candidate.problem_id] = store.problem(candidate.problem_id)
        key = (candidate.problem_id, candidate.sha256)
        if key not in measured:
            metrics = static_metrics(row.verdict.profile)
            measured[key] = features_of(problems[candidate.problem_id], candidate, row.action, metrics), []
        measured[key][1].append(math.log(max(speedup.median, 1e-9)))
    return [Example(key[0], features, sum(logs) / len(logs)) for key, (features, logs) in sorted(measured.items())]


def _predicted(
    learned: Learned, problem: Problem, candidates: Sequence[Candidate], metrics: Mapping[str, Mapping[str, float]]
) -> list[float]:
    if learned.model is None:
        return [0.0] * len(candidates)
    return learned.model.predict(
        [features_of(problem, candidate, {}, metrics.get(candidate.sha256)) for candidate in candidates]
    )
