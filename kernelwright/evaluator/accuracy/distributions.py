"""Fresh inputs from secret seeds: the distributions of the check, the format of the precision probe.

Runs in the referee on numpy arrays only. bfloat16 data is made in float32 and returned as its upper 16 bits
(``uint16``).

The probe format: float32 numbers whose mantissa bits 12 and 15 are equal and whose lowest 12 bits are not all zero.
Drawing the lowest 12 bits anew gives a neighbour x' of the same format. x and x' become the same TF32, float16 and
bfloat16 number, by rounding (both down if bits 12 and 15 are 0, both up if they are 1) and by truncation. Only float32
sees the difference. All normal data has this format, and so has the uniform data of inputs that are declared uniform,
in timing as well: a probe cannot be told from other inputs. Other distributions do not use the format, because a kernel
must be right for any numbers. (Bits fixed at zero would always round sums of positive terms down: an honest eight-lane
sum of 65,536 terms was off by 100 error scales instead of 8.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelwright.errors import UsageError
from kernelwright.records import InputDomain

Array = NDArray[Any]
Float32Array = NDArray[np.float32]
FloatArray = NDArray[np.float64]

_KEPT_BITS = np.uint32(0xFFFF6000)  # all bits above bit 12 except bit 15
_TOP_BITS = np.uint32(0x00009000)  # bits 12 and 15: the highest ones that TF32, fp16 and bfloat16 drop
_LOW_BITS = 1 << 12
_EXPONENT = np.uint32(0x7F800000)
_LARGE = 30.0
ASSUMED_REACH = 1e6  # bound that is assumed if a domain has none
_NOT_WIDE = 5.0  # normal data reaches closer bounds anyway
_PIECE_OF_A_VECTOR = 16
INTEGER_DTYPES: dict[str, type[np.signedinteger[Any]] | type[np.unsignedinteger[Any]]] = {
    "int64": np.int64,
    "int32": np.int32,
    "int16": np.int16,
    "int8": np.int8,
    "uint8": np.uint8,
}
_OF_INTEGERS = ("uniform", "constant_rows", "binary")
_FLOAT_DTYPES = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}
_LARGEST = {"float64": 1e300, "float32": 3e38, "float16": 65504.0, "bfloat16": 3e38}
_TINY = {"float16": 2.0**-12}


def secret_rng(seed: int | Sequence[int]) -> np.random.Generator:
    """The referee's generator for one draw; the seed comes from :mod:`secrets` and never leaves the referee."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))


def distributions_for(domain: InputDomain, dtype: str = "float32") -> tuple[str, ...]:
    """The distributions that an input's declared domain admits, the plainest first; none for ``structured`` inputs."""
    if domain.fill == "structured":
        return ()
    if dtype not in _FLOAT_DTYPES:
        return _OF_INTEGERS if dtype != "bool" and domain.low < domain.high else ("uniform",)
    low, high = domain.low, domain.high
    admits = {
        "normal": True,
        "uniform": True,
        "large": max(-low, high) >= 2.0 * _LARGE,
        "wide": max(-low, high) >= _NOT_WIDE,
        "tiny": low <= 0.0 <= high and low < high,
        "constant_rows": low < high,
        "mixed_signs": low < 0.0 < high,
        "binary": low <= 0.0 and high >= 1.0,
        "end_rows": low < 0.0 or high > 2.0,
        "end_columns": low < 0.0 or high > 2.0,
        "non_finite": domain.non_finite,
    }
    return tuple(name for name in _MAKERS if admits[name])


def make(name: str, shape: Sequence[int], dtype: str, domain: InputDomain, rng: np.random.Generator) -> Array:
    """Draw an input of ``shape``. Every element lies in the domain, or is not finite if the domain admits that.

    Args:
        name: a member of :func:`distributions_for`.
        dtype: torch's name without its prefix. Normal float32 data has the probe format; bfloat16 comes as uint16
            bits. Bounds are rounded to the dtype.

    Raises:
        UsageError: an unknown distribution or dtype, or integers without finite bounds.
    """
    if name not in _MAKERS:
        raise UsageError(f"no distribution {name!r}", hint=f"use one of {', '.join(_MAKERS)}")
    if dtype == "bool":
        return rng.integers(0, 2, tuple(shape)).astype(np.bool_)
    if dtype in INTEGER_DTYPES:
        return _integers(name, tuple(shape), dtype, domain, rng)
    if dtype not in _FLOAT_DTYPES:
        raise UsageError(f"inputs of dtype {dtype!r} cannot be drawn", hint="declare the input's fill as 'structured'")
    low, high = max(domain.low, -_LARGEST[dtype]), min(domain.high, _LARGEST[dtype])
    if name == "wide" or name in FAR:
        low, high = _reach(domain, low, high)
    values = np.clip(_MAKERS[name](tuple(shape), low, high, rng) * _shrink(name, dtype), low, high)
    if name == "non_finite":
        values = _with_non_finite(values, domain, rng)
    if dtype == "float32" and has_probe_format(name, domain):
        return probe_format(values, rng, low, high)
    return _as_dtype(values, dtype)


