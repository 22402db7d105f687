"""Rewards for attempts at a kernel: the published formulas, and our own. Pure functions, no state.

A formula takes an :class:`Attempt`, an evaluator's result for one kernel. :meth:`Attempt.of` makes one from a verdict
of our referee. A naive evaluator's result can be written as an attempt too; that is how formulas are compared on
kernels that cheat.

=================  =======================================================================================
``auto_triton``    S. Li et al., "AutoTriton", 2025, https://arxiv.org/abs/2507.05687
``kevin``          C. Baronio et al., "Kevin: multi-turn RL for generating CUDA kernels", 2025,
                   https://arxiv.org/abs/2507.11948
``cuda_l1``        X. Li et al., "CUDA-L1", 2025, https://arxiv.org/abs/2507.14111
``cuda_l2``        "CUDA-L2", 2025, https://arxiv.org/abs/2512.02551
``dr_kernel``      W. Liu et al., "Dr. Kernel", 2026, https://arxiv.org/abs/2602.05885
``cuda_agent``     W. Dai et al., "CUDA Agent", 2026, https://arxiv.org/abs/2602.24286
=================  =======================================================================================

Where a publication leaves a number open, the docstring names the one chosen here.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from kernelwright.records import Candidate, Verdict

RIGHT: Final = 0.1  # our reward for a right kernel, however slow
DISCOUNT: Final = 0.4  # Kevin's discount per turn
_MOST: Final = 1e6  # largest speedup of a single run that counts as measured
_BASELINES: Final = ("eager", "compile")

Runs = Sequence[tuple[float, float]]  # (reference time, kernel time) of each run, in any common unit


@dataclass(frozen=True)
class Attempt:
    """An evaluator's result for one kernel.

    Attributes:
        correct: whether the kernel is right.
        emulated: whether it was checked on another kind of device than the one it is for, and never ran on its own.
        speedup: time of eager PyTorch over the kernel's time. None if nothing was timed.
        over_compile: time of torch.compile over the kernel's time. None if nothing was timed.
        surely: the lower end of the 95% interval of the speedup over the better of the two baselines, divided by one
            plus the machine's noise bound. None if nothing was timed. Only our referee gives it.
        own_share: share of the kernel's time spent in kernels of its own, in [0, 1]; None if unknown.
        uses_own_kernel: whether the candidate has a kernel in the requested language, and runs it.
        error: largest difference from the reference in higher precision, in the unit of the outputs.
        length: characters of the source.
        runs: (reference time, kernel time) of single runs.
    """

    correct: bool
    speedup: float | None = None
    over_compile: float | None = None
    surely: float | None = None
    own_share: float | None = None
    uses_own_kernel: bool = True
    error: float = 0.0
    length: int = 0
    runs: tuple[tuple[float, float], ...] = ()
    emulated: bool = False

    @classmethod
    def of(cls, verdict: Verdict, candidate: Candidate | None = None, runs: Runs = ()) -> Attempt:
        """The attempt that a verdict of our referee describes.

        Only a kernel that passed and is eligible is correct. A library's kernel is not an own kernel. The referee
        bounds errors in units of honest rounding, so an attempt that passes has no error that counts: ``error`` is 0.
        """
        times = {name: verdict.speedup(name) for name in _BASELINES}
        medians = {name: found.median for name, found in times.items() if found is not None}
        lows = [found.low for found in times.values() if found is not None]
        noise = 0.0 if verdict.timing is None else verdict.timing.noise_bound
        return cls(
            correct=verdict.earns,
            speedup=medians.get("eager"),
            over_compile=medians.get("compile"),
            surely=min(lows) / (1.0 + noise) if verdict.earns and lows else None,
            own_share=verdict.own_kernel_share,
            uses_own_kernel=verdict.own_kernel_label != "library",
            length=0 if candidate is None else len(candidate.source),
            runs=tuple(runs),
            emulated=verdict.backend != "cpp" and verdict.timing is None,
        )


def kernelwright_reward(attempt: Attempt) -> float:
    """Our formula: 0 if the kernel is not proved right, else 0.1 + max(0, log(sure speedup)).

    The *sure speedup* is the lower end of the 95% interval of the speedup over the better of eager and torch.compile,
    divided by one plus the machine's noise bound. So every right kernel earns more than every refused one, and a
    refused cheat earns nothing. Noise earns nothing either: a kernel identical to the baseline gets more than 0.1 only
    if an interval is wrong, and then only by that error. Twice the sure speedup, above 1, earns log 2 more.

    A kernel for a device that is not here earns nothing. A kernel that is right in an interpreter may be wrong, or do
    nothing, once it is compiled, and some kernels can detect the interpreter. Another formula can pay for such kernels.
    """
    if not attempt.correct or attempt.emulated:
        return 0.0
    sure = attempt.surely
    return RIGHT + (max(0.0, math.log(sure)) if sure is not None and 0.0 < sure < math.inf else 0.0)


def log_speedup(attempt: Attempt) -> float:
    """0 if the kernel is not right, else 1 + log(measured speedup over the better of eager and compile), at least 0.1.

    This formula pays the measured speedup, noise included, and pays slow kernels less. It is for policies that cannot
    cheat because they choose among the generator's schedules and write no code. Such policies need to see small
    differences. Kernels for a device that is not here earn nothing.
    """
    if not attempt.correct or attempt.emulated:
        return 0.0
    speedups = [
        found for found in (attempt.speedup, attempt.over_compile) if found is not None and 0.0 < found < math.inf
    ]
    return max(RIGHT, 1.0 + math.log(min(speedups))) if speedups else RIGHT


def auto_triton(attempt: Attempt) -> float:
    """AutoTriton: 1 if the tests pass and Triton, not PyTorch, does the work, else 0. Speed does not count."""
    return float(attempt.correct and attempt.uses_own_kernel)


def kevin(attempt: Attempt) -> float:
    """Kevin: a turn scores 0.3 + T_baseline / T_kernel if it is right, else 0; also 0 if PyTorch does all the work."""
    if not (attempt.correct and attempt.uses_own_kernel):
        return 0.0
    return 0.3 + _speedup(attempt)


def discounted(scores: Sequence[float], discount: float = DISCOUNT) -> list[float]:
    """Kevin's return of each turn, one for each score: R_t = sum over i >= t of discount^(i-t) * S_i."""
    returns: list[float] = []
    after = 0.0
    for score in reversed(scores):
        after = score + discount * after
        returns.append(after)
    return returns[::-1]


