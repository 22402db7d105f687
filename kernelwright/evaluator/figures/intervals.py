"""Statistics of paired timing: the search interval with planned looks, the confirmation over fresh processes.

Everything works on log-ratios ``log(baseline time / candidate time)``, which are positive if the candidate is faster.
Their exponentials give the intervals of ratios. Standard library and numpy only.

A race of two candidates is instead checked after every pair; its confidence sequence is valid at any stopping time.

Sources: J. L. Hodges and E. L. Lehmann, "Estimates of location based on rank tests", Ann. Math. Statist. 34 (1963),
estimate and interval by inverting Wilcoxon's signed-rank test; C. Stein, "A two-sample test for a linear hypothesis
whose power is independent of the variance", Ann. Math. Statist. 16 (1945), for the second stage of the confirmation;
H. Robbins, "Statistical methods related to the law of the iterated logarithm", Ann. Math. Statist. 41 (1970), and S. R.
Howard, A. Ramdas, "Sequential estimation of quantiles with applications to A/B testing and best-arm identification",
Bernoulli 28 (2022), for the confidence sequence of a median by a mixture of likelihood ratios.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Decision = Literal["faster", "not_faster", "narrow", "exhausted"]

FIRST_PROCESS_PAIRS = 4
MAXIMUM_PROCESS_PAIRS = 20
WINDOW_PAIRS_PER_PROCESS = 12
DEFAULT_NOISE_BOUND = 0.014  # as measured on two cores
# 97.5% quantiles of Student's t with 1 to 19 degrees of freedom
_T_QUANTILES = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930),
)
_OF_ALL = 1.1  # factor on the deviation of all pairs, whose number depends on the deviation of the first ones
_DECIDED = 0.7  # half-width as a share of the distance between the first stage's mean and the noise bound
_WIDEST_BESIDE = 0.15  # the same as _WIDEST, for baselines that do not decide
_WIDEST = 0.05  # half-width that is enough if a claim is clearly decided: a tenth of a ratio from end to end
# What all processes of a program share, and more of them cannot show: two ways to load the same module were 0.1 to 0.4%
# apart, each in hundreds of processes (docs/log.md).
SHARED = 0.002
_EXACT_LIMIT = 200  # beyond it the normal approximation of the signed-rank distribution is good to four digits


class LogInterval(NamedTuple):
    """An estimate and its interval, in log-ratios."""

    estimate: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half of the interval's length; infinite if the interval has no bound yet."""
        return (self.high - self.low) / 2.0

    def ratios(self) -> tuple[float, float, float]:
        """Estimate, low and high as ratios of times."""
        return math.exp(self.estimate), math.exp(self.low), math.exp(self.high) if self.high < 700 else math.inf


# ------------------------------------------------------------------------------------------------ signed ranks


