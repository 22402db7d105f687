"""The error budget: is a candidate's output as right as honest arithmetic in the problem's dtype can be?

A clock measures the errors (``arrays`` does so on numpy arrays); the rule here sees only scalars. For one
output, ``e = candidate - ref64`` and ``s`` is the element-wise error scale. The candidate passes when
``||e|| / ||s|| <= T'``, the 99th percentile of ``|e| / s`` is at most ``6 T'`` and the largest at most ``40 T'``. T'
grows with the longest reductions (:func:`tolerance`) and has room for chance (:func:`limit`). On inputs that are
neither normal nor the problem's own, the last two limits are ``48 T'`` and ``160 T'``. The form and the constants were
calibrated on eight operators and 43 lower-precision cheats; ``tests/evaluator`` repeats a part of the calibration.

Reasons state only ratios to the budget. No value, position, threshold or seed may reach a candidate's author.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from kernelwright.evaluator.accuracy.arrays import (
    Array,
    ErrorSums,
    ResponseSums,
    error_sums,
    response_sums,
)

_TAILS = (6.0, 40.0)  # limits of the 99th percentile and of the largest error, over T'
_TAILS_ELSEWHERE = (48.0, 160.0)  # tails are heavier on data that is neither normal nor the problem's own
Kind = Literal["sum", "product", "norm"]
"""The result of a reduction: a sum; a sum of products of two factors; or terms divided by their sum."""
_CHAIN: Mapping[str, float] = {"sum": 0.25, "product": 0.17, "norm": 0.11}  # error of one chain of n, over sqrt(n)
_OWN_CHAIN = 0.3  # the same on a problem's own inputs, which often have one sign
LONGEST_CHAIN = 16_384  # additions that may follow one another; longer sums need several partial sums
_LONG_CHAIN = 1 / 200_000  # error of a chain of n squares over n sqrt(n): the partial sum swallows small terms

Data = Literal["normal", "own", "other", "equal", "far"]
"""How a draw's rounding errors add up.

