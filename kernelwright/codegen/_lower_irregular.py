"""Lowerings of operators that gather, scatter or scan: running extremes, top-k, sums by index, resampling, searches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kernelwright.codegen._builder import Builder, Unsupported
from kernelwright.codegen._graph import Scalar
from kernelwright.codegen._ir import Value
from kernelwright.codegen._registry import dim_of, lowering, same_type
from kernelwright.codegen._size import Shape, Size

_MOST_BINS = 1024  # bins that a program on a GPU counts on its own
_MOST_KEPT = 128  # largest k of a top-k; beyond it, sorting is quicker than keeping a sorted list


def _second(b: Builder, first: Value) -> Value:
    """The second result of a routine: indices."""
    return b.make("second", (first,), first.shape, "int64", f"{first.name}_index")


@lowering("cummax", "cummin")
def _running_extreme(b: Builder, x: Value, dim: int) -> list[Value]:
    if x.dtype != "float32" or not x.shape:
        raise Unsupported(f"running extremes of {x.dtype}")
    compare = ">=" if b.origin[1].startswith("cummax") else "<="
    best = b.routine("extreme", [x], x.shape, x.dtype, dim=dim_of(x, dim), compare=compare)
    return [best, _second(b, best)]


@lowering("topk")
def _top_k(
    b: Builder, x: Value, k: int | Size, dim: int = -1, largest: bool = True, in_order: bool = True
) -> list[Value]:
    count = b.size(k)
    if x.dtype != "float32" or not x.shape or dim_of(x, dim) != len(x.shape) - 1:
        raise Unsupported("the largest of other than float32, or along another dim than the last")
    if not all(0 < v <= _MOST_KEPT for v in count.values):
        raise Unsupported("too many of a row")
    best = b.routine("top", [x], (*x.shape[:-1], count), x.dtype, largest=largest)
    return [best, _second(b, best)]


@lowering("segment_reduce")
def _segment_reduce(
    b: Builder, x: Value, reduce: str, *, lengths: Any = None, indices: Any = None, offsets: Value | None = None,
    axis: int = 0, unsafe: bool = False, initial: Any = None,
) -> Value:  # fmt: skip
    one_row = offsets is not None and len(offsets.shape) == 1 and axis == 0
    if reduce not in ("sum", "mean") or x.dtype != "float32" or not one_row or initial is not None:
        raise Unsupported("this form of segment_reduce")
    assert offsets is not None
    shape = (offsets.shape[0] - 1, *x.shape[1:])
    return b.routine("segments", [x, offsets], shape, x.dtype, mean=reduce == "mean", empty=math.nan)


@lowering("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(
    b: Builder, table: Value, index: Value, offsets: Value, scale_by_frequency: bool = False, mode: int = 0,
    sparse: bool = False, weights: Value | None = None, last_offset: bool = False, padding: int | None = None,
) -> list[Value]:  # fmt: skip
    if mode not in (0, 1) or table.dtype != "float32" or len(index.shape) != 1:
        raise Unsupported("this form of embedding_bag")
    padding = None if padding in (None, -1) else padding % table.shape[0].timed
    if padding is not None and (b.backend == "cpp" or not table.shape[0].is_const):
        raise Unsupported("this form of embedding_bag")
    bags = offsets.shape[0] - 1 if last_offset else offsets.shape[0]
    given = [table, index, offsets, *([weights] if weights is not None else [])]
    attrs = {"mean": mode == 1, "empty": 0.0, "padding": padding}
    return [b.routine("segments", given, (bags, table.shape[1]), table.dtype, **attrs)]


@lowering("index_add")
def _index_add(b: Builder, x: Value, dim: int, index: Value, source: Value, *, alpha: Any = 1) -> Value:
    d = dim_of(x, dim)
    if x.dtype not in ("float32", "int64", "int32") or source.dtype != x.dtype or len(index.shape) != 1 or not x.shape:
        raise Unsupported("this form of index_add")
    if isinstance(alpha, Scalar) or not math.isfinite(alpha):
        raise Unsupported("a scale that differs between variants, or is no number")
    fill, begun = _begun(b, x)
    offsets = _bounds_of(index)
    plain = b.backend != "cuda" and x.dtype == "float32" and len(x.shape) == 2 and fill == 0 and alpha == 1
    if plain and d == 0 and offsets is not None and offsets.shape[0] == x.shape[0] + 1:
        return _sums_of_segments(b, x, offsets, source)
    if b.backend != "cpp":
        place = b.unsqueeze_to(index, len(x.shape), d)
        return _scatter(b, x, [*begun, place, source], source.shape, dim=d, fill=fill, scale=alpha)
    args = [*begun, index, source]
    return b.routine("add_rows", args, x.shape, x.dtype, dim=d, fill=fill, scale=alpha)


@lowering("scatter_add")
def _scatter_add(b: Builder, x: Value, dim: int, index: Value, source: Value) -> Value:
    d = dim_of(x, dim)
    same = [size for n, size in enumerate(x.shape) if n != d] == [s for n, s in enumerate(index.shape) if n != d]
    if x.dtype not in ("float32", "int64", "int32") or source.dtype != x.dtype or not x.shape:
        raise Unsupported(f"scatter_add of {x.dtype}")
    if not same or source.shape != index.shape:
        raise Unsupported("a scatter_add of a part")
    fill, begun = _begun(b, x)
    if b.backend != "cpp":
        places = x.shape[d]
        counted = _is_number(source) and source.args[0] == 1 and d == len(x.shape) - 1
        if b.backend == "triton" and counted and places.is_const and places.timed <= _MOST_BINS:
            return b.routine("counts", [*begun, index], x.shape, x.dtype, fill=fill)
        added = source.args[0] if _is_number(source) else source
        return _scatter(b, x, [*begun, index, added], index.shape, dim=d, fill=fill, scale=1)
    number = source.args[0] if _is_number(source) else None
    args = [*begun, index, *([] if number is not None else [source])]
    return b.routine("add_elements", args, x.shape, x.dtype, dim=d, fill=fill, number=number)


def _bounds_of(index: Value) -> Value | None:
    """The bounds of segments, where an index is the number of the segment in which each row lies."""
    if index.op != "sub" or index.args[1] != 1 or not isinstance(index.args[0], Value):
        return None
    return index.args[0].attrs.get("bounds")


def _sums_of_segments(b: Builder, x: Value, offsets: Value, source: Value) -> Value:
    """Sums over contiguous rows; rows that are picked from a table, and weighted, are never written."""
    rows, weights = source, None
    if source.op == "mul" and all(isinstance(a, Value) for a in source.args):
        weights, rows = sorted(source.args, key=lambda a: a.op == "gather")
        weights = weights.args[0] if weights.op == "reshape" else weights
        if weights.shape != source.shape[:1] or weights.dtype != "float32" or rows.op != "gather":
            rows, weights = source, None
    given, wraps = [source, offsets], False
    if rows.op == "gather" and rows.attrs["lead"] == 1 and rows.args[0].dtype == "float32":
        wraps = b.backend == "triton" and "raw" in rows.attrs  # that kernel counts negative numbers from the end itself
        index = rows.attrs["raw"] if wraps else rows.args[1].args[0]
        given = [rows.args[0], index, offsets, *([weights] if weights is not None else [])]
    return b.routine("segments", given, x.shape, x.dtype, mean=False, empty=0.0, wraps=wraps)


def _scatter(b: Builder, x: Value, args: Sequence[Any], over: Shape, **attrs: Any) -> Value:
    return b.make("scatter", tuple(args), x.shape, x.dtype, b.origin[1].split(".")[0], over=over, **attrs)


def _is_number(x: Value) -> bool:
    value = x.args[0] if x.op == "full" else None
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _begun(b: Builder, x: Value) -> tuple[float | None, list[Value]]:
    """The initial value of sums: a number, or a value in memory."""
    return (x.args[0], []) if _is_number(x) else (None, [b.in_memory(x)])


@lowering("scatter.value")
def _scatter_number(b: Builder, x: Value, dim: int, index: Value, number: float) -> Value:
    """Write a number to one position of each row, as a comparison of positions."""
    d = dim_of(x, dim)
    same = [size for n, size in enumerate(x.shape) if n != d] == [s for n, s in enumerate(index.shape) if n != d]
    if not same or not index.shape[d].equals(1) or isinstance(number, Scalar):
        raise Unsupported("a scatter to several places of a row")
    place = b.make("iota", (), x.shape, "int64", "place", dim=d)
    if all(size < 1 << 31 for size in x.shape[d].values):  # a vector holds as many int32 as float32
        place, index = b.cast(place, "int32"), b.cast(index, "int32")
    return b.pointwise("where", b.pointwise("eq", place, index), number, x, dtype=x.dtype)


@lowering("index.Tensor")
def _index(b: Builder, x: Value, indices: Sequence[Value | None]) -> Value:
    """Rows picked by one tensor of indices. Negative indices count from the end, as in torch."""
    if len(indices) != 1 or not isinstance(indices[0], Value) or indices[0].dtype not in ("int64", "int32"):
        raise Unsupported("this form of indexing")
    raw, size = indices[0], x.shape[0]
    index = b.pointwise("where", b.pointwise("lt", raw, 0), b.pointwise("add", raw, size), raw, dtype="int64")
    wide = b.reshape(index, [*index.shape, b.const(1)])
    shape = (*index.shape, *x.shape[1:])
    return b.make("gather", (b.in_memory(x), wide), shape, x.dtype, "rows", dim=0, lead=len(raw.shape), raw=raw)


# ------------------------------------------------------------------------------------------------ resampling


@lowering("upsample_bilinear2d", "upsample_nearest2d")
def _upsample(b: Builder, x: Value, size: Any, *rest: Any) -> Value:
    kind = "nearest" if b.origin[1].startswith("upsample_nearest") else "bilinear"
    corners = bool(rest[0]) if kind == "bilinear" else False
    scales = rest[-1] if rest and isinstance(rest[-1], tuple) else None
    if x.dtype != "float32" or len(x.shape) != 4 or not b.origin[1].endswith(".vec"):
        raise Unsupported("this form of resampling")
    out, numbers = [], []
    for place, whole in enumerate(x.shape[-2:]):
        if size is None:
            assert scales is not None
            factors = _in_variants(b, scales[place])
            length = Size(tuple(int(w * f) for w, f in zip(whole.values, factors, strict=True)))
            ratio = tuple(1.0 / f for f in factors)
        else:
            length = b.size(size[place])
            ratio = tuple(w / n for w, n in zip(whole.values, length.values, strict=True))
        if corners:
            ratio = tuple((w - 1) / (n - 1) if n > 1 else 0.0 for w, n in zip(whole.values, length.values, strict=True))
        out.append(length)
        numbers.append(("hw"[place], Scalar(ratio) if len(set(ratio)) > 1 else ratio[0]))
    named = [(f"scale_{letter}", number) for letter, number in numbers]
    if b.backend != "cpp":
        ratios = [number for _, number in numbers]
        return _nearest(b, x, out, ratios) if kind == "nearest" else _bilinear(b, x, out, ratios, corners)
    attrs = {"kind": kind, "align_corners": corners, "numbers": named}
    return b.routine("resample", [x], (*x.shape[:-2], *out), x.dtype, **attrs)


def _in_variants(b: Builder, number: float | Scalar) -> tuple[float, ...]:
    return number.values if isinstance(number, Scalar) else (float(number),) * b.variants


def _along(b: Builder, length: Size, rank: int, dim: int) -> Value:
    """The positions along one dim, as float32."""
    place = b.cast(b.make("iota", (), (length,), "int64", dim=0), "float32")
    return b.unsqueeze_to(place, rank, dim)


def _picked(b: Builder, x: Value, row: Value, column: Value) -> Value:
    """The elements of each plane at a row and a column."""
    source, _ = b.held(x)
    *lead, height, width = x.shape
    place = b.pointwise("add", b.pointwise("mul", row, width), column, name="place")
    attrs = {"dim": len(lead), "lead": -1, "seen_as": (*lead, height * width)}
    return b.make("gather", (source, place), (*lead, *place.shape), x.dtype, "picked", **attrs)


def _nearest(b: Builder, x: Value, out: Sequence[Size], ratios: Sequence[Any]) -> Value:
    """The element at or before each position, whose coordinates are rounded down."""
    places = []
    for d, (size, length, ratio) in enumerate(zip(x.shape[-2:], out, ratios, strict=True)):
        place = b.cast(b.pointwise("mul", _along(b, length, 2, d), ratio), "int32")
        places.append(b.pointwise("clamp_max", place, size - 1))
    return _picked(b, x, *places)


def _bilinear(b: Builder, x: Value, out: Sequence[Size], ratios: Sequence[Any], corners: bool) -> Value:
    """A mean of the four elements around each position, weighted by nearness."""
    firsts, seconds, weights = [], [], []
    for d, (size, length, ratio) in enumerate(zip(x.shape[-2:], out, ratios, strict=True)):
        at = _along(b, length, 2, d)
        if corners:
            exact = b.pointwise("mul", at, ratio, name="exact")
        else:
            middle = b.pointwise("mul", b.pointwise("add", at, 0.5), ratio)
            exact = b.pointwise("clamp_min", b.pointwise("sub", middle, 0.5), 0.0, name="exact")
        first = b.pointwise("clamp_max", b.cast(exact, "int32"), size - 1, name="first")
        firsts.append(first)
        seconds.append(b.pointwise("clamp_max", b.pointwise("add", first, 1), size - 1, name="second"))
        weights.append(b.pointwise("sub", exact, b.cast(first, "float32"), name="weight"))
    rows = []
    for row in (firsts[0], seconds[0]):
        left, right = (_picked(b, x, row, column) for column in (firsts[1], seconds[1]))
        rows.append(_mixed(b, left, right, weights[1]))
    return _mixed(b, rows[0], rows[1], weights[0])


def _mixed(b: Builder, one: Value, other: Value, weight: Value) -> Value:
    rest = b.pointwise("sub", 1.0, weight, name="rest")
    return b.pointwise("add", b.pointwise("mul", rest, one), b.pointwise("mul", weight, other), name="mixed")


# ------------------------------------------------------------------------------------------------ search


@lowering("searchsorted.Tensor")
def _searchsorted(
    b: Builder, ascending: Value, x: Value, *, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: Value | None = None,
) -> Value:  # fmt: skip
    """How many of ascending numbers lie before each value (or before and at it): a bisection of fixed length."""
    count = ascending.shape[0] if ascending.shape else b.const(0)
    if len(ascending.shape) != 1 or sorter is not None or not all(0 < v < 1 << 30 for v in count.values):
        raise Unsupported("this form of a search")
    right = right or side == "right"
    source, _ = b.held(ascending)
    found = b.make("full", (0,), x.shape, "int32", "found")
    for bit in reversed(range(max(count.values).bit_length())):
        more = b.pointwise("add", found, 1 << bit, name="more")
        probe = b.pointwise("sub", b.pointwise("clamp_max", more, count), 1, name="probe")
        wide = b.reshape(probe, [*probe.shape, b.const(1)])
        number = b.make("gather", (source, wide), probe.shape, source.dtype, "number", dim=0, lead=len(probe.shape))
        behind = b.pointwise("not", b.pointwise("gt" if right else "ge", *same_type(b, number, x)))
        taken = b.pointwise("and", behind, b.pointwise("le", more, count))
        found = b.pointwise("where", taken, more, found, dtype="int32", name="found")
    out = b.cast(found, "int32" if out_int32 else "int64")
    if right and x.op == "iota" and len(x.shape) == 1:
        out.attrs["bounds"] = ascending
    return out


@lowering("bucketize.Tensor")
def _bucketize(b: Builder, x: Value, ascending: Value, **more: Any) -> Value:
    found: Value = _searchsorted(b, ascending, x, **more)
    return found
