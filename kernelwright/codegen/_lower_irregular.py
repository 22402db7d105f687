"""Lowerings of operators that are not loop nests: running extremes, top-k, sums by index, resampling, lookups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kernelwright.codegen._builder import Builder, Unsupported
from kernelwright.codegen._graph import Scalar
from kernelwright.codegen._ir import Value
from kernelwright.codegen._registry import dim_of, lowering
from kernelwright.codegen._size import Size

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
    return b.routine("segments", [x, offsets], shape, x.dtype, mean=reduce == "mean", empty="NAN")


@lowering("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(
    b: Builder, table: Value, index: Value, offsets: Value, scale_by_frequency: bool = False, mode: int = 0,
    sparse: bool = False, weights: Value | None = None, last_offset: bool = False, padding: int | None = None,
) -> list[Value]:  # fmt: skip
    if mode not in (0, 1) or table.dtype != "float32" or len(index.shape) != 1 or padding not in (None, -1):
        raise Unsupported("this form of embedding_bag")
    bags = offsets.shape[0] - 1 if last_offset else offsets.shape[0]
    given = [table, index, offsets, *([weights] if weights is not None else [])]
    return [b.routine("segments", given, (bags, table.shape[1]), table.dtype, mean=mode == 1, empty="0.0f")]


@lowering("index_add")
def _index_add(b: Builder, x: Value, dim: int, index: Value, source: Value, *, alpha: Any = 1) -> Value:
    d = dim_of(x, dim)
    if x.dtype not in ("float32", "int64", "int32") or source.dtype != x.dtype or len(index.shape) != 1:
        raise Unsupported("this form of index_add")
    if isinstance(alpha, Scalar) or not math.isfinite(alpha):
        raise Unsupported("a scale that differs between variants, or is no number")
    fill, begun = _begun(x)
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
    fill, begun = _begun(x)
    number = source.args[0] if _is_number(source) else None
    args = [*begun, index, *([] if number is not None else [source])]
    return b.routine("add_elements", args, x.shape, x.dtype, dim=d, fill=fill, number=number)


def _is_number(x: Value) -> bool:
    value = x.args[0] if x.op == "full" else None
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _begun(x: Value) -> tuple[float | None, list[Value]]:
    """The initial value of sums: a number, or a value in memory."""
    return (x.args[0], []) if _is_number(x) else (None, [x])


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
    index, size = indices[0], x.shape[0]
    index = b.pointwise("where", b.pointwise("lt", index, 0), b.pointwise("add", index, size), index, dtype="int64")
    wide = b.reshape(index, [*index.shape, b.const(1)])
    shape = (*index.shape, *x.shape[1:])
    return b.make("gather", (b.in_memory(x), wide), shape, x.dtype, "rows", dim=0, lead=len(index.shape))


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
    attrs = {"kind": kind, "align_corners": corners, "numbers": named}
    return b.routine("resample", [x], (*x.shape[:-2], *out), x.dtype, **attrs)


def _in_variants(b: Builder, number: float | Scalar) -> tuple[float, ...]:
    return number.values if isinstance(number, Scalar) else (float(number),) * b.variants
