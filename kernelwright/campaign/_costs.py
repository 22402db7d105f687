"""The learned cost model as a run uses it: trained on what this store knew, on this machine, before the run began."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kernelwright.campaign.tune_results import CostModelUse
from kernelwright.evolution import Example, Learned, features_of, learn, static_metrics
from kernelwright.records import Backend, Candidate, Problem

if TYPE_CHECKING:
    from kernelwright.store import Store

LATEST = 1000  # evaluations that are read: a second's work
BASELINE = "eager"  # it runs in any case, since timed outputs are held against its own


class Costs(NamedTuple):
    """What was learned of kernels by what is known before they are built, and once they are."""

    before: Learned
    after: Learned

    @property
    def use(self) -> CostModelUse:
        """What a result says of it: of the model that orders what is built."""
        learned = self.before
        return CostModelUse(
            used=learned.model is not None,
            rank_correlation=learned.rank_correlation,
            kernels=learned.kernels,
            problems=learned.problems,
            reason=learned.reason,
        )

    def expected(self, problem: Problem, candidates: Sequence[Candidate]) -> list[float]:
        """What candidates are expected to be worth before they are built; all the same without a model."""
        return _predicted(self.before, problem, candidates, {})

    def expected_built(
        self, problem: Problem, candidates: Sequence[Candidate], metrics: Mapping[str, Mapping[str, float]]
    ) -> list[float]:
        """The same once figures of their machine code are known, by their hashes."""
        return _predicted(self.after, problem, candidates, metrics)


def learned_costs(store: Store, backend: Backend, environment: str, before: str) -> Costs:
    """Learn from the verdicts of one environment that were recorded before an id, whichever run they are of."""
    examples = _examples(store, backend, environment, before)
    return Costs(learn(examples, "before"), learn(examples, "after"))


def _examples(store: Store, backend: Backend, environment: str, before: str) -> list[Example]:
    """Timed kernels, each once: the mean of its measurements."""
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
