"""Measurements on arrays: decoded outputs, error scales, sums of errors. The rules are in ``budget``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

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


class ErrorSums(NamedTuple):
    """The error sums of one float output, in error scales. The rule needs no other data.

    norm, q99, largest: ``||e|| / ||s||``, 99th percentile and largest of ``|e| / s``. elements: number of judged
    elements; deciding: see :func:`deciding`. unlike: a value is not finite where the reference's is, or the reverse.
    allclose: KernelBench's own criterion.
    """

    norm: float
    q99: float
    largest: float
    elements: int
    deciding: float
    unlike: bool
    allclose: bool


class ResponseSums(NamedTuple):
    """The response of an output to a change of an input: its regression on the true response, and the latter's power.

    whole: slope and power over all elements. blocks: slope and power of each block of the flattened output.
    """

    whole: tuple[float, float]
    blocks: tuple[tuple[float, float], ...]


class DecodeError(KernelwrightError):
    """A buffer cannot hold the tensor that was claimed for it."""


def unit_roundoff(dtype: str, reduced_precision: Sequence[str] = ()) -> float:
    """The unit roundoff ``u``, half the distance from 1 to the next number: the largest of all given precisions.

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


def smallest_scale(dtype: str) -> float:
    """The smallest error scale of a float dtype: kernels may flush subnormals to zero."""
    return _ABSOLUTE_FLOOR[dtype]


def kernelbench_tolerance(dtype: str) -> float:
    """KernelBench's absolute and relative tolerance for a float dtype."""
    return _KERNELBENCH_TOLERANCE.get(dtype, 1e-4)


def decode(
    buffer: bytes | bytearray | memoryview, dtype: str, shape: Sequence[int], strides: Sequence[int] | None = None
) -> Array:
    """Decode the raw bytes of a torch tensor into a new contiguous array. Callers check the claimed shape first.

    Args:
        dtype: torch's name without its prefix; ``bfloat16`` is returned as float32.
        strides: torch's strides, in elements, from the buffer's first byte; None for a contiguous tensor.

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


def deciding(s: Array) -> float:
    """The effective number of elements that decide ``||s||``: ``(sum s^2)^2 / sum s^4``.

    It is the size of ``s`` if all elements are equal, and 1 for a single peak. Source: the participation ratio (Bell
    and Dean, 1970) of the squared scales.
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
        dtype: dtype of the output. It sets the roundoff and the smallest scale (kernels may flush subnormals).
        roundoff: ``u`` if it differs from that of ``dtype`` (see :func:`unit_roundoff`).
    """
    u = unit_roundoff(dtype) if roundoff is None else roundoff
    floor = u * _rms(ref64) / 16.0
    squares = np.square(mca_rms, dtype=np.float64) + np.square(low_row_rms, dtype=np.float64) + floor * floor
    result: FloatArray = np.sqrt(np.broadcast_to(squares, np.shape(ref64)))
    return np.maximum(result, _ABSOLUTE_FLOOR.get(dtype, 0.0))


def ill_conditioned(s: Array, ref64: Array, dtype: str = "float32") -> bool:
    """Whether honest rounding alone changes the answer so much that precision cannot be judged on this draw.

    In float32 that is ``median(s) > 2^-11 rms(ref64)``; coarser dtypes may lose up to an eighth. Use normal data only.
    Other data leads on purpose to answers that consist of rounding errors (a layer norm of constant rows).
    """
    if np.size(s) == 0:
        return False
    return is_ill_conditioned(float(np.median(s)), _rms(ref64), dtype)


def is_ill_conditioned(median_scale: float, rms_exact: float, dtype: str) -> bool:
    """:func:`ill_conditioned` by the median of the scale and the root mean square of the answer."""
    limit = min(unit_roundoff(dtype) * 2.0**13, 2.0**-3)
    return median_scale > max(limit * rms_exact, 2.0 * _ABSOLUTE_FLOOR[dtype])


def error_sums(
    candidate: Array,
    ref64: Array,
    s: Array,
    *,
    dtype: str = "float32",
    ref_low: Array | None = None,
    peaks: bool = False,
) -> ErrorSums:
    """The error sums of one float output. All arrays have the same shape.

    Args:
        ref_low: the reference's own output; None for ``ref64`` in the range of ``dtype``. Where only ``ref_low`` is not
            finite (an intermediate overflowed), the exact finite value is right, too.
        peaks: count the deciding elements by :func:`deciding` instead of taking all of them.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        value = np.asarray(candidate, dtype=np.float64)  # a signalling NaN among hostile bytes is an invalid cast
        exact = np.where(np.abs(ref64) > _LARGEST[dtype], np.copysign(np.inf, ref64), ref64)
        reference = exact if ref_low is None else np.asarray(ref_low, dtype=np.float64)
        close = _kernelbench_allclose(value, reference, dtype)
        same = _same_non_finite(value, reference) | _same_non_finite(value, exact)
        judged = np.isfinite(exact) & ~same
        if np.any(~np.isfinite(value) & ~same) or np.any(~np.isfinite(exact) & ~np.isfinite(reference) & ~same):
            return ErrorSums(math.inf, math.inf, math.inf, value.size, float(value.size), True, close)
        error = np.abs(value[judged] - exact[judged])
    scales = np.asarray(s)[judged]
    return ErrorSums(*ratios(error, scales), error.size, deciding(scales) if peaks else float(error.size), False, close)


