"""Every kernel of a problem that passed, with all of its measurements and the outcomes of its races.

Speedups are kept as logarithms over one baseline. A kernel's standing rests on all of its measurements, including those
beside its challengers. An elite is measured again whenever a kernel challenges it, so a lucky first timing does not
last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

from kernelwright.agents import Attempt
from kernelwright.agents.duplicates import code_size
from kernelwright.evolution._axes import Axis, Value, describe
from kernelwright.records import Backend, Candidate, Interval

Comparison = Literal["better", "worse", "unknown"]

_TO_DEVIATIONS = 1 / (2 * 1.96)  # half of a 95% interval's length is 1.96 deviations
SIMPLIFY = "simplify"
AS_FAST = 0.99  # a kernel that wins by less code surely has at least this share of its parent's speed
PROCESS_DEVIATION = 0.01  # between processes, which the interval of one process misses; measured on two cores


class Measure(NamedTuple):
    """One measurement: the log of a speedup with its 95% interval."""

    value: float
    low: float
    high: float

    @property
    def deviation(self) -> float:
        """Standard deviation, including the variation between processes."""
        within = (self.high - self.low) * _TO_DEVIATIONS
        return math.hypot(within if math.isfinite(within) else 1.0, PROCESS_DEVIATION)

    @property
    def ratio(self) -> Interval:
        """The measurement as a ratio of times."""
        return Interval(median=math.exp(self.value), low=math.exp(self.low), high=math.exp(self.high))

    @classmethod
    def of(cls, speedup: Interval) -> Measure:
        """From a ratio of times."""
        low, high = max(speedup.low, 1e-9), min(speedup.high, 1e9)
        return cls(math.log(max(speedup.median, 1e-9)), math.log(low), math.log(high))

    def minus(self, other: Measure) -> Measure:
        """The difference of two measurements: a speedup minus a ratio to a rival is the rival's speedup."""
        spread = math.hypot(self.high - self.low, other.high - other.low) / 2
        value = self.value - other.value
        return Measure(value, value - spread, value + spread)


def pooled(measures: tuple[Measure, ...]) -> Measure:
    """Combine several measurements of one kernel, weighted by precision. They are assumed to be independent."""
    weights = [1.0 / measure.deviation**2 for measure in measures]
    value = sum(w * measure.value for w, measure in zip(weights, measures, strict=True)) / sum(weights)
    reach = 1.96 / math.sqrt(sum(weights))
    return Measure(value, value - reach, value + reach)


class Member:
    """A kernel that passed.

    Attributes:
        attempt: its first evaluation.
        descriptor: its values on all axes of its backend.
        measures: all measurements of its speedup; empty if it was not timed.
    """

    def __init__(self, attempt: Attempt, descriptor: Mapping[str, Value]) -> None:
        self.attempt = attempt
        self.descriptor = descriptor
        self.measures: tuple[Measure, ...] = ()

    @property
    def candidate(self) -> Candidate:
        """The kernel itself."""
        return self.attempt.candidate

    @property
    def sha256(self) -> str:
        """Its candidate's hash."""
        return self.attempt.candidate.sha256

    @property
    def standing(self) -> Measure | None:
        """Its speedup by all measurements; None if it was not timed."""
        return pooled(self.measures) if self.measures else None

    @property
    def rank(self) -> tuple[float, tuple[float, ...]]:
        """The key that orders members, larger is better: the lower bound, or the compiler's score if untimed."""
        standing = self.standing
        return (standing.low, ()) if standing is not None else (-math.inf, self.attempt.static_score)

    @property
    def level(self) -> tuple[float, tuple[float, ...]]:
        """Like :attr:`rank`, but by the estimate instead of its lower bound."""
        standing = self.standing
        return (standing.value, ()) if standing is not None else (-math.inf, self.attempt.static_score)


