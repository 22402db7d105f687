"""The Verifier: predicts verdicts before hardware is spent on candidates, and is trusted only if its record is good.

At first every candidate is judged in any case, so that forecasts can be compared with verdicts. Later, candidates that
it expects to fail are passed over, except for one in five, which keeps its record up to date. If its forecasts are
worth too little, it is switched off.
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

PROBATION = 12  # verdicts before its forecasts have an effect
LEAST_PRECISION = 0.6  # least lower bound of the precision
LEAST_RECALL = 0.2  # least share of failures foreseen; below it, asking costs more than it saves
CONFIDENT = 0.7
JUDGED_NEVERTHELESS = 5  # one in this many of the candidates to pass over is judged all the same
_Z90 = 1.2816  # normal quantile of the one-sided 90% bound

Standing = Literal["on probation", "believed", "switched off"]


class Forecast(Record):
    """A Verifier's forecast for a candidate in a round; ``passed_over``: the candidate was not judged because of it."""

    round: int
    candidate: str
    verifier: str
    outcome: Literal["passes", "build-failure", "runtime-failure", "numerical-failure"]
    confidence: float
    reason: str
    passed_over: bool

    @property
    def fails(self) -> bool:
        """Whether it predicts a failure with confidence."""
        return self.outcome != "passes" and self.confidence >= CONFIDENT


class Past(NamedTuple):
    """A forecast and the verdict on the same candidate; ``failed`` is None without a verdict."""

    foreseen: bool
    failed: bool | None


class TrackRecord(Record):
    """How often a Verifier was right in a run.

    Attributes:
        judged: number of forecasts with a verdict. ``passed_over``: number of candidates not judged because of one.
        precision: share of the foreseen failures that failed; None while none was judged.
        precision_low: Wilson's lower bound of the precision, one-sided at 90%.
        recall: share of the failures that was foreseen; None while nothing failed.
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
        """The predicted outcome for a candidate; None if there is no usable answer."""
        ...


class ModelVerifier(ModelRole):
    """A language model in this role."""

    role = "verifier"

    def predict(self, context: StepContext, candidate: Candidate) -> Prediction | None:
        """The predicted outcome for a candidate; None if there is no usable answer."""
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
    """Whether a verdict is a failure of the predicted kinds; None if it counts neither for nor against a forecast.

    A candidate that could not be checked was neither right nor wrong, and a refusal for cheating is not such a failure.
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
    """The track record of forecasts so far; the lower bound of the precision is Wilson's (1927)."""
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
    """Whether a candidate is not judged because of its prediction."""
    if standing != "believed" or prediction.outcome == "passes" or prediction.confidence < CONFIDENT:
        return False
    return int(sha256_text(candidate.sha256)[:8], 16) % JUDGED_NEVERTHELESS != 0
