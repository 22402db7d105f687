"""The error budget: is a candidate's output as right as honest arithmetic in the problem's dtype can be?

Runs in the referee on numpy arrays only. For one output, ``e = candidate - ref64`` and ``s`` the element-wise error
scale; the candidate passes when ``||e|| / ||s|| <= T``, the 99th percentile of ``|e| / s`` is at most ``6 T`` and the
largest at most ``40 T``, with a ``T`` that grows with the longest reductions (:func:`tolerance`, and
:func:`norm_tolerance` for the first), the last two times 4 on inputs off the normal distribution. The form and the
constants were calibrated on eight operators and 43 lower-precision cheats; ``tests/evaluator`` repeats a part of it.

Reasons name ratios to the budget and nothing else: no value, position, threshold or seed may reach a candidate's
author.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernelwright.errors import KernelwrightError

Array = NDArray[Any]
FloatArray = NDArray[np.float64]

_UNIT_ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "tf32": 2.0**-11,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}
# A quarter of the smallest normal number: with T = 4 a kernel may flush subnormals to zero, as GPUs and -ffast-math do.
_ABSOLUTE_FLOOR = {"float64": 2.0**-1024, "float32": 2.0**-128, "float16": 2.0**-26, "bfloat16": 2.0**-128}
_LARGEST = {"float64": 1.7976931348623157e308, "float32": 3.4028235e38, "float16": 65504.0, "bfloat16": 3.3895314e38}
_KERNELBENCH_TOLERANCE = {"float16": 1e-2, "bfloat16": 1e-2}
_NUMPY_DTYPES = {
    "float64": "<f8",
    "float32": "<f4",
    "float16": "<f2",
    "int64": "<i8",
    "int32": "<i4",
    "int16": "<i2",
    "int8": "|i1",
    "uint8": "|u1",
    "bool": "|b1",
}
_Q99_FACTOR = 6.0
_MAX_FACTOR = 40.0
_OFF_NORMAL_FACTOR = 4.0  # tails are heavier where the data is not normal
Kind = Literal["sum", "product", "norm"]
"""What a reduction's result is: a sum; a sum of products of two factors; or terms that are divided by their sum."""
_CHAIN: Mapping[str, float] = {"sum": 0.25, "product": 0.17, "norm": 0.12}  # error scales, over sqrt(n), of one chain
LONGEST_CHAIN = 16_384  # additions that may follow one another; longer sums need several partial sums

Data = Literal["normal", "other", "equal", "far"]
"""How rounding errors add up on a draw: at random, less so, all the same way, or so and with terms that cancel."""
_TERMS = {"other": 32.0, "equal": 4.0, "far": 4.0}
_CONSTANT = {"normal": 4.0, "other": 4.0, "equal": 4.0, "far": 16.0}


class DecodeError(KernelwrightError):
    """A buffer cannot hold the tensor that was claimed for it."""


class Reduction(NamedTuple):
    """What one operator sums up.

    terms: of one sum. sums: how many the operator makes, whose errors are independent. kind: decides how far off one
    chain of additions is in error scales, which are wider where more than the sum is rounded.
    """

    terms: int
    sums: int = 1
    kind: Kind = "sum"

    def decides(self, other: Reduction) -> bool:
        """Whether a budget that bears this one bears the other one as well."""
        of_kind = _CHAIN[self.kind] >= _CHAIN[other.kind]
        return self.terms >= other.terms and self.sums <= other.sums and of_kind


class OutputReport(NamedTuple):
    """The judgement on one output.

    norm_ratio, q99, max: ``||e|| / ||s||``, 99th percentile and largest of ``|e| / s``. budget: what norm_ratio may be.
    load: the largest of the three as a share of its own limit; at most 1 where the output passed.
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

    beta: regression of the candidate's response on the true response; 1 for full precision, 0 where the input was
    rounded. min_block: the smallest beta of a block that is decided (nan where none is). decided: whether the true
    response stands out of honest rounding at all; where it does not, the probe passes and proves nothing.
    """

    beta: float
    min_block: float
    passed: bool
    decided: bool
    reason: str