def as_dtype(values: FloatArray, dtype: str, domain: InputDomain) -> Array:
    """Float64 numbers in a float dtype of torch (bfloat16 as uint16 bits), clipped to what dtype and domain hold."""
    low, high = max(domain.low, -_LARGEST[dtype]), min(domain.high, _LARGEST[dtype])
    return _as_dtype(np.clip(values, low, high), dtype)


def integer_dtype(dtype: str) -> type[np.signedinteger[Any]] | type[np.unsignedinteger[Any]]:
    """The numpy integer type for torch's name of a dtype.

    Raises:
        UsageError: not an integer dtype.
    """
    if dtype not in INTEGER_DTYPES:
        raise UsageError(f"inputs of dtype {dtype!r} cannot be drawn", hint="declare the input's fill as 'structured'")
    return INTEGER_DTYPES[dtype]


def has_probe_format(name: str, domain: InputDomain) -> bool:
    """Whether float32 data of a distribution is made in the probe format, so that probes look like it."""
    return name == "normal" or (name == "uniform" and domain.fill == "uniform")


def plain(inputs: Iterable[tuple[str, InputDomain]]) -> str:
    """The main distribution of slots and probes: ``uniform`` if a float input is declared so, else ``normal``."""
    uniform = (dtype in _FLOAT_DTYPES and domain.fill == "uniform" for dtype, domain in inputs)
    return "uniform" if any(uniform) else "normal"


def probe_format(x: Array, rng: np.random.Generator, low: float = -math.inf, high: float = math.inf) -> Float32Array:
    """``x`` in the probe format, moved by at most 2**-7 of its size; elements that would leave [low, high] stay."""
    return _coded(x, rng, low, high)[0]


def probe_pair(
    x: Array,
    rng: np.random.Generator,
    low: float = -math.inf,
    high: float = math.inf,
    directions: Array | None = None,
) -> tuple[Float32Array, Float32Array]:
    """``x`` in the probe format, and its neighbour x' of the same format (perturb one input at a time).

    Args:
        directions: of x's shape: positive puts x' above x, negative below it, 0 on either side. Random changes would
            cancel out in an output that is a single number.
    """
    return _coded(x, rng, low, high, directions)


# ------------------------------------------------------------------------------------------------ distributions

_Maker = Callable[[tuple[int, ...], float, float, np.random.Generator], FloatArray]


def _normal(shape: tuple[int, ...], low: float, high: float, rng: np.random.Generator) -> FloatArray:
    """Standard normal where the domain has room for it; else folded at the one bound, or fitted between the two."""
    z = rng.standard_normal(shape)
    if low <= -3.0 and high >= 3.0:
        return z
    if high - low > 6.0:
        return low + np.abs(z) if low > -3.0 else high - np.abs(z)
    return (low + high) / 2.0 + z * min(1.0, (high - low) / 6.0)


def _uniform(shape: tuple[int, ...], low: float, high: float, rng: np.random.Generator) -> FloatArray:
    """[0, 1) where the domain admits it (positive data shows drift in sums), else the domain's part nearest to it."""
    if low <= 0.0 and high >= 1.0:
        return rng.random(shape)
    start = min(max(low, 0.0), high) if low > 0.0 else max(low, min(high, 0.0) - 1.0)
    return start + (min(high, start + 1.0) - start) * rng.random(shape)


def _large(shape: tuple[int, ...], low: float, high: float, rng: np.random.Generator) -> FloatArray:
    z = rng.standard_normal(shape) * _LARGE
    return np.abs(z) + max(low, 0.0) if low > -_LARGE else -np.abs(z) + min(high, 0.0) if high < _LARGE else z


def _wide(shape: tuple[int, ...], low: float, high: float, rng: np.random.Generator) -> FloatArray:
    """Log-uniform magnitudes from 1 to the bounds. They expose kernels that are right for moderate numbers only."""
    least = max(low, -high, 1.0)  # of a domain that lies on one side of zero
    one_sided = min(-low, high) < 2.0 * least
    negative = np.broadcast_to(-low > high if one_sided else rng.random(shape) < 0.5, shape)
    most = np.where(negative, max(-low, least), max(high, least))
    values = least * np.exp(rng.random(shape) * np.log(most / least))
    return np.asarray(np.where(negative, -values, values))