def response_sums(delta_candidate: Array, delta_ref64: Array, s: Array, *, blocks: int = 8) -> ResponseSums:
    """Compare the response of an output to a change of an input with the true response, both in units of ``s``."""
    moved = np.isfinite(delta_ref64) & np.isfinite(s)
    weight = np.where(moved, 1.0 / np.where(moved, s, 1.0), 0.0).ravel()
    want = np.where(moved, delta_ref64, 0.0).ravel() * weight
    with np.errstate(invalid="ignore"):
        got = np.where(np.isfinite(delta_candidate), delta_candidate, 0.0).ravel() * weight
    pairs = zip(_chunks(got, blocks), _chunks(want, blocks), strict=True)
    return ResponseSums(_regression(got, want), tuple(_regression(g, w) for g, w in pairs))


def noise_of(candidate: Array, ref64: Array, s: Array) -> float:
    """The average error of a run in error scales, ``||e|| / ||s||``."""
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(np.asarray(candidate, dtype=np.float64) - ref64)
    judged = np.isfinite(error) & np.isfinite(s)
    return ratios(error[judged], np.asarray(s)[judged])[0]


def _regression(got: FloatArray, want: FloatArray) -> tuple[float, float]:
    """Slope of ``got`` on ``want`` through the origin, and the power of ``want``."""
    power = sum_of_squares(want)
    return (1.0 if power == 0.0 else float(np.einsum("i,i->", got, want)) / power), power


def sum_of_squares(values: Array) -> float:
    """The sum of a vector's squares, computed in one thread and in the vector's dtype.

    numpy's own products of long vectors wake BLAS threads, which then spin for some 30 ms. On a machine with two cores
    they spin on the core where a candidate is being timed: 150 of 4,000 calls were held up for 4 ms.
    """
    return float(np.einsum("i,i->", values, values))


def _chunks(flat: FloatArray, blocks: int) -> list[FloatArray]:
    return list(np.array_split(flat, max(1, min(blocks, flat.size))))


def ratios(error: FloatArray, s: Array) -> tuple[float, float, float]:
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


def _same_non_finite(a: Array, b: Array) -> NDArray[np.bool_]:
    """A mask of the elements that are nan in both arrays, or the same infinity in both."""
    return np.asarray((np.isnan(a) & np.isnan(b)) | (np.isinf(a) & (a == b)))


def _kernelbench_allclose(value: Array, reference: Array, dtype: str) -> bool:
    """KernelBench's own criterion, ``torch.allclose`` with atol = rtol = 1e-4 (1e-2 in half precision)."""
    bound = kernelbench_tolerance(dtype)
    return bool(np.allclose(value, reference, rtol=bound, atol=bound))


def _rms(values: Array) -> float:
    """Root mean square of the finite elements; 0 if no element is finite."""
    finite = np.asarray(values, dtype=np.float64)[np.isfinite(values)]
    largest = float(np.max(np.abs(finite))) if finite.size else 0.0
    return largest * math.sqrt(float(np.mean(np.square(finite / largest)))) if largest > 0.0 else 0.0