def unit_roundoff(dtype: str, reduced_precision: Sequence[str] = ()) -> float:
    """``u`` of a dtype: half the distance from 1 to the next number; the largest one of the precisions allowed inside.

    Raises:
        DecodeError: for a dtype that has no rounding.
    """
    try:
        return max(_UNIT_ROUNDOFF[name] for name in (dtype, *reduced_precision))
    except KeyError as error:
        raise DecodeError(f"{error.args[0]} has no unit roundoff", hint=f"known: {', '.join(_UNIT_ROUNDOFF)}") from None


def largest(dtype: str) -> float:
    """The largest finite number of a float dtype."""
    return _LARGEST[dtype]


def decode(
    buffer: bytes | bytearray | memoryview, dtype: str, shape: Sequence[int], strides: Sequence[int] | None = None
) -> Array:
    """A private contiguous array from raw bytes of a torch tensor. Compare the claimed shape with the expected first.

    Args:
        dtype: torch's name without its prefix; ``bfloat16`` comes back as float32.
        strides: in elements as torch has them, from the buffer's first byte; None for a contiguous tensor.

    Raises:
        DecodeError: unknown dtype, negative sizes, or a shape and strides that reach outside of ``buffer``.
    """
    code = "<u2" if dtype == "bfloat16" else _NUMPY_DTYPES.get(dtype)
    if code is None:
        raise DecodeError(f"dtype {dtype[:40]!r} is not supported", hint=f"use one of {', '.join(_NUMPY_DTYPES)}")
    item = np.dtype(code)
    if len(shape) > 32 or any(size < 0 for size in shape):
        raise DecodeError("a tensor's shape must have at most 32 dimensions of non-negative sizes")
    if strides is not None and (len(strides) != len(shape) or any(stride < 0 for stride in strides)):
        raise DecodeError("strides must be non-negative and as many as dimensions")
    steps = None if strides is None else tuple(stride * item.itemsize for stride in strides)
    span = 0 if 0 in shape else 1 + sum((n - 1) * k for n, k in zip(shape, strides or _dense(shape), strict=True))
    if span * item.itemsize > memoryview(buffer).nbytes:  # numpy itself takes an empty buffer for unlimited memory
        raise DecodeError("a tensor's shape and strides do not fit its buffer")
    try:
        view = np.ndarray(tuple(shape), item, memoryview(buffer).cast("B"), 0, steps)
    except (ValueError, TypeError, OverflowError) as error:
        raise DecodeError("a tensor's shape and strides do not fit its buffer") from error
    if dtype == "bfloat16":
        return (np.ascontiguousarray(view).astype(np.uint32) << 16).view(np.float32).reshape(view.shape)
    return np.array(view, order="C", copy=True)


def _dense(shape: Sequence[int]) -> list[int]:
    """Strides, in elements, of a contiguous tensor."""
    steps = [1]
    for size in reversed(shape[1:]):
        steps.append(steps[-1] * size)
    return steps[::-1][: len(shape)]


def tolerance(reductions: Sequence[Reduction], tolerance_scale: float = 1.0, *, data: Data = "normal") -> float:
    """``T`` of single elements, in error scales, times the problem's own factor.

    On normal data it is the larger of ``4 + sqrt(n) / 16``, which sums in eight lanes need, and the root of
    ``4^2 + c^2 n``, which one chain of ``n`` up to 16,384 additions needs. c is 0.25; 0.17 in products of matrices,
    whose error scale is wider by the roundings of both factors; 0.12 in normalisations, softmax and logarithms of sums,
    which round more than the sum. On ``other`` data it is ``4 + n / 32``, for ``equal`` terms ``4 + n / 4``: there
    rounding errors add up instead of averaging out. An honest variance in one chain was 470 off at n = 16,384 on mixed
    signs, and 1,940 on zeros and ones. ``far`` from zero it is ``16 + n / 4``, so that a variance in one pass is right
    (11 off at n = 8, 54 at n = 128). Precision is decided on normal data; the others look for wrong answers.
    """
    part = max((_part(r, data) for r in reductions), default=0.0)
    return _combined(part, reductions, data) * tolerance_scale