def _reach(domain: InputDomain, low: float, high: float) -> tuple[float, float]:
    """Bounds for data near a domain's ends: its own bounds, or a far value in place of a missing one."""
    far = max(ASSUMED_REACH, 2.0 * max(low, -high))
    return (
        low if math.isfinite(domain.low) else max(low, -far),
        high if math.isfinite(domain.high) else min(high, far),
    )


def ends_of(domain: InputDomain) -> tuple[float, float, float, float]:
    """Where the numbers of ``end_rows`` and ``end_columns`` of float32 begin and end: the lower ones, the upper ones.

    Where the domain has one end only, both halves are the same.
    """
    low, high = _reach(domain, max(domain.low, -_LARGEST["float32"]), min(domain.high, _LARGEST["float32"]))
    below, above = (low, min(high, low / 4.0)), (high, max(low, high / 4.0))
    return (*(below if low < 0.0 else above), *(above if high > 0.0 else below))


def integer_bounds(dtype: str, domain: InputDomain) -> tuple[int, int]:
    """The least and the largest integer of a domain, both included.

    Raises:
        UsageError: it has no finite bounds.
    """
    if not (math.isfinite(domain.low) and math.isfinite(domain.high)):
        raise UsageError(
            "integer inputs need finite bounds", hint="declare low and high (inclusive) in PROBLEM['inputs']"
        )
    limits = np.iinfo(INTEGER_DTYPES[dtype])
    return max(math.ceil(domain.low), int(limits.min)), min(math.floor(domain.high), int(limits.max))


def _end_rows(shape: tuple[int, ...], low: float, high: float, rng: np.random.Generator) -> FloatArray:
    """Every second row at the lower end of the domain, the others at the upper one: from a bound to a quarter of it.

    A row is one index of the first dimension that is longer than 1. This data exposes kernels that start a maximum at
    some constant instead of minus infinity. The spread is wide enough for a one-pass variance.
    """
    leading = [axis for axis, size in enumerate(shape[:-1]) if size > 1]
    if leading:
        return _at_ends(shape, leading[0], low, high, rng)
    halves = np.arange(shape[-1]) < shape[-1] // 2 if shape else np.asarray(rng.random() < 0.5)
    return _ends(np.broadcast_to(halves, shape), low, high, rng)


def _end_columns(shape: tuple[int, ...], low: float, high: float, rng: np.random.Generator) -> FloatArray:
    """Like ``_end_rows``, but along the last dimension, for reductions over the other dimensions."""
    return _at_ends(shape, len(shape) - 1, low, high, rng) if shape else _end_rows(shape, low, high, rng)


def _at_ends(shape: tuple[int, ...], axis: int, low: float, high: float, rng: np.random.Generator) -> FloatArray:
    below = (np.arange(shape[axis]) + rng.integers(2)) % 2 == 0
    return _ends(np.broadcast_to(below.reshape(-1, *[1] * (len(shape) - 1 - axis)), shape), low, high, rng)


def _ends(below: Array, low: float, high: float, rng: np.random.Generator) -> FloatArray:
    """Numbers near the lower bound where ``below``, else near the upper one. A one-sided domain has only one end."""
    below = np.asarray((below & (low < 0.0)) | (high <= 0.0))
    start, most = np.where(below, low, high), np.where(below, min(high, low / 4.0), max(low, high / 4.0))
    return np.asarray(start + (most - start) * rng.random(below.shape))


def _tiny(shape: tuple[int, ...], low: float, high: float, rng: np.random.Generator) -> FloatArray:
    return rng.standard_normal(shape) * 2.0**-40


def _constant_rows(shape: tuple[int, ...], low: float, high: float, rng: np.random.Generator) -> FloatArray:
    rows = _normal((*shape[:-1], 1) if shape else (), low, high, rng)
    # Sixteenths, so that sums are exact: repeating one rounding error n times says nothing about a kernel.
    coarse = np.round(rows * 16.0) / 16.0
    return np.array(np.broadcast_to(np.where((coarse < low) | (coarse > high), rows, coarse), shape))


def _mixed_signs(shape: tuple[int, ...], low: float, high: float, rng: np.random.Generator) -> FloatArray:
    magnitudes = np.exp2(rng.uniform(-10.0, 4.0, shape)) * min(1.0, min(-low, high) / 16.0)
    return np.asarray(np.where(rng.random(shape) < 0.5, -magnitudes, magnitudes))


