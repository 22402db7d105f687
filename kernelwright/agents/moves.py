"""Single changes of a schedule, ranked by the kernel's bound and by the effects of earlier changes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from kernelwright.agents._roofline import Bound
from kernelwright.agents.blueprint import Schedule
from kernelwright.agents.roles import Attempt
from kernelwright.records import KnobValue

KnobKind = Literal["product", "tile", "vector", "schedule", "block", "fusion", "accuracy"]

# The first word that occurs in a knob's name decides.
KNOB_WORDS: tuple[tuple[str, KnobKind], ...] = (
    ("math", "accuracy"),
    ("fus", "fusion"),
    ("gemm", "product"),
    ("conv", "product"),
    ("attention", "product"),
    ("tile", "tile"),
    ("vec", "vector"),
    ("unroll", "vector"),
    ("block", "block"),
    ("group", "block"),
)

# How promising a kind of change is before anything is measured. The generator starts fully fused, so fusing less
# comes late: it pays only where a fused loop spills registers or keeps the compiler from vectorising.
PROMISE: Mapping[Bound, Mapping[KnobKind, float]] = {
    "memory": {"schedule": 5, "product": 4.5, "vector": 4, "block": 3.5, "tile": 3, "fusion": 2, "accuracy": 1},
    "compute": {"product": 5, "tile": 4.5, "vector": 4, "accuracy": 3.5, "schedule": 3, "block": 2, "fusion": 1.5},
    "latency": {"product": 5, "schedule": 4, "vector": 3, "fusion": 2.5, "tile": 2, "block": 1.5, "accuracy": 1},
    "unknown": {"product": 5, "schedule": 4, "vector": 3.5, "tile": 3, "block": 2.5, "fusion": 2, "accuracy": 1},
}

EFFECT_WEIGHT = 20.0  # one point for every 5% that the same knob gained or lost before
MOST_CHOICES = 4  # choices that one move changes: with more it is another kernel and says nothing about any choice
UNTIMED_EFFECT = 0.02  # log-ratio of a change that only the compiler's evidence calls better or worse
FAILURE_PENALTY = 10.0  # for a value that broke the kernel
FAILURE_SUSPICION = 2.0  # for other values of that knob


class Move(NamedTuple):
    """Set one knob to a value."""

    knob: str
    value: KnobValue
    kind: KnobKind
    score: float

    def apply(self, schedule: Mapping[str, KnobValue]) -> Schedule:
        """The schedule with this change made."""
        return {**schedule, self.knob: self.value}


class Effect(NamedTuple):
    """The effect of a change of one knob: log of the speedup over its base; None if the candidate failed.

    If nothing was timed, it is a small number whose sign comes from the compiler's evidence.
    """

    knob: str
    before: KnobValue | None
    value: KnobValue
    log_ratio: float | None


def knob_kind(name: str) -> KnobKind:
    """The kind of a knob, by its name."""
    lowered = name.lower()
    return next((kind for word, kind in KNOB_WORDS if word in lowered), "schedule")


def effects(attempts: Sequence[Attempt], baseline: str) -> list[Effect]:
    """The measured effect of every single change tried so far.

    If the two kernels were timed beside each other, that ratio counts. Otherwise both speedups were measured against
    the same baseline, so their ratio compares the kernels.
    """
    by_hash = {attempt.candidate.sha256: attempt for attempt in attempts}
    found = []
    for attempt in attempts:
        change = attempt.action.get("change")
        base = by_hash.get(str(attempt.action.get("base", "")))
        if not change or base is None or attempt.purpose != "search":
            continue
        knob, value = next(iter(change.items()))
        before = (base.action.get("schedule") or {}).get(knob)
        found.append(Effect(knob, before, value, _log_ratio(base, attempt, baseline)))
    return found


def joint_effects(attempts: Sequence[Attempt], baseline: str) -> list[tuple[Mapping[str, KnobValue], float | None]]:
    """Changes of two to four choices at once, and the measured effect of all together; see :func:`effects`."""
    by_hash = {attempt.candidate.sha256: attempt for attempt in attempts}
    found: list[tuple[Mapping[str, KnobValue], float | None]] = []
    for attempt in attempts:
        base = by_hash.get(str(attempt.action.get("base", "")))
        if base is None or attempt.purpose != "search":
            continue
        before, after = (one.action.get("schedule") or {} for one in (base, attempt))
        change = {knob: value for knob, value in after.items() if before.get(knob) != value}
        if before and 2 <= len(change) <= MOST_CHOICES:
            found.append((change, _log_ratio(base, attempt, baseline)))
    return found


def _log_ratio(base: Attempt, changed: Attempt, baseline: str) -> float | None:
    timing = changed.verdict.timing
    if changed.verdict.passed and timing is not None and base.candidate.sha256 in timing.rivals:
        return math.log(timing.rivals[base.candidate.sha256].median)
    before, after = base.verdict.speedup(baseline), changed.verdict.speedup(baseline)
    if changed.verdict.passed and changed.verdict.timing is None and base.verdict.timing is None:
        better, worse = changed.static_score > base.static_score, changed.static_score < base.static_score
        return UNTIMED_EFFECT * (better - worse)
    if not changed.verdict.passed or before is None or after is None:
        return None
    return math.log(after.median / before.median)


def ranked_moves(
    space: Mapping[str, Sequence[KnobValue]],
    schedule: Mapping[str, KnobValue],
    bound: Bound,
    known: Sequence[Effect] = (),
) -> list[Move]:
    """Every single change of ``schedule``, the most promising first; equal ones in the space's order."""
    moves = [
        Move(knob, value, knob_kind(knob), _score(knob, value, distance, bound, known))
        for knob, distance, value in _changes(space, schedule)
    ]
    return sorted(moves, key=lambda move: -move.score)


def _changes(
    space: Mapping[str, Sequence[KnobValue]], schedule: Mapping[str, KnobValue]
) -> Iterator[tuple[str, int, KnobValue]]:
    """Each other value of each knob, with its distance from the present one in the knob's list."""
    for knob, values in space.items():
        here = list(values).index(schedule[knob]) if schedule.get(knob) in values else 0
        for index, value in enumerate(values):
            if value != schedule.get(knob):
                yield knob, abs(index - here), value


def _score(knob: str, value: KnobValue, distance: int, bound: Bound, known: Sequence[Effect]) -> float:
    """Prior promise, less for distant values, plus or minus the effect of the latest change of the same knob.

    Turning a knob back undoes its effect, so the effect then counts with the opposite sign.
    """
    score = PROMISE[bound][knob_kind(knob)] - 0.25 * (distance - 1)
    of_knob = [effect for effect in known if effect.knob == knob]
    for effect in of_knob:
        if effect.log_ratio is None:
            score -= FAILURE_PENALTY if value == effect.value else FAILURE_SUSPICION
    measured = [effect for effect in of_knob if effect.log_ratio is not None]
    if measured and (gain := measured[-1].log_ratio) is not None:
        score += EFFECT_WEIGHT * min(gain, 0.2) * (-1 if value == measured[-1].before else 1)
    return score