def norm_tolerance(
    reductions: Sequence[Reduction], elements: float, tolerance_scale: float = 1.0, *, data: Data = "normal"
) -> float:
    """What ``||e|| / ||s||`` may be: :func:`tolerance`, and more where few errors decide it.

    Over many elements the norm meets the mean square of honest errors. Of few it is luck: one number lies beyond three
    times their mean square once in some hundred draws. So the constant is multiplied by :func:`spread` of the elements,
    and the part of each reduction by ``1 + 3 / sqrt(M)`` for its ``M`` sums: 3,001 outputs of a softmax of one row have
    one sum, and their errors are one number. (The 99.9% quantile of the root mean square of M normal numbers is about
    ``1 + 2.3 / sqrt(M)``, by the chi distribution.)
    """
    part = max((_part(r, data) * (1.0 + 3.0 / math.sqrt(r.sums)) for r in reductions), default=0.0)
    return _combined(part, reductions, data, spread(elements)) * tolerance_scale


def _part(reduction: Reduction, data: Data) -> float:
    """How far off one chain of a reduction's terms may be, in error scales."""
    if data == "normal":
        return _CHAIN[reduction.kind] * math.sqrt(min(reduction.terms, LONGEST_CHAIN))
    return reduction.terms / _TERMS[data]


def _combined(part: float, reductions: Sequence[Reduction], data: Data, few: float = 1.0) -> float:
    if data != "normal":
        return _CONSTANT[data] * few + part
    return max(_eight_lanes(reductions) * few, math.hypot(4.0 * few, part))


def _eight_lanes(reductions: Sequence[Reduction]) -> float:
    return 4.0 + math.sqrt(_longest(reductions).terms) / 16.0


def _longest(reductions: Sequence[Reduction]) -> Reduction:
    return max(reductions, key=lambda r: r.terms, default=Reduction(1))


def _advice(reductions: Sequence[Reduction], data: Data, ratios: Sequence[float], tolerance_scale: float) -> str:
    """What to do about an error that one chain of more additions than are allowed explains, or ""."""
    longest = _longest(reductions)
    if data != "normal" or longest.terms <= LONGEST_CHAIN:
        return ""
    chain = _CHAIN[longest.kind] * math.sqrt(longest.terms)
    chains = (chain * (1.0 + 3.0 / math.sqrt(longest.sums)), chain, chain)
    if any(r > math.hypot(4.0, most) * tolerance_scale for r, most in zip(ratios, chains, strict=True)):
        return ""
    return f"; one chain of {longest.terms:,} float additions is as far off: use several partial sums"


def spread(elements: float) -> float:
    """``1 + 3 / sqrt(N)`` below N = 16 elements, else 1: how much more the norm of few errors may be.

    The eight-lane mean of 460,800 terms was 1.4 T off in one of three draws. Lower precision of inputs is left to the
    probe there, whose changes then all have one direction.
    """
    return 1.0 + 3.0 / math.sqrt(elements) if 0 < elements < 16 else 1.0


def deciding(s: Array) -> float:
    """How many elements decide ``||s||``: ``(sum s^2)^2 / sum s^4``, their number where all are alike, 1 for one peak.

    The source is the participation ratio (Bell and Dean, 1970) of the squared scales.
    """
    squares = np.square(np.asarray(s, dtype=np.float64)).ravel()
    largest_square = squares.max(initial=0.0)
    if largest_square == 0.0 or not np.isfinite(largest_square):
        return float(squares.size)
    squares /= largest_square
    return float(squares.sum() ** 2 / np.square(squares).sum())


def scale(mca_rms: Array, low_row_rms: Array, ref64: Array, dtype: str, roundoff: float | None = None) -> FloatArray:
    """The error scale ``s``: ``s^2 = MCA^2 + rowRMS(ref_low - ref64)^2 + (u rms(ref64) / 16)^2``, of ref64's shape.

    Args:
        dtype: dtype of the output, for its roundoff and the smallest scale (where even subnormals may be flushed).
        roundoff: ``u`` where it is not that of ``dtype`` (see :func:`unit_roundoff`).
    """
    u = unit_roundoff(dtype) if roundoff is None else roundoff
    floor = u * _rms(ref64) / 16.0
    squares = np.square(mca_rms, dtype=np.float64) + np.square(low_row_rms, dtype=np.float64) + floor * floor
    result: FloatArray = np.sqrt(np.broadcast_to(squares, np.shape(ref64)))
    return np.maximum(result, _ABSOLUTE_FLOOR.get(dtype, 0.0))