def _with_non_finite(values: FloatArray, domain: InputDomain, rng: np.random.Generator) -> FloatArray:
    """One element of every second row, on average, becomes NaN or an infinity that the domain admits."""
    infinities = [bound for bound in (domain.low, domain.high) if math.isinf(bound)]
    flat = np.array(values, dtype=np.float64).ravel()
    length = values.shape[-1] if values.ndim > 1 else _PIECE_OF_A_VECTOR
    starts = np.arange(0, flat.size, length)
    starts = starts[rng.random(starts.size) < 0.5] if starts.size > 1 else starts
    at = np.minimum(starts + rng.integers(0, length, starts.size), flat.size - 1)
    flat[at] = rng.choice([math.nan, *infinities], at.size)
    return flat.reshape(values.shape)


def _binary(shape: tuple[int, ...], low: float, high: float, rng: np.random.Generator) -> FloatArray:
    return rng.integers(0, 2, shape).astype(np.float64)


_MAKERS: Mapping[str, _Maker] = {
    "normal": _normal,
    "uniform": _uniform,
    "large": _large,
    "wide": _wide,
    "tiny": _tiny,
    "constant_rows": _constant_rows,
    "mixed_signs": _mixed_signs,
    "binary": _binary,
    "end_rows": _end_rows,
    "end_columns": _end_columns,
    "non_finite": _normal,  # afterwards some elements become NaN or infinite
}
# Independent: elements are drawn one by one from a density. Equal: terms of sums are equal, or nearly so. The same
# number occurs many times, or a tiny number is added to a bias.
INDEPENDENT = frozenset({"normal", "uniform", "large", "wide", "tiny", "mixed_signs"})
EQUAL = frozenset({"constant_rows", "binary", "tiny"})
FAR = ("end_rows", "end_columns")


def _shrink(name: str, dtype: str) -> float:
    """The factor that keeps tiny numbers from vanishing in a narrow dtype."""
    return _TINY[dtype] / 2.0**-40 if name == "tiny" and dtype in _TINY else 1.0


def _integers(name: str, shape: tuple[int, ...], dtype: str, domain: InputDomain, rng: np.random.Generator) -> Array:
    """Integers of the domain: any of them; one for each row; or the two bounds, which make accumulators overflow."""
    kind = INTEGER_DTYPES[dtype]
    low, high = integer_bounds(dtype, domain)
    if name == "binary":
        return np.where(rng.random(shape) < 0.5, kind(low), kind(high))
    if name == "constant_rows":
        rows = rng.integers(low, high, (*shape[:-1], 1) if shape else (), dtype=kind, endpoint=True)
        return np.array(np.broadcast_to(rows, shape))
    return rng.integers(low, high, shape, dtype=kind, endpoint=True)


def _as_dtype(values: FloatArray, dtype: str) -> Array:
    if dtype != "bfloat16":
        return values.astype(_FLOAT_DTYPES[dtype])
    bits = values.astype(np.float32).view(np.uint32)
    half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))  # to nearest, ties to even
    return ((bits + half) >> np.uint32(16)).astype(np.uint16)


# ------------------------------------------------------------------------------------------------- probe format


def _outside(x: Float32Array, low: float, high: float) -> NDArray[np.bool_]:
    return np.asarray((x < np.float32(low)) | (x > np.float32(high)))


def _coded(
    x: Array, rng: np.random.Generator, low: float, high: float, directions: Array | None = None
) -> tuple[Float32Array, Float32Array]:
    plain = np.ascontiguousarray(x, dtype=np.float32).reshape(-1)
    bits = plain.view(np.uint32)
    top = np.where(rng.integers(0, 2, bits.shape, dtype=np.uint8) == 1, _TOP_BITS, np.uint32(0))
    base = (bits & _KEPT_BITS) | top
    tails = [rng.integers(1, _LOW_BITS, bits.shape, dtype=np.uint32) for _ in range(2)]
    if directions is not None:
        away = np.asarray(directions, dtype=np.int8).reshape(-1) * np.where(plain < 0, -1, 1)  # from zero
        half = np.uint32(_LOW_BITS >> 1)
        tails = [
            np.where(away == 0, tail, (tail & (half - 1)) | np.where(away == side, half, np.uint32(0)) | 1)
            for tail, side in zip(tails, (-1, 1), strict=True)
        ]
    first, second = ((base | tail.astype(np.uint32)).view(np.float32) for tail in tails)
    # Zeros stay zeros (low bits alone would be subnormal), and nothing may leave the domain.
    fixed = ((bits & _EXPONENT) == 0) | _outside(first, low, high) | _outside(second, low, high)
    return np.where(fixed, plain, first).reshape(np.shape(x)), np.where(fixed, plain, second).reshape(np.shape(x))