class Book:
    """The members of one problem, updated by each evaluation."""

    def __init__(self, baseline: str, axes: Mapping[Backend, tuple[Axis, ...]]) -> None:
        """``axes``: all axes of each backend."""
        self._baseline = baseline
        self._axes = axes
        self._members: dict[str, Member] = {}
        self._races: dict[tuple[str, str], Comparison] = {}  # candidate and rival

    def __contains__(self, sha256: str) -> bool:
        return sha256 in self._members

    def __getitem__(self, sha256: str) -> Member:
        return self._members[sha256]

    @property
    def members(self) -> tuple[Member, ...]:
        """All members, in the order in which they came."""
        return tuple(self._members.values())

    def take(self, attempt: Attempt) -> bool:
        """Record an evaluation; returns whether its kernel is a member now. A member that fails is removed."""
        sha256, verdict = attempt.candidate.sha256, attempt.verdict
        for rival in attempt.rivals:
            self._races[sha256, rival] = self._outcome(attempt, rival)
        if not verdict.passed:
            self._members.pop(sha256, None)
            return False
        if sha256 not in self._members:
            self._members[sha256] = Member(attempt, describe(verdict, self._axes[attempt.candidate.backend]))
        self._measure(attempt)
        return True

    def _outcome(self, attempt: Attempt, rival: str) -> Comparison:
        found = None if attempt.verdict.timing is None else attempt.verdict.timing.rivals.get(rival)
        if not attempt.verdict.passed or found is None:
            return "worse"
        return "better" if found.faster or (found.low >= AS_FAST and self._is_simpler(attempt, rival)) else "worse"

    def _is_simpler(self, attempt: Attempt, rival: str) -> bool:
        """Whether a kernel was requested as a simplification of its rival and has less code."""
        asked = attempt.action.get("assignment") or {}
        if asked.get("mode") != SIMPLIFY or rival not in attempt.candidate.parents or rival not in self._members:
            return False
        return code_size(attempt.candidate) < code_size(self._members[rival].candidate)

    def _measure(self, attempt: Attempt) -> None:
        speedup = attempt.verdict.speedup(self._baseline)
        if speedup is None or attempt.verdict.timing is None:
            return
        own = Measure.of(speedup)
        self._add(attempt.candidate.sha256, own)
        for rival, ratio in attempt.verdict.timing.rivals.items():
            if rival in self._members:
                self._add(rival, own.minus(Measure.of(ratio)))

    def _add(self, sha256: str, measure: Measure) -> None:
        member = self._members[sha256]
        before = member.standing
        regressed = before is not None and measure.high < before.low
        # If a kernel is surely slower now, the machine or its luck has changed, so earlier measurements are dropped.
        member.measures = (measure,) if regressed else (*member.measures, measure)

    def compare(self, challenger: str, incumbent: str) -> Comparison:
        """Whether a kernel may take another kernel's place.

        Between timed kernels only a race gives "better": the challenger is faster, or it was requested as a
        simplification and is as fast with less code. It is "worse" if it lost the race, or if there was no race and its
        measurements are not above the incumbent's, so a race is not worthwhile.
        """
        raced = self._races.get((challenger, incumbent))
        if raced is not None:
            return raced
        ours, theirs = self._members[challenger], self._members[incumbent]
        if ours.standing is None or theirs.standing is None:  # the compiler's score has no noise
            return "better" if ours.rank > theirs.rank else "worse"
        return "unknown" if ours.level > theirs.level else "worse"

    def gain(self, attempt: Attempt, over: str) -> float | None:
        """The measured log-ratio of ``over``'s time to an attempt's, from their race if there was one.

        None if one of them was not timed.
        """
        timing = attempt.verdict.timing
        if timing is not None and over in timing.rivals:
            return math.log(timing.rivals[over].median)
        speedup = attempt.verdict.speedup(self._baseline)
        other = self._members[over].standing if over in self._members else None
        return None if speedup is None or other is None else math.log(speedup.median) - other.value
