"""A Gaussian process over judged schedules, which predicts the worth of schedules that were not judged.

Schedules with the same choices are similar, and some choices matter more than others: the covariance falls
exponentially with the sum of the distances between two schedules in each choice. The search uses the expected
improvement over the best schedule (Mockus, "On Bayesian methods for seeking the extremum", 1975; Jones, Schonlau and
Welch, J. Global Optimization 13, 1998).

The constants are rounded maximum-likelihood estimates from measured spaces of C++ kernels (benchmarks/search_fit.py).
They are averages over problems; the search finds the worth of a choice on this problem and machine. Spaces of other
languages were not measured, so all of their choices count the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kernelwright.agents.blueprint import Schedule
from kernelwright.agents.roles import Attempt, Duplicate
from kernelwright.records import KnobValue

if TYPE_CHECKING:
    import numpy as np

SPREAD = 0.185  # deviation of log speedups over a space
NOISE = 0.04  # deviation of one measurement and of effects outside the model
FAILED = 0.5  # log-ratio by which a failed schedule counts as slower than the slowest


class Trait(NamedTuple):
    """The prior of a choice, before anything is measured.

    Attributes:
        weight: how much the choice matters: schedules that differ fully in it have a correlation of exp(-weight).
        distance: expected fall of the log speedup if a number lies as far as possible from the default.
        departures: expected fall of the log speedup for a value that is not the default.
    """

    weight: float
    distance: float = 0.0
    departures: Mapping[KnobValue, float] = {}


UNKNOWN = Trait(0.5)  # for a choice with too few measurements
CPP_TRAITS: Mapping[str, Trait] = {
    "fusion": Trait(0.75, departures={"none": 0.23}),
    "gemm": Trait(0.4, departures={"library": 0.09}),
    "conv": Trait(0.8, departures={"library": 0.2}),
    "scratch": Trait(0.63, departures={"recompute": 0.13}),
    "tile": Trait(0.19, departures={"12x2": 0.04, "14x2": 0.07}),
    "VECTOR_BITS": Trait(0.4),
    "UNROLL": Trait(0.1),
    "BLOCK": Trait(0.36, 0.045),
    "GROUP_KB": Trait(0.14),
    "reciprocal_math": Trait(0.17),
}


class Observation(NamedTuple):
    """A schedule and the log of its speedup; None if it failed."""

    schedule: Schedule
    value: float | None


def observations(
    attempts: Sequence[Attempt], duplicates: Sequence[Duplicate], default: Schedule, baseline: str
) -> list[Observation]:
    """One observation for each kernel with a schedule, with the mean of its measurements.

    A duplicate has the value of the kernel that it repeats. The list is empty if nothing was timed.
    """
    schedules: dict[str, Schedule] = {}
    values: dict[str, list[float | None]] = {}
    for attempt in attempts:
        if attempt.action.get("schedule") is not None:
            sha256 = attempt.candidate.sha256
            schedules.setdefault(sha256, {**default, **attempt.action["schedule"]})
            values.setdefault(sha256, []).append(_value(attempt, baseline))
    means = {sha256: _mean(found) for sha256, found in values.items()}
    if all(value is None for value in means.values()):
        return []
    found = [Observation(schedules[sha256], value) for sha256, value in means.items()]
    again = [d for d in duplicates if d.action.get("schedule") is not None and d.twin in means]
    return found + [Observation({**default, **d.action["schedule"]}, means[d.twin]) for d in again]


def _value(attempt: Attempt, baseline: str) -> float | None:
    speedup = attempt.verdict.speedup(baseline) if attempt.verdict.passed else None
    return None if speedup is None else math.log(max(speedup.median, 1e-9))


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean of a kernel's values; None if one of its evaluations failed."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


class _Column(NamedTuple):
    """A coordinate of the model: a choice, or one of the numbers in its values ("8x3" has two)."""

    knob: str
    number: bool
    weight: float
    places: Mapping[str, float]  # by the value's repr


def _columns_of(knob: str, values: Sequence[KnobValue]) -> list[_Column]:
    parts = [_numbers_in(value) for value in values]
    if not parts[0] or len({len(numbers) for numbers in parts}) > 1:
        return [_Column(knob, False, 1.0, {repr(value): float(place) for place, value in enumerate(values)})]
    columns = []
    for numbers in zip(*parts, strict=True):
        ordered = sorted(set(numbers))
        most = max(len(ordered) - 1, 1)
        places = {repr(value): ordered.index(n) / most for value, n in zip(values, numbers, strict=True)}
        columns.append(_Column(knob, True, 1.0 / len(parts[0]), places))
    return columns


def _numbers_in(value: KnobValue) -> tuple[int, ...]:
    """The numbers in a value: one for an integer, several for text like "8x3", none for other values."""
    if type(value) is int:
        return (value,)
    if isinstance(value, str) and re.fullmatch(r"\d+(x\d+)*", value):
        return tuple(int(number) for number in value.split("x"))
    return ()


class ScheduleModel:
    """Predictions for a problem's schedules.

    Args:
        space: the values of each choice, the default first. Near numbers are similar, and so are values that consist
            of near numbers (tiles, "8x3").
        default: the schedule from which departures are counted.
        observed: the judged schedules; at least one has a value.
        traits: the priors of choices; a choice without one gets :data:`UNKNOWN`.

    Attributes:
        best: the observed schedule with the highest value.
    """

    def __init__(
        self,
        space: Mapping[str, Sequence[KnobValue]],
        default: Schedule,
        observed: Sequence[Observation],
        traits: Mapping[str, Trait],
    ) -> None:
        import numpy as np

        chosen = {knob: list(values) for knob, values in space.items() if len(values) > 1}
        self._traits = {knob: traits.get(knob, UNKNOWN) for knob in chosen}
        self._columns = [column for knob, values in chosen.items() for column in _columns_of(knob, values)]
        self._numbers = np.array([column.number for column in self._columns], dtype=bool)
        weights = [[column.weight * (column.knob == knob) for knob in chosen] for column in self._columns]
        self._weights = np.array(weights, dtype=float).reshape(len(self._columns), len(chosen))
        self._default = default
        self._seen = {self._key(seen.schedule) for seen in observed}
        schedules = [seen.schedule for seen in observed]
        self._points = self._coded(schedules)
        expected = self._departures(schedules, self._points)
        known = [seen.value for seen in observed if seen.value is not None]
        worst = min(known) - FAILED
        values = np.array([worst if seen.value is None else seen.value for seen in observed])
        self.best, self._best = max(
            ((seen.schedule, seen.value) for seen in observed if seen.value is not None), key=lambda pair: pair[1]
        )
        first = next(place for place, seen in enumerate(observed) if seen.value is not None)
        self._level = values[first] + expected[first]
        covariance = self._likeness(self._points, self._points) + NOISE**2 * np.eye(len(observed))
        self._inverse = np.linalg.inv(covariance)
        self._pull = self._inverse @ (values - (self._level - expected))

    def _coded(self, schedules: Sequence[Schedule]) -> np.ndarray:
        """(schedules, columns): the place of each value, from 0 to 1 for numbers in their order."""
        import numpy as np

        found = [
            [column.places.get(repr(schedule.get(column.knob)), -1.0) for schedule in schedules]
            for column in self._columns
        ]
        return np.array(found, dtype=float).reshape(len(self._columns), len(schedules)).T

    def _apart(self, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        """(ours, theirs, choices): 0 for equal values, 1 for fully different ones."""
        import numpy as np

        gap = np.abs(ours[:, None, :] - theirs[None, :, :])
        differ = (gap > 0).astype(float)
        return np.asarray(np.where(self._numbers, 0.5 * differ + 0.5 * np.minimum(gap, 1.0), differ) @ self._weights)

    def _likeness(self, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        import numpy as np

        weights = np.array([trait.weight for trait in self._traits.values()])
        return np.asarray(SPREAD**2 * np.exp(-(self._apart(ours, theirs) @ weights)))

    def _departures(self, schedules: Sequence[Schedule], points: np.ndarray) -> np.ndarray:
        """(schedules): the prior log-ratio by which each is expected to be slower than the default."""
        import numpy as np

        apart = self._apart(points, self._coded([self._default]))[:, 0, :]
        found = [
            sum(
                gap * trait.distance + trait.departures.get(schedule.get(knob, ""), 0.0)
                for (knob, trait), gap in zip(self._traits.items(), gaps, strict=True)
                if gap
            )
            for schedule, gaps in zip(schedules, apart, strict=True)
        ]
        return np.array(found, dtype=float)

    def _key(self, schedule: Schedule) -> tuple[str, ...]:
        return tuple(repr(schedule.get(knob)) for knob in self._traits)

    def unknown(self, schedules: Iterable[Schedule]) -> list[int]:
        """Indices of the schedules that were not observed; repeated schedules are listed once."""
        places: dict[tuple[str, ...], int] = {}
        for place, schedule in enumerate(schedules):
            places.setdefault(self._key(schedule), place)
        return [place for key, place in places.items() if key not in self._seen]

    def improvements(self, schedules: Sequence[Schedule]) -> list[float]:
        """The expected improvement of each schedule over the best log speedup so far."""
        import numpy as np

        points = self._coded(schedules)
        likeness = self._likeness(points, self._points)
        mean = self._level - self._departures(schedules, points) + likeness @ self._pull
        variance = SPREAD**2 - ((likeness @ self._inverse) * likeness).sum(axis=1)
        deviation = np.sqrt(np.maximum(variance, 1e-9))
        return [
            float(above * _below(above / spread) + spread * _density(above / spread))
            for above, spread in zip(mean - self._best, deviation, strict=True)
        ]


def _below(z: float) -> float:
    """Share of a standard normal distribution below z."""
    return 0.5 * (1.0 + math.erf(z / math.sqrt(2.0)))


def _density(z: float) -> float:
    return math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