def cuda_l1(attempt: Attempt, *, buckets: int = 7, most_variance: float = 0.005) -> float | None:
    """CUDA-L1's score before smoothing: the median of the mean speedups of ``buckets`` parts of the runs, rounded.

    0 if the kernel is not right. None (no score) if the variance of the bucket means exceeds ``most_variance`` (a
    number from a re-implementation), or if there are fewer runs than buckets. Next, smooth the scores with
    :func:`smoothed`, and measure those that are :func:`surprising` again.
    """
    if not attempt.correct:
        return 0.0
    ratios = _ratios(attempt)
    if len(ratios) < buckets:
        return None
    ends = [round(number * len(ratios) / buckets) for number in range(buckets + 1)]
    means = [statistics.fmean(ratios[first:last]) for first, last in pairwise(ends)]
    if statistics.pvariance(means) > most_variance:
        return None
    return conservative(statistics.median(means))


def conservative(speedup: float) -> float:
    """CUDA-L1's rounding to two decimals, towards one: 1.118 is 1.11, 0.992 is 1.00."""
    cents = 100.0 * speedup
    nearest = round(cents)
    if math.isclose(cents, nearest, rel_tol=1e-12):
        return nearest / 100.0
    return (math.floor(cents) if speedup >= 1.0 else math.ceil(cents)) / 100.0


def smoothed(scores: Sequence[float], limit: float = 1.5) -> list[float]:
    """CUDA-L1's rewards of a group: scores in standard deviations from their mean, clipped at ``limit`` either way.

    All zero if the scores are equal. The publication's limit is not known for certain; 1.5 is chosen here.
    """
    if not scores:
        return []
    mean, deviation = statistics.fmean(scores), statistics.pstdev(scores)
    if deviation == 0.0:
        return [0.0] * len(scores)
    return [min(max((score - mean) / deviation, -limit), limit) for score in scores]


def surprising(score: float, record: float | None, again: float | None = None) -> bool:
    """Whether CUDA-L1 still requires a second measurement of a score, on another device.

    It does for scores above 3 or above twice the record so far, until a second one is within a tenth of the first.
    """
    if not (score > 3.0 or (record is not None and score > 2.0 * record)):
        return False
    return again is None or abs(again - score) >= 0.1 * score


def cuda_l2(attempt: Attempt, *, error_weight: float = 1.0, length_weight: float = 1e-5) -> float:
    """CUDA-L2: mean of T_ref / T over the runs, minus the weighted largest error and the weighted length of the code.

    0 if the kernel is not right. The weights are not published. With those chosen here, an error of 0.01 costs 0.01,
    and so do a thousand characters.
    """
    if not attempt.correct:
        return 0.0
    ratios = _ratios(attempt)
    speed = statistics.fmean(ratios) if ratios else _speedup(attempt)
    return speed - error_weight * attempt.error - length_weight * attempt.length


def dr_kernel(attempt: Attempt, *, decoy_penalty: float = -1.0) -> float:
    """Dr. Kernel: 0.5 for being right, plus half the speedup (at most 3), plus half the time share of own kernels.

    A decoy, whose kernel does not run, gets ``decoy_penalty``. The publication punishes decoys; the number is chosen
    here. Any other attempt that is not right gets 0.
    """
    if not attempt.uses_own_kernel:
        return decoy_penalty
    if not attempt.correct:
        return 0.0
    return 0.5 + 0.5 * min(_speedup(attempt), 3.0) + 0.5 * (attempt.own_share or 0.0)


def cuda_agent(attempt: Attempt, *, margin: float = 0.05) -> float:
    """CUDA Agent's milestones: -1 wrong, 1 right, 2 more than 5% faster than eager, 3 than torch.compile as well."""
    if not attempt.correct:
        return -1.0
    over_eager = _speedup(attempt) > 1.0 + margin
    over_both = over_eager and (attempt.over_compile or 0.0) > 1.0 + margin
    return 3.0 if over_both else 2.0 if over_eager else 1.0


def _ratios(attempt: Attempt) -> list[float]:
    """Speedups of single runs, without ratios that no clock can have measured."""
    ratios = (reference / kernel for reference, kernel in attempt.runs if kernel > 0)
    return [ratio for ratio in ratios if 1.0 / _MOST < ratio < _MOST]


def _speedup(attempt: Attempt) -> float:
    """The claimed speedup over eager; 0 if there is none."""
    found = attempt.speedup
    return found if found is not None and 0.0 < found < math.inf else 0.0


REWARDS: Final[Mapping[str, Callable[[Attempt], float | None]]] = MappingProxyType(
    {
        "kernelwright": kernelwright_reward,
        "log-speedup": log_speedup,
        "auto-triton": auto_triton,
        "kevin": kevin,
        "cuda-l1": cuda_l1,
        "cuda-l2": cuda_l2,
        "dr-kernel": dr_kernel,
        "cuda-agent": cuda_agent,
    }
)
"""The formulas by the names that commands use."""