normal: at random. own: the problem's own inputs; at random, but all terms may have one sign. other: less at random.
equal: in one direction. far: in one direction, and terms cancel.
"""
_AT_RANDOM = frozenset({"normal", "own"})
_TERMS = {"other": 32.0, "equal": 4.0, "far": 4.0}
_CONSTANT = {"other": 4.0, "equal": 4.0, "far": 16.0}


class Reduction(NamedTuple):
    """The sums of one operator.

    terms: number of terms of one sum. sums: number of sums, whose errors are independent. kind: decides the error of
    one chain of additions in error scales. The scales are wider if more than the sum is rounded.
    """

    terms: int
    sums: int = 1
    kind: Kind = "sum"

    def decides(self, other: Reduction) -> bool:
        """Whether a budget that allows for this reduction also allows for the other one."""
        of_kind = _CHAIN[self.kind] >= _CHAIN[other.kind]
        return self.terms >= other.terms and self.sums <= other.sums and of_kind


class OutputReport(NamedTuple):
    """The judgement on one output.

    norm_ratio, q99, max: ``||e|| / ||s||``, 99th percentile and largest of ``|e| / s``. budget: ``T'``, the limit of
    norm_ratio.
    load: the largest of the three as a share of its own limit; at most 1 if the output passed.
    """

    passed: bool
    norm_ratio: float
    q99: float
    max: float
    budget: float
    load: float
    kernelbench_allclose: bool
    reason: str


class BetaReport(NamedTuple):
    """The precision probe of one output and one input.

    beta: regression of the candidate's response on the true response; 1 for full precision, 0 if the input was rounded.
    min_block: the smallest beta of a decided block, or nan. decided: whether the true response is large enough compared
    with honest rounding. If not, the probe passes and proves nothing.
    """

    beta: float
    min_block: float
    passed: bool
    decided: bool
    reason: str


def tolerance(reductions: Sequence[Reduction], tolerance_scale: float = 1.0, *, data: Data = "normal") -> float:
    """The budget ``T`` in error scales, times the problem's own factor. It has no room for chance: see :func:`limit`.

    On normal data T is the larger of two numbers. Sums in eight lanes need ``4 + sqrt(n) / 16``. One chain of ``n`` up
    to 16,384 additions needs the root of ``4^2 + c^2 n``. c is 0.25 for plain sums. It is 0.17 for matrix products,
    whose error scale also covers the roundings of both factors, and 0.11 for normalisations, softmax and logarithms of
    sums, which round more than the sum. On a problem's ``own`` data c is 0.3 for all: if all terms have one sign, as
    with ``torch.rand``, a layer norm in one chain is off by 0.14 sqrt(n) and a variance by 0.26 sqrt(n). Precision is
    judged on normal data. On ``other`` data T is ``4 + n / 32``, for ``equal`` terms ``4 + n / 4``: there
    rounding errors add up instead of averaging out. An honest variance in one chain was off by 470 at n = 16,384 on
    mixed signs, and by 1,940 on zeros and ones. ``far`` from zero T is ``16 + n / 4``, so that a one-pass variance
    passes (off by 11 at n = 8, by 54 at n = 128).
    """
    part = max((_part(r, data) for r in reductions), default=0.0)
    return _combined(part, reductions, data) * tolerance_scale


def limit(
    reductions: Sequence[Reduction], elements: float, tolerance_scale: float = 1.0, *, data: Data = "normal"
) -> float:
    """The limit ``T'`` of ``||e|| / ||s||``: :func:`tolerance`, or more if few independent errors decide the norm.

    Over many elements the norm approaches the mean square of honest errors. Over few it depends on chance. For
    example, the 3,001 outputs of a softmax of one row share one sum, so their errors are one number, and so are the
    eight runs that their scale is made of. So the part of each reduction is multiplied by :func:`chance` of its sums,
    and the constant by :func:`spread` of the elements. Where errors do not add up at random, that part is larger
    anyway, and is multiplied by ``1 + 3 / sqrt(M)`` for its M sums.
    """
    room = chance if data in _AT_RANDOM else _of_normal_errors
    part = max((_part(r, data) * room(r.sums) for r in reductions), default=0.0)
    return _combined(part, reductions, data, spread(elements)) * tolerance_scale


def _part(reduction: Reduction, data: Data) -> float:
    """The allowed error of one chain of a reduction's terms, in error scales."""
    if data in _AT_RANDOM:
        return _chain(reduction, data) * math.sqrt(min(reduction.terms, LONGEST_CHAIN))
    return reduction.terms / _TERMS[data]


def _chain(reduction: Reduction, data: Data) -> float:
    return _OWN_CHAIN if data == "own" else _CHAIN[reduction.kind]


def _combined(part: float, reductions: Sequence[Reduction], data: Data, few: float = 1.0) -> float:
    if data not in _AT_RANDOM:
        return _CONSTANT[data] * few + part
    return max(_eight_lanes(reductions) * few, math.hypot(4.0 * few, part))


def _eight_lanes(reductions: Sequence[Reduction]) -> float:
    return 4.0 + math.sqrt(_longest(reductions).terms) / 16.0


def _longest(reductions: Sequence[Reduction]) -> Reduction:
    return max(reductions, key=lambda r: r.terms, default=Reduction(1))


def _advice(reductions: Sequence[Reduction], data: Data, ratios: Sequence[float], tolerance_scale: float) -> str:
    """Advice for an error that one chain of more additions than allowed would explain, or ""."""
    longest = _longest(reductions)
    if data not in _AT_RANDOM or longest.terms <= LONGEST_CHAIN:
        return ""
    chain = max(_chain(longest, data), longest.terms * _LONG_CHAIN) * math.sqrt(longest.terms)
    if max(ratios) > math.hypot(4.0, chain * chance(longest.sums)) * tolerance_scale:
        return ""
    return f"; one chain of {longest.terms:,} float additions is as far off: use several partial sums"


