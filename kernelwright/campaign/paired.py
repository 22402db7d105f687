"""Confidence intervals of means over problems, and of the ratio of two such means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

from kernelwright.records import Interval, Record

LEAST_PROBLEMS = 3  # below it, a bootstrap over problems says nothing
_RESAMPLES = 5000
_AT_ONCE = 500  # resamples at once, to bound the memory; divides _RESAMPLES
_SEED = 20151124
_TO_DEVIATIONS = 1 / (2 * 1.96)  # half of a 95% interval's length is 1.96 deviations


class Mean(Record):
    """A geometric mean with its 95% interval; the ends are None if there are too few problems for an interval."""

    value: float
    low: float | None = None
    high: float | None = None


class Measured(NamedTuple):
    """The log of a speedup, and the standard deviation of its measurement."""

    value: float
    deviation: float = 0.0

    @classmethod
    def of(cls, speedup: Interval) -> Measured:
        """From a ratio of times with its 95% interval."""
        low, high = max(speedup.low, 1e-9), min(speedup.high, 1e9)
        return cls(math.log(max(speedup.median, 1e-9)), max(math.log(high) - math.log(low), 0.0) * _TO_DEVIATIONS)


class Paired(NamedTuple):
    """The means of two runs over the same problems, and the mean of the ratios problem by problem."""

    a: Mean
    b: Mean
    ratio: Mean


def paired_means(a: Sequence[Measured], b: Sequence[Measured]) -> Paired:
    """Geometric means over common problems with 95% intervals, paired: both runs use the same resampled problems.

    A bootstrap in two stages, as A. C. Davison and D. V. Hinkley describe for hierarchical data ("Bootstrap methods and
    their application", 1997, section 3.8), and T. Kalibera and R. Jones for ratios of times ("Quantifying performance
    changes with effect size confidence intervals", technical report 4-12, University of Kent, 2012): problems are drawn
    with replacement, and then for each drawn problem a measurement, normal in the log with the deviation of its own
    confirmation interval. Measurements are noisy already, so this counts their noise twice. If that noise dominates,
    the interval is too wide rather than too narrow.

    Percentiles of a bootstrap are too narrow for few problems. Their levels are therefore expanded to those of a
    t-interval, and each end is no nearer than that of a t-interval with the bootstrap's standard error, both after
    T. C. Hesterberg ("What teachers should know about the bootstrap", The American Statistician 69, 2015,
    arXiv:1411.5279). The draws are seeded: the same numbers have the same interval.

    Args:
        a, b: measurements of the same problems in the same order; a problem without a kernel has the value 0.

    Raises:
        ValueError: no problems, or different numbers of them.
    """
    import numpy as np

    if not a or len(a) != len(b):
        raise ValueError("two runs are paired over the same problems, one at least")
    values = np.array([[m.value for m in side] for side in (a, b)])
    centres = [float(row.mean()) for row in values]
    points = (*centres, centres[0] - centres[1])
    count = len(a)
    if count < LEAST_PROBLEMS:
        return Paired(*(Mean(value=math.exp(point)) for point in points))
    deviations = np.array([[m.deviation for m in side] for side in (a, b)])
    rng = np.random.default_rng(_SEED)
    means = np.empty((2, _RESAMPLES))
    for start in range(0, _RESAMPLES, _AT_ONCE):
        drawn = rng.integers(count, size=(_AT_ONCE, count))
        noise = rng.standard_normal((2, _AT_ONCE, count))
        means[:, start : start + _AT_ONCE] = (values[:, drawn] + deviations[:, drawn] * noise).mean(axis=2)
    return Paired(*(_mean(p, d, count) for p, d in zip(points, (*means, means[0] - means[1]), strict=True)))


def _mean(point: float, draws: Sequence[float], count: int) -> Mean:
    """The interval of one quantity from its bootstrap distribution."""
    import numpy as np
    from scipy.special import stdtrit

    reach = float(stdtrit(count - 1, 0.975)) * math.sqrt(count / (count - 1))
    level = NormalDist().cdf(-reach)
    low, high = (float(end) for end in np.quantile(draws, (level, 1 - level)))
    deviation = float(np.std(draws))
    low, high = min(low, point - reach * deviation), max(high, point + reach * deviation)
    return Mean(value=math.exp(point), low=math.exp(low), high=math.exp(high))
