"""Lowerings of views: index maps over other values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelwright.codegen._builder import Builder, Unsupported
from kernelwright.codegen._ir import Value
from kernelwright.codegen._registry import dim_of, lowering
from kernelwright.codegen._size import Size, product


@lowering("view", "reshape", "_unsafe_view", "_reshape_alias")
def _reshape(b: Builder, x: Value, shape: Sequence[int | Size]) -> Value:
    sizes: list[Size | None] = [None if s == -1 else b.size(s) for s in shape]
    total = product(x.shape, b.variants)
    known = product([s for s in sizes if s is not None], b.variants)
    return b.reshape(x, [s if s is not None else total // known for s in sizes])


@lowering("flatten")
def _flatten(b: Builder, x: Value, start: int = 0, end: int = -1) -> Value:
    first, last = dim_of(x, start), dim_of(x, end)
    return b.reshape(x, [*x.shape[:first], product(x.shape[first : last + 1], b.variants), *x.shape[last + 1 :]])


@lowering("unflatten")
def _unflatten(b: Builder, x: Value, dim: int, sizes: Sequence[int | Size]) -> Value:
    d = dim_of(x, dim)
    known = product([b.size(s) for s in sizes if s != -1], b.variants)
    return b.reshape(
        x, [*x.shape[:d], *(b.size(s) if s != -1 else x.shape[d] // known for s in sizes), *x.shape[d + 1 :]]
    )


@lowering("unsqueeze")
def _unsqueeze(b: Builder, x: Value, dim: int) -> Value:
    d = dim % (len(x.shape) + 1)
    return b.reshape(x, [*x.shape[:d], b.const(1), *x.shape[d:]])


@lowering("squeeze")
def _squeeze(b: Builder, x: Value, dims: int | Sequence[int] | None = None) -> Value:
    axes = range(len(x.shape)) if dims is None else [dims] if isinstance(dims, int) else dims
    drop = {dim_of(x, d) for d in axes if x.shape[dim_of(x, d)].equals(1)}
    return b.reshape(x, [s for d, s in enumerate(x.shape) if d not in drop])


@lowering("permute")
def _permute(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    return b.permute(x, [dim_of(x, d) for d in dims])


@lowering("transpose", "swapaxes")
def _transpose(b: Builder, x: Value, first: int, second: int) -> Value:
    dims = list(range(len(x.shape)))
    i, j = dim_of(x, first), dim_of(x, second)
    dims[i], dims[j] = j, i
    return b.permute(x, dims)


@lowering("t", "numpy_T", "mT")
def _t(b: Builder, x: Value) -> Value:
    return _transpose(b, x, -1, -2) if len(x.shape) > 1 else x


@lowering("movedim")
def _movedim(b: Builder, x: Value, source: Any, target: Any) -> Value:
    sources = [dim_of(x, s) for s in ([source] if isinstance(source, int) else source)]
    targets = [dim_of(x, t) for t in ([target] if isinstance(target, int) else target)]
    rest = [d for d in range(len(x.shape)) if d not in sources]
    placed = dict(zip(targets, sources, strict=True))
    return b.permute(x, [placed[d] if d in placed else rest.pop(0) for d in range(len(x.shape))])


@lowering("expand")
def _expand(b: Builder, x: Value, shape: Sequence[int | Size], *, implicit: bool = False) -> Value:
    lead = len(shape) - len(x.shape)
    return b.expand(x, [x.shape[d - lead] if s == -1 else b.size(s) for d, s in enumerate(shape)])


@lowering("repeat")
def _repeat(b: Builder, x: Value, counts: Sequence[int | Size]) -> Value:
    missing = [b.const(1)] * (len(counts) - len(x.shape))
    times, shape = [b.size(c) for c in counts], [*missing, *x.shape]
    apart = b.reshape(x, [s for size in shape for s in (b.const(1), size)])
    several = b.expand(apart, [s for pair in zip(times, shape, strict=True) for s in pair])
    return b.reshape(several, [count * size for count, size in zip(times, shape, strict=True)])


@lowering("broadcast_tensors")
def _broadcast_tensors(b: Builder, tensors: Sequence[Value]) -> list[Value]:
    shape = b.broadcast([t.shape for t in tensors])
    return [b.expand(t, shape) for t in tensors]


@lowering("expand_as", "broadcast_to")
def _expand_as(b: Builder, x: Value, other: Any) -> Value:
    return b.expand(x, other.shape) if isinstance(other, Value) else _expand(b, x, other)


def _bound(b: Builder, value: int | Size | None, size: Size, default: Size) -> Size:
    if value is None:
        return default
    clipped = []
    for v, s in zip(b.size(value).values, size.values, strict=True):
        clipped.append(min(max(v + s if v < 0 else v, 0), s))
    return Size(tuple(clipped))


@lowering("slice")
def _slice(b: Builder, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Value:
    d = dim_of(x, dim)
    size = x.shape[d]
    first, last = _bound(b, start, size, b.const(0)), _bound(b, end, size, size)
    return b.slice(x, d, first, (last - first + (step - 1)) // step, step)


@lowering("narrow")
def _narrow(b: Builder, x: Value, dim: int, start: int | Size, length: int | Size) -> Value:
    return b.slice(x, dim_of(x, dim), b.size(start), b.size(length))


@lowering("select.int")
def _select(b: Builder, x: Value, dim: int, index: int | Size) -> Value:
    d = dim_of(x, dim)
    start = _bound(b, index, x.shape[d], b.const(0))
    return b.reshape(b.slice(x, d, start, b.const(1)), [*x.shape[:d], *x.shape[d + 1 :]])


@lowering("split.Tensor", "split")
def _split(b: Builder, x: Value, size: int | Size, dim: int = 0) -> list[Value]:
    d = dim_of(x, dim)
    piece = b.size(size)
    counts = {-(-n // p) for n, p in zip(x.shape[d].values, piece.values, strict=True)}
    if len(counts) != 1:
        raise Unsupported("a different number of pieces in different variants")
    return _pieces(b, x, d, [piece] * counts.pop())


@lowering("split_with_sizes")
def _split_with_sizes(b: Builder, x: Value, sizes: Sequence[int | Size], dim: int = 0) -> list[Value]:
    return _pieces(b, x, dim_of(x, dim), [b.size(s) for s in sizes])


@lowering("chunk")
def _chunk(b: Builder, x: Value, chunks: int, dim: int = 0) -> list[Value]:
    size = x.shape[dim_of(x, dim)]
    pieces: list[Value] = _split(b, x, (size + (chunks - 1)) // chunks, dim)
    return pieces


def _pieces(b: Builder, x: Value, d: int, sizes: Sequence[Size]) -> list[Value]:
    out, start = [], b.const(0)
    for size in sizes:
        left = x.shape[d] - start
        length = Size(tuple(min(a, s) for a, s in zip(left.values, size.values, strict=True)))
        out.append(b.slice(x, d, start, length))
        start = start + length
    return out


@lowering("unbind")
def _unbind(b: Builder, x: Value, dim: int = 0) -> list[Value]:
    d = dim_of(x, dim)
    if not x.shape[d].is_const:
        raise Unsupported("a different number of pieces in different variants")
    return [_select(b, x, d, i) for i in range(x.shape[d].timed)]


@lowering("embedding")
def _embedding(b: Builder, weight: Value, index: Value, *_: Any) -> Value:
    wide = b.reshape(index, [*index.shape, b.const(1)])
    shape = (*index.shape, weight.shape[1])
    return b.make("gather", (weight, wide), shape, weight.dtype, "embedding", dim=0, lead=len(index.shape))


@lowering("glu")
def _glu(b: Builder, x: Value, dim: int = -1) -> Value:
    left, right = _chunk(b, x, 2, dim)
    return b.pointwise("mul", left, b.pointwise("sigmoid", right), name="glu")
