"""The field's metrics over many problems. Pure functions over plain numbers.

A problem without a correct candidate counts as not passed; it is never left out of a denominator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_BOOTSTRAP_SAMPLES = 2000


class Result(NamedTuple):
    """One problem's outcome. speedup: baseline time over candidate time; None if it was not timed."""

    correct: bool
    speedup: float | None = None


def fast_p(results: Iterable[Result], p: float) -> float:
    """Share of problems that are correct and more than ``p`` times as fast as the baseline.

    ``fast_p(results, 0)`` is the rate of correct ones, timed or not. Source: A. Ouyang et al., "KernelBench: Can LLMs
    write efficient GPU kernels?" (arXiv 2502.10517), section 3.

    Raises:
        ValueError: no results, or a negative ``p``.
    """
    outcomes = list(results)
    if not outcomes or p < 0:
        raise ValueError("fast_p needs at least one result and p >= 0")
    if p == 0:
        return sum(outcome.correct for outcome in outcomes) / len(outcomes)
    return sum(bool(r.correct and r.speedup is not None and r.speedup > p) for r in outcomes) / len(outcomes)


def geometric_mean(ratios: Sequence[float], cap: float = math.inf) -> float:
    """``exp(mean(log(min(ratio, cap))))``: the only mean under which a speedup and its inverse cancel.

    Source: P. J. Fleming and J. J. Wallace, "How not to lie with statistics", CACM 29(3), 1986.

    Raises:
        ValueError: no ratios, or one that is not positive.
    """
    if not ratios or min(ratios) <= 0:
        raise ValueError("a geometric mean needs positive ratios")
    return math.exp(math.fsum(math.log(min(ratio, cap)) for ratio in ratios) / len(ratios))


def bootstrap_interval(
    values: Sequence[float] | NDArray[np.float64], estimate: Literal["mean", "median"] = "mean"
) -> tuple[float, float]:
    """The ends of a 95% interval of a mean or median over problems, by percentiles of a bootstrap over the problems.

    The draws are seeded: the same values give the same interval. A single value gives an interval of width 0.

    Source: B. Efron, "Bootstrap methods: another look at the jackknife", Ann. Statist. 7(1), 1979.

    Raises:
        ValueError: no values.
    """
    import numpy as np

    if not len(values):
        raise ValueError("a bootstrap needs values")
    drawn = np.asarray(values, dtype=float)[_draws(len(values))]
    found = drawn.mean(axis=1) if estimate == "mean" else np.median(drawn, axis=1)
    low, high = np.quantile(found, (0.025, 0.975))
    return float(low), float(high)


@lru_cache(maxsize=8)
def _draws(count: int) -> NDArray[np.intp]:
    """Indices of the problems in each bootstrap sample: (samples, count)."""
    import numpy as np

    return np.random.default_rng(0).integers(count, size=(_BOOTSTRAP_SAMPLES, count))


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two middle ones.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("a median needs values")
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2.0


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate of the chance that at least one of ``k`` candidates passes, from ``c`` passes among ``n``.

    ``1 - C(n - c, k) / C(n, k)``. Source: M. Chen et al., "Evaluating large language models trained on code" (arXiv
    2107.03374), section 2.1.

    Raises:
        ValueError: unless 0 <= c <= n and 1 <= k <= n.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError("pass@k needs 0 <= c <= n and 1 <= k <= n")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def sol_score(time_ms: float, baseline_ms: float, light_ms: float) -> float:
    """The score of a candidate between the baseline and the speed of light: 0.5 at the baseline, 1 at the bound.

    ``1 / (1 + (T - T_sol) / (T_base - T_sol))``, in (0, 1]. Source: SOL-ExecBench (NVIDIA). A time below the bound
    scores 1 (the bound was not tight, or the floor should have refused the time).

    Raises:
        ValueError: a time that is not positive, or a baseline that is not slower than the bound.
    """
    if min(time_ms, baseline_ms, light_ms) <= 0 or baseline_ms <= light_ms:
        raise ValueError("sol_score needs positive times and a baseline slower than the bound")
    return 1.0 / (1.0 + max(time_ms - light_ms, 0.0) / (baseline_ms - light_ms))