@lru_cache(maxsize=512)
def signed_rank_quantile(n: int, confidence: float) -> int:
    """The largest k with ``P(W <= k - 1) <= (1 - confidence) / 2``, W Wilcoxon's signed-rank sum of n samples; 0: none.

    Exact by dynamic programming over the ranks up to n = 200, else the normal approximation with continuity correction.
    """
    tail = (1.0 - confidence) / 2.0
    if n > _EXACT_LIMIT:
        mean, deviation = n * (n + 1) / 4.0, math.sqrt(n * (n + 1) * (2 * n + 1) / 24.0)
        return max(0, math.floor(mean + NormalDist().inv_cdf(tail) * deviation + 0.5))
    probability = np.zeros(n * (n + 1) // 2 + 1)
    probability[0] = 1.0
    for rank in range(1, n + 1):
        shifted = np.zeros_like(probability)
        shifted[rank:] = probability[:-rank]
        probability = (probability + shifted) / 2.0
    return int(np.searchsorted(np.cumsum(probability), tail, side="right"))


def _walsh_averages(samples: Sequence[float] | FloatArray) -> FloatArray:
    x = np.asarray(samples, dtype=np.float64)
    first, second = np.triu_indices(x.size)
    averages: FloatArray = (x[first] + x[second]) / 2.0
    return averages


def signed_rank_interval(samples: Sequence[float] | FloatArray, confidence: float = 0.95) -> LogInterval:
    """Hodges-Lehmann estimate and its distribution-free interval; unbounded if there are too few samples."""
    if len(samples) == 0:
        return LogInterval(0.0, -math.inf, math.inf)
    averages = np.sort(_walsh_averages(samples))
    estimate = float(np.median(averages))
    k = signed_rank_quantile(len(samples), confidence)
    if k == 0:
        return LogInterval(estimate, -math.inf, math.inf)
    return LogInterval(estimate, float(averages[k - 1]), float(averages[-k]))


# ------------------------------------------------------------------------------------------------------- search


def surely_faster(interval: LogInterval, threshold: float) -> bool:
    """Whether one process pair's interval says "faster": its lower bound clears the threshold and its own half-width.

    On a quiet machine half-widths are mostly below the threshold, so the second condition adds little. On a disturbed
    machine a threshold of some percent lies within the noise. Intervals alone would then pass as many false claims as
    their level admits.
    """
    return interval.low > threshold and interval.low > interval.half_width


class SequentialTest:
    """The search's comparison of one candidate with one baseline, evaluated only after planned numbers of pairs.

    Each look spends a part of the error (98.75% at four looks: at least 95% together). The test ends when the candidate
    is faster (:func:`surely_faster`), when it cannot be faster by more than the noise bound, when the interval is
    narrow enough, or at the last look. The answer is then final. Further pairs, which another baseline may still need,
    do not change it.
    """

    def __init__(
        self,
        *,
        noise_bound: float = DEFAULT_NOISE_BOUND,
        looks: Sequence[int] = (12, 24, 48, 96),
        confidence: float = 0.9875,
        target_half_width: float = 0.02,
    ) -> None:
        self._threshold = math.log1p(noise_bound)
        self._looks = tuple(sorted(looks))
        self._confidence = confidence
        self._target_half_width = target_half_width
        self._samples: list[float] = []
        self._interval = LogInterval(0.0, -math.inf, math.inf)
        self._decision: Decision | None = None

    def add(self, log_ratio: float) -> Decision | None:
        """Add one pair's ``log(baseline / candidate)``; the decision, or None while the test needs more pairs."""
        if self._decision is None:
            self._samples.append(log_ratio)
            if len(self._samples) in self._looks:
                self._look()
        return self._decision

    def _look(self) -> None:
        self._interval = signed_rank_interval(self._samples, self._confidence)
        if self.faster:
            self._decision = "faster"
        elif self._interval.high < self._threshold:
            self._decision = "not_faster"
        elif self._interval.half_width < self._target_half_width:
            self._decision = "narrow"
        elif len(self._samples) >= self._looks[-1]:
            self._decision = "exhausted"

    @property
    def decision(self) -> Decision | None:
        """Why the test ended; None while it needs more pairs."""
        return self._decision

    @property
    def pairs(self) -> int:
        """Number of pairs that the answer uses so far."""
        return len(self._samples)

    @property
    def faster(self) -> bool:
        """The claim: the lower bound clears the noise bound and the interval's own half-width."""
        return surely_faster(self._interval, self._threshold)

    def interval(self) -> LogInterval:
        """The interval at the last look; before the first look, of the pairs so far (unbounded if they are too few)."""
        if self._decision is None and len(self._samples) < self._looks[0]:
            return signed_rank_interval(self._samples, self._confidence)
        return self._interval


# --------------------------------------------------------------------------------------------------------- races

RaceDecision = Literal["faster", "not_faster", "exhausted"]
_RACE_ERROR = 0.05  # over all looks together
_MIXTURE = 0.5  # Krichevsky and Trofimov's: as tight a bound as any for runs of unknown length


@lru_cache(maxsize=2048)
def median_rank(n: int, error: float = _RACE_ERROR) -> int:
    """The smallest k for which the odds of k of n samples above the true median are below ``1 / error``; 0: no bound.

    The odds are ``2^n B(k + a, n - k + a) / B(a, a)``, a = 1/2: a martingale of mean 1 while n grows. By Ville's
    inequality it ever exceeds ``1 / error`` with probability ``error`` at most. The median therefore lies between the
    k-th smallest and the k-th largest sample at all n at once, with probability ``1 - error``.
    """
    limit = math.log(1.0 / error)
    for k in range(n // 2 + 1):
        if _log_odds(n, k) < limit:
            return k
    return n // 2


def _log_odds(n: int, k: int) -> float:
    a = _MIXTURE
    mixed = math.lgamma(k + a) + math.lgamma(n - k + a) - math.lgamma(n + 2 * a)
    return n * math.log(2.0) + mixed - (2 * math.lgamma(a) - math.lgamma(2 * a))


def median_sequence(samples: Sequence[float] | FloatArray, error: float = _RACE_ERROR) -> LogInterval:
    """The median and its interval from a confidence sequence, valid after every sample and at any stopping time.

    The only assumption is that the samples are independent with one median.
    """
    if len(samples) == 0:
        return LogInterval(0.0, -math.inf, math.inf)
    x = np.sort(np.asarray(samples, dtype=np.float64))
    k = median_rank(x.size, error)
    if k == 0:
        return LogInterval(float(np.median(x)), -math.inf, math.inf)
    return LogInterval(float(np.median(x)), float(x[k - 1]), float(x[-k]))


class Race:
    """A race of a candidate against a rival. Pairs are added until it is faster, cannot be faster, or has had all.

    The candidate is faster once the lower bound of the median log-ratio clears the noise bound. It is not once the
    upper bound lies below the noise bound. Hopeless candidates are out after seven pairs; close ones get all pairs.
    """

    def __init__(self, *, noise_bound: float = DEFAULT_NOISE_BOUND, most_pairs: int = 96) -> None:
        self._threshold = math.log1p(noise_bound)
        self._most_pairs = most_pairs
        self._samples: list[float] = []
        self._decision: RaceDecision | None = None

    def add(self, log_ratio: float) -> RaceDecision | None:
        """Add one pair's ``log(rival / candidate)``; the decision, or None. Later pairs do not change a decision."""
        if self._decision is None:
            self._samples.append(log_ratio)
            found = self.interval()
            if found.low > self._threshold:
                self._decision = "faster"
            elif found.high < self._threshold:
                self._decision = "not_faster"
            elif len(self._samples) >= self._most_pairs:
                self._decision = "exhausted"
        return self._decision

    @property
    def decision(self) -> RaceDecision | None:
        """Why the race ended; None while it needs more pairs."""
        return self._decision

    @property
    def pairs(self) -> int:
        """Number of pairs that the race took."""
        return len(self._samples)

    @property
    def faster(self) -> bool:
        """Whether the candidate is faster than the rival by more than the noise bound."""
        return self._decision == "faster"

    def interval(self) -> LogInterval:
        """The median log-ratio and its 95% interval, valid at any time."""
        return median_sequence(self._samples)


# ------------------------------------------------------------------------------------------------- confirmation


def process_value(log_ratios: Sequence[float]) -> float:
    """The log-ratio of one pair of fresh processes: the median over its window pairs."""
    if len(log_ratios) == 0:
        raise ValueError("a process pair without window pairs")
    return float(np.median(log_ratios))


def stein_confirmation(
    first: Sequence[float],
    target_half_width: float = 0.02,
    most: int = MAXIMUM_PROCESS_PAIRS,
    noise_bound: float = DEFAULT_NOISE_BOUND,
    *,
    decides: bool = True,
) -> int:
    """The number of process pairs that the confirmation needs in all: ``clamp(ceil((t s0 / target)^2), 4, most)``.

    t is Student's quantile for the first stage's three degrees of freedom. The target is ``target_half_width``, or a
    wider one, up to 0.05, if the first stage's mean lies far from the noise bound: the claim is then decided. (The mean
    of normal numbers is independent of their deviation, so the interval covers as before.)

    Args:
        first: the values of the first four process pairs (see :func:`process_value`); s0 is their deviation.
        decides: whether this is the baseline that decides. For another baseline only the claim matters, and half-widths
            up to 0.15 are enough.
    """
    if len(first) != FIRST_PROCESS_PAIRS:
        raise ValueError(f"the first stage has {FIRST_PROCESS_PAIRS} process pairs, not {len(first)}")
    distance = abs(float(np.mean(first)) - math.log1p(noise_bound))
    target = max(target_half_width, min(_DECIDED * distance, _WIDEST if decides else _WIDEST_BESIDE))
    needed = math.ceil((_t_quantile(FIRST_PROCESS_PAIRS) * float(np.std(first, ddof=1)) / target) ** 2)
    return min(max(needed, FIRST_PROCESS_PAIRS), most)


def stein_interval(values: Sequence[float], most: int = MAXIMUM_PROCESS_PAIRS) -> LogInterval:
    """The 95% interval ``mean +- (reach / sqrt(J) + SHARED)`` over all J process pairs.

    With four pairs reach is ``t s0``, with their deviation s0, which decides J (Stein). With more it is the larger of
    ``t s0`` and ``1.1 t s``, with the deviation s of all. After ``most`` pairs it is ``1.1 t s``: the limit decided
    their number, and the interval is narrower by a third. In simulations of noisy windows ``mean +- reach / sqrt(J)``
    covers the truth in 94 to 97% of cases; without the 1.1, in 93%. ``SHARED`` is for what more processes of the same
    kind cannot show: a difference that all of them have. With it, 95 to 97%
    (``benchmarks/bench_timing_statistics.py``).
    """
    if len(values) < FIRST_PROCESS_PAIRS:
        raise ValueError(f"a confirmation has at least {FIRST_PROCESS_PAIRS} process pairs, not {len(values)}")
    first = _t_quantile(FIRST_PROCESS_PAIRS) * float(np.std(values[:FIRST_PROCESS_PAIRS], ddof=1))
    whole = _OF_ALL * _t_quantile(len(values)) * float(np.std(values, ddof=1))
    reach = whole if len(values) >= most else first if len(values) == FIRST_PROCESS_PAIRS else max(first, whole)
    mean, half_width = float(np.mean(values)), reach / math.sqrt(len(values)) + SHARED
    return LogInterval(mean, mean - half_width, mean + half_width)


def _t_quantile(samples: int) -> float:
    """The 97.5% quantile of Student's t for the deviation of ``samples`` samples."""
    return _T_QUANTILES[samples - 2] if samples - 2 < len(_T_QUANTILES) else NormalDist().inv_cdf(0.975) * 1.07


def disturbed(control: LogInterval, noise: float) -> bool:
    """Whether two processes of the same code surely differ by more than the noise bound. The run is then void."""
    return control.low > math.log1p(noise) or control.high < -math.log1p(noise)


# ------------------------------------------------------------------------------------------------------ latency


def binomial_tail(hits: int, trials: int, share: float) -> float:
    """The probability of ``hits`` or more in ``trials`` independent trials that each hit with probability ``share``."""
    return sum(math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(hits, trials + 1))


def latency_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """Median of latencies with its distribution-free interval by order statistics (the extremes if samples are few).

    Returns:
        median, low, high in the samples' own unit.
    """
    if len(samples) == 0:
        raise ValueError("no samples")
    x = np.sort(np.asarray(samples, dtype=np.float64))
    n, below, k = x.size, 0.0, 0
    while k < n // 2:
        below += math.comb(n, k) * 0.5**n
        if below > (1.0 - confidence) / 2.0:
            break
        k += 1
    k = max(k, 1)
    return float(np.median(x)), float(x[k - 1]), float(x[n - k])