def chance(errors: float) -> float:
    """The factor on the limit for the norm of M independent errors: ``1 + 3 / sqrt(M) + 3 / M``.

    From 2% below to 11% above the square root of the 99.99% quantile of the F distribution with M and 8 M degrees of
    freedom: errors have M, their scale of eight runs has 8 M.
    """
    return 1.0 + 3.0 / math.sqrt(errors) + 3.0 / errors


def _of_normal_errors(errors: float) -> float:
    return 1.0 + 3.0 / math.sqrt(errors)


def spread(elements: float) -> float:
    """The factor on the constant for few elements: ``1 + 3 / sqrt(N)`` below N = 16 elements, else 1.

    The eight-lane mean of 460,800 terms was off by 1.4 T in one of three draws. With so few elements only the probe
    finds lower precision of inputs; its changes then all have one direction.
    """
    return _of_normal_errors(elements) if 0 < elements < 16 else 1.0


def judge_output(
    candidate: Array,
    ref64: Array,
    s: Array,
    reductions: Sequence[Reduction],
    *,
    data: Data = "normal",
    tolerance_scale: float = 1.0,
    dtype: str = "float32",
    ref_low: Array | None = None,
) -> OutputReport:
    """Judge one float output. All arrays have the same shape (the caller has compared shapes and dtypes).

    The reference is ``ref_low``, its own output, or else ``ref64`` in the range of ``dtype``. Where it is not
    finite, the candidate must match it: nan for nan, the same infinity for an infinity. Where only ``ref_low`` is not
    finite (an intermediate overflowed), the exact finite value passes, too. Anywhere else a non-finite value fails. On
    data with ``equal`` terms a few elements can hold most of the error; only these then count (see :func:`spread`).
    """
    sums = error_sums(candidate, ref64, s, dtype=dtype, ref_low=ref_low, peaks=data == "equal")
    return judge_sums(sums, reductions, data=data, tolerance_scale=tolerance_scale)


def judge_sums(
    sums: ErrorSums, reductions: Sequence[Reduction], *, data: Data = "normal", tolerance_scale: float = 1.0
) -> OutputReport:
    """Apply the rule: compare the error sums of one float output with its budget."""
    budget = limit(reductions, sums.deciding, tolerance_scale, data=data)
    if sums.unlike:
        reason = "non-finite values where the reference is finite, or the other way round"
        return OutputReport(False, math.inf, math.inf, math.inf, budget, math.inf, sums.allclose, reason)
    q99_limit, largest_limit = _TAILS if data in _AT_RANDOM else _TAILS_ELSEWHERE
    shares = (sums.norm, sums.q99 / q99_limit, sums.largest / largest_limit)
    load = max(shares) / budget
    reason = ""
    if load > 1.0:
        reason = _reason(("overall", "on many elements", "on some elements"), shares, load)
        reason += _advice(reductions, data, shares, tolerance_scale)
    return OutputReport(load <= 1.0, sums.norm, sums.q99, sums.largest, budget, load, sums.allclose, reason)


def judge_exact(candidate: Array, reference: Array, slack: Array | None = None) -> OutputReport:
    """Judge an integer or boolean output. It must equal the reference to within ``slack``.

    ``slack`` is zero almost everywhere. The oracle raises it where its own runs disagree, because rounding alone can
    flip the answer there (a comparison at a tie).
    """
    difference = np.abs(np.asarray(candidate, dtype=np.float64) - np.asarray(reference, dtype=np.float64))
    wrong = float(np.mean(difference > (0.0 if slack is None else slack))) if difference.size else 0.0
    reason = "" if wrong == 0.0 else "integer or boolean output differs from the reference"
    load = 0.0 if wrong == 0.0 else math.inf
    return OutputReport(wrong == 0.0, wrong, wrong, wrong, 0.0, load, bool(np.all(difference == 0)), reason)