def ill_conditioned(s: Array, ref64: Array, dtype: str = "float32") -> bool:
    """Whether honest rounding alone spoils so much of the answer that precision cannot be judged on this draw.

    In float32 that is ``median(s) > 2^-11 rms(ref64)``; coarser dtypes may lose up to an eighth. Ask it of normal data
    only: elsewhere, answers that are nothing but rounding (a layer norm of constant rows) are part of the plan.
    """
    if np.size(s) == 0:
        return False
    limit = min(unit_roundoff(dtype) * 2.0**13, 2.0**-3)
    return bool(np.median(s) > max(limit * _rms(ref64), 2.0 * _ABSOLUTE_FLOOR[dtype]))


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

    Where the reference (``ref_low``, the reference's own output; else ``ref64`` in the range of ``dtype``) is not
    finite the candidate must not be either, in the same way: nan for nan, the same infinity for an infinity. Where
    only ``ref_low`` is not finite (an intermediate overflowed) the right finite value is as good. Anywhere else a
    non-finite value fails. Data with ``equal`` terms can put most of an error into few elements, which then count as
    few (see :func:`spread`).
    """
    budget = tolerance(reductions, tolerance_scale, data=data)
    with np.errstate(invalid="ignore", over="ignore"):
        value = np.asarray(candidate, dtype=np.float64)  # a signalling NaN among hostile bytes is an invalid cast
        exact = np.where(np.abs(ref64) > _LARGEST[dtype], np.copysign(np.inf, ref64), ref64)
        reference = exact if ref_low is None else np.asarray(ref_low, dtype=np.float64)
        close = _kernelbench_allclose(value, reference, dtype)
        same = _same_non_finite(value, reference) | _same_non_finite(value, exact)
        judged = np.isfinite(exact) & ~same
        if np.any(~np.isfinite(value) & ~same) or np.any(~np.isfinite(exact) & ~np.isfinite(reference) & ~same):
            reason = "non-finite values where the reference is finite, or the other way round"
            return OutputReport(False, math.inf, math.inf, math.inf, budget, math.inf, close, reason)
        error = np.abs(value[judged] - exact[judged])
    scales = np.asarray(s)[judged]
    norm_ratio, q99, largest = _ratios(error, scales)
    tail = 1.0 if data == "normal" else _OFF_NORMAL_FACTOR
    elements = deciding(scales) if data == "equal" else error.size
    norm_budget = norm_tolerance(reductions, elements, tolerance_scale, data=data)
    shares = (norm_ratio * budget / norm_budget, q99 / (_Q99_FACTOR * tail), largest / (_MAX_FACTOR * tail))
    load = max(shares) / budget
    reason = ""
    if load > 1.0:
        reason = _reason(("overall", "on many elements", "on some elements"), shares, load)
        reason += _advice(reductions, data, (norm_ratio, *shares[1:]), tolerance_scale)
    return OutputReport(load <= 1.0, norm_ratio, q99, largest, norm_budget, load, close, reason)


def judge_exact(candidate: Array, reference: Array, slack: Array | None = None) -> OutputReport:
    """Judge an integer or boolean output: equal, or within ``slack`` where rounding alone can flip the answer.

    ``slack`` is zero almost everywhere; the oracle raises it where its own runs disagree (a comparison at a tie).
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
        values, values_scale: what was searched, in float64, and its error scale.
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
    """The precision probe: does the output answer a change of one input below the precision of TF32, fp16 and bf16?

    ``beta = <delta candidate, delta ref64> / ||delta ref64||^2``, both divided by ``s``; it must be at least 0.9, and
    at least 0.8 in every block of the flattened output. A beta counts only where ``noise`` in both runs blurs it by a
    standard error of at most 0.025, 0.05 for a block.

    Args:
        delta_candidate, delta_ref64: output for x minus output for x', of :func:`probe_pair`. s: the error scale.
        noise: of an element in units of ``s``, see :func:`probe_noise`.
    """
    moved = np.isfinite(delta_ref64) & np.isfinite(s)
    weight = np.where(moved, 1.0 / np.where(moved, s, 1.0), 0.0).ravel()
    want = np.where(moved, delta_ref64, 0.0).ravel() * weight
    with np.errstate(invalid="ignore"):
        got = np.where(np.isfinite(delta_candidate), delta_candidate, 0.0).ravel() * weight
    noise *= math.sqrt(2.0)
    beta, error = _regression(got, want, noise)
    parts = [_regression(g, w, noise) for g, w in zip(_chunks(got, blocks), _chunks(want, blocks), strict=True)]
    decided_parts = [b for b, standard_error in parts if standard_error <= 0.05]
    min_block = min(decided_parts, default=math.nan)
    overall_passed = error > 0.025 or beta >= 0.9
    passed = overall_passed and not min_block < 0.8
    reason = "" if passed else "an input is used at lower precision than its dtype"
    return BetaReport(beta, min_block, passed, error <= 0.025 or bool(decided_parts), reason)


def probe_noise(candidate: Array, ref64: Array, s: Array, reductions: Sequence[Reduction]) -> float:
    """How far off a run is on average, in error scales: as measured, at least half of what eight lanes may be.

    Some honest chains of additions are far noisier than others. A run that is noisier than any is refused for that, and
    its noise is no excuse here.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(np.asarray(candidate, dtype=np.float64) - ref64)
    judged = np.isfinite(error) & np.isfinite(s)
    measured = _ratios(error[judged], np.asarray(s)[judged])[0]
    least = _eight_lanes(reductions) / 2.0
    return max(measured, least) if measured <= tolerance(reductions) else least


def _regression(got: FloatArray, want: FloatArray, noise: float) -> tuple[float, float]:
    """Slope of ``got`` on ``want`` through the origin, and its standard error for noise of that size an element."""
    power = sum_of_squares(want)
    if power == 0.0:
        return 1.0, math.inf
    return float(np.einsum("i,i->", got, want)) / power, noise / math.sqrt(power)


def sum_of_squares(values: Array) -> float:
    """Of a vector, in one thread and in its own dtype.

    numpy's own products of long vectors wake threads of its BLAS library, which then spin for some 30 ms: on a machine
    of two cores on the one where a candidate is being timed by then. Of 4,000 calls 150 were held up for 4 ms.
    """
    return float(np.einsum("i,i->", values, values))


def _chunks(flat: FloatArray, blocks: int) -> list[FloatArray]:
    return list(np.array_split(flat, max(1, min(blocks, flat.size))))


def _ratios(error: FloatArray, s: Array) -> tuple[float, float, float]:
    """``||e|| / ||s||``, and the 99th percentile and largest of ``|e| / s``."""
    if error.size == 0:
        return 0.0, 0.0, 0.0
    ratio = error / s
    at = int(0.99 * (ratio.size - 1))
    q99 = float(np.partition(ratio, at)[at])
    # scaled by the largest s, so that squares of tiny numbers do not underflow
    unit = float(np.max(s))
    norm = math.sqrt(float(np.sum(np.square(error / unit))) / float(np.sum(np.square(s / unit))))
    return norm, q99, float(ratio.max())


def _reason(places: tuple[str, str, str], shares: tuple[float, float, float], load: float) -> str:
    place = places[shares.index(max(shares))]
    times = f"{load:.1f}" if load < 100 else f"about 1e{math.floor(math.log10(load)):d}" if load < 1e12 else "over 1e12"
    return f"wrong {place}: {times} times the error budget"


def _same_non_finite(a: Array, b: Array) -> NDArray[np.bool_]:
    """Where both are nan, or both the same infinity."""
    return np.asarray((np.isnan(a) & np.isnan(b)) | (np.isinf(a) & (a == b)))


def _kernelbench_allclose(value: Array, reference: Array, dtype: str) -> bool:
    """KernelBench's own criterion, ``torch.allclose`` with atol = rtol = 1e-4 (1e-2 in half precision)."""
    bound = _KERNELBENCH_TOLERANCE.get(dtype, 1e-4)
    return bool(np.allclose(value, reference, rtol=bound, atol=bound))


def _rms(values: Array) -> float:
    """Root mean square of the finite elements, 0 where there are none."""
    finite = np.asarray(values, dtype=np.float64)[np.isfinite(values)]
    largest = float(np.max(np.abs(finite))) if finite.size else 0.0
    return largest * math.sqrt(float(np.mean(np.square(finite / largest)))) if largest > 0.0 else 0.0
