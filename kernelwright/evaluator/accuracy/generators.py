"""Draw inputs from an archive's generators, with numpy in the referee's own memory. No foreign code runs.

A generator only names patterns. Every element is clipped to the input's declared domain, so a right kernel must accept
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelwright.errors import UsageError
from kernelwright.evaluator.accuracy import distributions
from kernelwright.records import InputDomain, InputPattern

__all__ = ["draw"]

_Rows = NDArray[np.float64]  # (rows, length)
_FLOATS = ("float64", "float32", "float16", "bfloat16")


def draw(
    pattern: InputPattern, shape: Sequence[int], dtype: str, domain: InputDomain, rng: np.random.Generator
) -> NDArray[Any]:
    """Draw one input of ``shape`` by a pattern, inside its domain; bfloat16 as uint16 bits.

    Raises:
        UsageError: only the problem itself can make the input, or its dtype cannot be drawn.
    """
    if domain.fill == "structured":
        raise UsageError("a structured input is made by the problem's own get_inputs alone")
    if dtype != "bool" and dtype not in _FLOATS and not (math.isfinite(domain.low) and math.isfinite(domain.high)):
        raise UsageError("integer inputs need finite bounds", hint="declare low and high in PROBLEM['inputs']")
    dims = tuple(shape) or (1,)
    if 0 in dims:
        return _cast(np.zeros(dims), dtype, domain)
    axis = max(pattern.axis, -len(dims))
    moved = (*dims[: len(dims) + axis], *dims[len(dims) + axis + 1 :], dims[axis])
    bounded = InputDomain(fill="uniform", low=0.0, high=1.0) if dtype == "bool" else domain
    rows = _base(moved, bounded, dtype, rng).reshape(-1, dims[axis])
    made = _MAKERS[pattern.kind](rows, pattern, bounded, rng)
    values = np.moveaxis(np.clip(made, bounded.low, bounded.high).reshape(moved), -1, axis)
    return _cast(np.ascontiguousarray(values), dtype, domain).reshape(tuple(shape))


def _base(shape: tuple[int, ...], domain: InputDomain, dtype: str, rng: np.random.Generator) -> NDArray[np.float64]:
    if dtype in _FLOATS:
        made: NDArray[np.float64] = distributions.make("normal", shape, "float64", domain, rng)
        return made
    return rng.uniform(domain.low, domain.high, shape)


def _cast(values: NDArray[np.float64], dtype: str, domain: InputDomain) -> NDArray[Any]:
    if dtype == "bool":
        return values > 0.5
    if dtype in _FLOATS:
        return distributions.as_dtype(values, dtype, domain)
    kind = distributions.integer_dtype(dtype)
    limits = np.iinfo(kind)
    low, high = max(math.ceil(domain.low), int(limits.min)), min(math.floor(domain.high), int(limits.max))
    return np.clip(np.rint(values), low, high).astype(kind)


# ------------------------------------------------------------------------------------------------------ patterns


def _normal(z: _Rows, p: InputPattern, domain: InputDomain, rng: np.random.Generator) -> _Rows:
    return z


def _scaled(z: _Rows, p: InputPattern, domain: InputDomain, rng: np.random.Generator) -> _Rows:
    return z * p.magnitude


def _offset(z: _Rows, p: InputPattern, domain: InputDomain, rng: np.random.Generator) -> _Rows:
    return z + p.magnitude


def _one_sided(z: _Rows, p: InputPattern, domain: InputDomain, rng: np.random.Generator) -> _Rows:
    return np.abs(z) * p.magnitude


def _constant(z: _Rows, p: InputPattern, domain: InputDomain, rng: np.random.Generator) -> _Rows:
    return np.full_like(z, p.magnitude)


def _bounds(z: _Rows, p: InputPattern, domain: InputDomain, rng: np.random.Generator) -> _Rows:
    size = abs(p.magnitude)
    low = domain.low if math.isfinite(domain.low) else -size
    high = domain.high if math.isfinite(domain.high) else size
    return np.where(rng.random(z.shape) < 0.5, low, high)


def _alternating(z: _Rows, p: InputPattern, domain: InputDomain, rng: np.random.Generator) -> _Rows:
    return z + np.where(np.arange(z.shape[1]) % 2 == 0, p.magnitude, -p.magnitude)


def _ties(z: _Rows, p: InputPattern, domain: InputDomain, rng: np.random.Generator) -> _Rows:
    numbers: _Rows = rng.choice(z.ravel(), p.count) * p.magnitude
    return numbers[rng.integers(0, p.count, z.shape)]


def _equal_maxima(z: _Rows, p: InputPattern, domain: InputDomain, rng: np.random.Generator) -> _Rows:
    top = np.max(z, axis=1, keepdims=True) + abs(p.magnitude)
    return np.where(_chosen(z.shape, p.count + 1, p, rng), top, z)


def _sorted(z: _Rows, p: InputPattern, domain: InputDomain, rng: np.random.Generator) -> _Rows:
    ascending: _Rows = np.sort(z * p.magnitude, axis=1)
    return ascending[:, ::-1] if p.place == "first" else ascending


def _outliers(z: _Rows, p: InputPattern, domain: InputDomain, rng: np.random.Generator) -> _Rows:
    return np.where(_chosen(z.shape, p.count, p, rng), z * p.magnitude, z)


def _sparse(z: _Rows, p: InputPattern, domain: InputDomain, rng: np.random.Generator) -> _Rows:
    return np.where(_chosen(z.shape, p.count, p, rng), z * p.magnitude, 0.0)


def _signed_zeros(z: _Rows, p: InputPattern, domain: InputDomain, rng: np.random.Generator) -> _Rows:
    which = rng.random(z.shape)
    return np.where(which < 0.25, 0.0, np.where(which < 0.5, -0.0, z * p.magnitude))


def _uneven_rows(z: _Rows, p: InputPattern, domain: InputDomain, rng: np.random.Generator) -> _Rows:
    """Scale runs of ``count`` elements, counted over all rows. A count as long as a row gives each row its own size."""
    runs = -(-z.size // p.count)
    widest = math.log2(max(abs(p.magnitude), 1.0 / abs(p.magnitude)))
    factors: _Rows = np.exp2(np.rint(rng.uniform(0.0, widest, runs)) * (1.0 if abs(p.magnitude) >= 1.0 else -1.0))
    return z * np.repeat(factors, p.count)[: z.size].reshape(z.shape)


def _chosen(shape: tuple[int, int], count: int, p: InputPattern, rng: np.random.Generator) -> NDArray[np.bool_]:
    """A mask (rows, length) of ``count`` places in each row."""
    length = shape[1]
    count = min(count, length)
    if p.place == "random":
        order = np.argsort(rng.random(shape), axis=1)
        return np.asarray(order < count)
    at = np.arange(length)
    return np.broadcast_to(at < count if p.place == "first" else at >= length - count, shape)


_Maker = Callable[[_Rows, InputPattern, InputDomain, np.random.Generator], _Rows]
_MAKERS: Mapping[str, _Maker] = {
    "alternating": _alternating,
    "bounds": _bounds,
    "constant": _constant,
    "equal_maxima": _equal_maxima,
    "normal": _normal,
    "offset": _offset,
    "one_sided": _one_sided,
    "outliers": _outliers,
    "scaled": _scaled,
    "signed_zeros": _signed_zeros,
    "sorted": _sorted,
    "sparse": _sparse,
    "ties": _ties,
    "uneven_rows": _uneven_rows,
}