def judge_index(
    candidate: Array,
    reference: Array,
    values: Array,
    values_scale: Array,
    reductions: Sequence[Reduction],
    *,
    dim: int,
    distinct: bool,
    tolerance_scale: float = 1.0,
) -> OutputReport:
    """Judge indices by what they point at: ``values[index]`` within ``T s`` of the value at the reference's index.

    Args:
        candidate, reference: integer indices into dimension ``dim`` of ``values`` (that dimension may be missing).
        values, values_scale: the searched values in float64, and their error scale.
        distinct: indices along ``dim`` must differ (sort, topk).
    """
    budget = tolerance(reductions, tolerance_scale)
    chosen, wanted = (np.asarray(a, dtype=np.int64) for a in (candidate, reference))
    if chosen.ndim < values.ndim:
        chosen, wanted = np.expand_dims(chosen, dim), np.expand_dims(wanted, dim)
    identical = bool(np.array_equal(chosen, wanted))
    if np.any((chosen < 0) | (chosen >= values.shape[dim])):
        return OutputReport(
            False, math.inf, math.inf, math.inf, budget, math.inf, identical, "an index is out of range"
        )
    if distinct and np.any(np.diff(np.sort(chosen, axis=dim), axis=dim) == 0):
        return OutputReport(False, math.inf, math.inf, math.inf, budget, math.inf, identical, "indices repeat")
    gap = np.abs(np.take_along_axis(values, chosen, dim) - np.take_along_axis(values, wanted, dim))
    near = np.maximum(np.take_along_axis(values_scale, chosen, dim), np.take_along_axis(values_scale, wanted, dim))
    ratio = np.where(chosen == wanted, 0.0, gap / np.maximum(near, np.finfo(np.float64).tiny))
    largest = float(ratio.max()) if ratio.size else 0.0
    load = largest / budget
    reason = "" if load <= 1.0 else "an index points at a value that is not the one asked for"
    return OutputReport(load <= 1.0, largest, largest, largest, budget, load, identical, reason)


def probe_beta(
    delta_candidate: Array, delta_ref64: Array, s: Array, *, blocks: int = 8, noise: float = 2.0
) -> BetaReport:
    """The precision probe: does the output respond to a change of one input below the precision of TF32, fp16 and bf16?

    ``beta = <delta candidate, delta ref64> / ||delta ref64||^2``, both divided by ``s``; it must be at least 0.9, and
    at least 0.8 in every block of the flattened output. A beta counts only if its standard error, from the
    ``noise`` of both runs, is at most 0.025, or 0.05 for a block.

    Args:
        delta_candidate, delta_ref64: output for x minus output for x', of :func:`probe_pair`. s: the error scale.
        noise: average error of one element in units of ``s``, see :func:`probe_noise`.
    """
    return judge_response(response_sums(delta_candidate, delta_ref64, s, blocks=blocks), noise=noise)


def judge_response(sums: ResponseSums, *, noise: float = 2.0) -> BetaReport:
    """The rule of the probe; see :func:`probe_beta`."""

    def error(power: float) -> float:
        return noise * math.sqrt(2.0 / power) if power > 0.0 else math.inf

    beta, power = sums.whole
    decided_blocks = [slope for slope, part in sums.blocks if error(part) <= 0.05]
    min_block = min(decided_blocks, default=math.nan)
    overall_passed = error(power) > 0.025 or beta >= 0.9
    passed = overall_passed and not min_block < 0.8
    reason = "" if passed else "an input is used at lower precision than its dtype"
    return BetaReport(beta, min_block, passed, error(power) <= 0.025 or bool(decided_blocks), reason)


def probe_noise(measured: float, reductions: Sequence[Reduction]) -> float:
    """The average error of a run in error scales, ``measured`` by ``arrays.noise_of``; at least half of eight lanes'.

    Some honest chains of additions are far noisier than others. A run that exceeds :func:`tolerance` is refused for its
    error. Its noise is no excuse here, so the minimum counts instead.
    """
    least = _eight_lanes(reductions) / 2.0
    return max(measured, least) if measured <= tolerance(reductions) else least


def _reason(places: tuple[str, str, str], shares: tuple[float, float, float], load: float) -> str:
    place = places[shares.index(max(shares))]
    times = f"{load:.1f}" if load < 100 else f"about 1e{math.floor(math.log10(load)):d}" if load < 1e12 else "over 1e12"
    return f"wrong {place}: {times} times the error budget"
