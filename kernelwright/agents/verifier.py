"""The Verifier: says before hardware is spent how a candidate will fare, and is believed only as far as it was right.

At first every candidate is judged whatever the Verifier says, so that its word can be held against verdicts. Then
those that it expects to fail are passed over, but for one in a few, which keeps the measurement alive. Where its word
proves worth too little, it is asked no more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from kernelwright.agents.model_roles import ModelRole
from kernelwright.agents.replies import Prediction
from kernelwright.agents.roles import RoleFailed, StepContext
from kernelwright.prompts import KernelView
from kernelwright.records import Candidate, Record, Status, sha256_text

PROBATION = 12  # verdicts before its word decides anything
LEAST_PRECISION = 0.6  # that the lower bound must reach
LEAST_RECALL = 0.2  # of failures foreseen; below, asking costs more than it saves
CONFIDENT = 0.7
JUDGED_NEVERTHELESS = 5  # one in so many of those that would be passed over
_Z90 = 1.2816  # of the one-sided bound

Standing = Literal["on probation", "believed", "switched off"]


class Forecast(Record):
    """What a Verifier said of a candidate in a round, and whether the candidate was not judged for it."""

    round: int
    candidate: str
    verifier: str
    outcome: Literal["passes", "build-failure", "runtime-failure", "numerical-failure"]
    confidence: float
    reason: str
    passed_over: bool

    @property
    def fails(self) -> bool:
        """Whether it said so with confidence."""
        return self.outcome != "passes" and self.confidence >= CONFIDENT


class Past(NamedTuple):
    """A forecast held against the verdict on the same candidate; ``failed`` is None where there is none."""

    foreseen: bool
    failed: bool | None


class TrackRecord(Record):
    """How right a Verifier was in a run.

    Attributes:
        judged: forecasts with a verdict. ``passed_over``: those without one for what was forecast.
        precision: of the failures foreseen, the share that failed; None while none was judged.
        precision_low: Wilson's lower bound of it, one-sided at 90%.
        recall: of the failures, the share that was foreseen; None while nothing failed.
    """

    judged: int
    passed_over: int
    precision: float | None
    precision_low: float
    recall: float | None
    standing: Standing


class Verifier(Protocol):
    """Predicts verdicts from the source alone."""

    name: str

    def predict(self, context: StepContext, candidate: Candidate) -> Prediction | None:
        """How the candidate will fare; None where there is no answer that can be used."""
        ...


class ModelVerifier(ModelRole):
    """A language model in this role."""

    role = "verifier"

    def predict(self, context: StepContext, candidate: Candidate) -> Prediction | None:
        """How the candidate will fare; None where there is no answer that can be used."""
        try:
            prediction: Prediction = self._ask(
                context,
                "verifier",
                {"kernel": KernelView.of(candidate)},
                sample=context.assignment.sample,
                check=lambda value: "" if 0 <= value.confidence <= 1 else "confidence lies between 0 and 1",
            ).value
        except RoleFailed:
            return None
        return prediction


def foretold(status: Status) -> bool | None:
    """Whether a verdict is a failure of the kinds that are predicted; None where it speaks neither for nor against.

    What could not be checked was neither right nor wrong, and a refusal for cheating is no defect.
    """
    if status is Status.PASSED:
        return False
    return True if status in _FAILURES else None


_FAILURES = frozenset(
    {
        Status.COMPILE_ERROR,
        Status.RUNTIME_ERROR,
        Status.TIMEOUT,
        Status.INCORRECT_SHAPE,
        Status.INCORRECT_DTYPE,
        Status.INCORRECT_NUMERICAL,
    }
)


def track_record(past: Sequence[Past]) -> TrackRecord:
    """What forecasts were worth so far; the lower bound of the precision is Wilson's (1927)."""
    judged = [one for one in past if one.failed is not None]
    foreseen = [one for one in judged if one.foreseen]
    failed = [one for one in judged if one.failed]
    right = sum(bool(one.failed) for one in foreseen)
    low = _wilson_low(right, len(foreseen))
    recall = right / len(failed) if failed else None
    standing: Standing = "on probation"
    if len(judged) >= PROBATION:
        pays = low >= LEAST_PRECISION and (recall or 0.0) >= LEAST_RECALL
        standing = "believed" if pays else "switched off"
    return TrackRecord(
        judged=len(judged),
        passed_over=sum(one.foreseen and one.failed is None for one in past),
        precision=right / len(foreseen) if foreseen else None,
        precision_low=low,
        recall=recall,
        standing=standing,
    )


def _wilson_low(right: int, of: int) -> float:
    if not of:
        return 0.0
    share, z2 = right / of, _Z90**2
    spread = _Z90 * math.sqrt(share * (1 - share) / of + z2 / (4 * of**2))
    return (share + z2 / (2 * of) - spread) / (1 + z2 / of)


def passes_over(prediction: Prediction, standing: Standing, candidate: Candidate) -> bool:
    """Whether a candidate is not judged for what was predicted of it."""
    if standing != "believed" or prediction.outcome == "passes" or prediction.confidence < CONFIDENT:
        return False
    return int(sha256_text(candidate.sha256)[:8], 16) % JUDGED_NEVERTHELESS != 0
