"""Lowerings of views: index maps over other values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelwright.codegen._builder import Builder, Unsupported
from kernelwright.codegen._ir import Value, root
from kernelwright.codegen._registry import TABLE, dim_of, lowering
from kernelwright.codegen._size import Shape, Size, product


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


@lowering("repeat_interleave.self_int")
def _repeat_interleave(b: Builder, x: Value, count: int | Size, dim: int | None = None, **_: Any) -> Value:
    if dim is None:
        x, dim = b.reshape(x, [product(x.shape, b.variants)]), 0
    d, times = dim_of(x, dim), b.size(count)
    apart = b.reshape(x, [*x.shape[: d + 1], b.const(1), *x.shape[d + 1 :]])
    several = b.expand(apart, [*x.shape[: d + 1], times, *x.shape[d + 1 :]])
    return b.reshape(several, [*x.shape[:d], x.shape[d] * times, *x.shape[d + 1 :]])


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


# ------------------------------------------------------------------------------------------------ side by side

_MOST_PARTS = 8  # each part is one more selection for every element


@lowering("flip")
def _flip(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    if b.backend != "cpp" and x.op == "scan" and "reverse" not in x.attrs and x.args[0].op == "copy":
        dim, turned = x.attrs["dim"], x.args[0].args[0]
        back = turned.op == "slice" and turned.attrs["dim"] == dim and turned.attrs["step"].equals(-1)
        if back and [dim_of(x, d) for d in dims] == [dim] and turned.args[0].shape == x.shape:
            source = b.in_memory(turned.args[0])
            return b.make("scan", (source,), x.shape, x.dtype, x.attrs["kind"], **x.attrs, reverse=True)
    return b.pointwise("copy", _flipped(b, x, dims), name="flip") if dims else x


def _flipped(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    for dim in dims:
        d = dim_of(x, dim)
        x = b.slice(x, d, x.shape[d] - 1, x.shape[d], -1)
    return x


@lowering("cat", "concat", "concatenate")
def _cat(b: Builder, tensors: Sequence[Value], dim: int = 0) -> Value:
    """Tensors side by side. A tensor of shape (0,) fits to all others, as in torch."""
    parts = [t for t in tensors if len(t.shape) != 1 or not t.shape[0].equals(0)]
    if not 0 < len(parts) <= _MOST_PARTS:
        raise Unsupported("too many tensors side by side, or none that has elements")
    if b.backend == "cpp" and not any(root(part).is_fusible for part in parts):
        raise Unsupported("tensors in memory side by side: torch copies them whole")
    dtype = b.promote(list(tensors))
    d, starts = dim_of(parts[0], dim), [b.const(0)]
    for part in parts:
        starts.append(starts[-1] + part.shape[d])
    shape = (*parts[0].shape[:d], starts[-1], *parts[0].shape[d + 1 :])
    return _parts(b, [b.cast(part, dtype) for part in parts], d, starts[:-1], shape, None)


@lowering("stack")
def _stack(b: Builder, tensors: Sequence[Value], dim: int = 0) -> Value:
    d = dim % (len(tensors[0].shape) + 1)
    out: Value = _cat(b, [b.reshape(t, [*t.shape[:d], b.const(1), *t.shape[d:]]) for t in tensors], d)
    return out


def _parts(b: Builder, parts: Sequence[Value], d: int, starts: Sequence[Size], shape: Shape, fill: Any) -> Value:
    kept = [(part, start) for part, start in zip(parts, starts, strict=True) if not part.shape[d].equals(0)]
    if not kept or parts[0].dtype not in b.rank:
        raise Unsupported(f"nothing side by side, or dtype {parts[0].dtype}")
    name, attrs = b.origin[1].split(".")[0], {"dim": d, "starts": tuple(start for _, start in kept), "fill": fill}
    return b.make("parts", tuple(part for part, _ in kept), shape, parts[0].dtype, name, **attrs)


@lowering("roll")
def _roll(b: Builder, x: Value, shifts: Any, dims: Any = ()) -> Value:
    moves = shifts if isinstance(shifts, tuple) else (shifts,)
    if dims == ():
        return b.reshape(_rolled(b, b.reshape(x, [product(x.shape, b.variants)]), moves[0], 0), x.shape)
    for move, dim in zip(moves, dims if isinstance(dims, tuple) else (dims,), strict=True):
        x = _rolled(b, x, move, dim_of(x, dim))
    return x


def _rolled(b: Builder, x: Value, shift: int | Size, d: int) -> Value:
    columns = zip(b.size(shift).values, x.shape[d].values, strict=True)
    moved = Size(tuple(move % size if size else 0 for move, size in columns))
    stayed = x.shape[d] - moved
    pieces = [b.slice(x, d, stayed, moved), b.slice(x, d, b.const(0), stayed)]
    return _parts(b, pieces, d, [b.const(0), moved], x.shape, None)


@lowering("pad", "constant_pad_nd")
def _pad(b: Builder, x: Value, pads: Sequence[int | Size], mode: Any = "constant", fill: Any = None) -> Value:
    if not isinstance(mode, str):
        mode, fill = "constant", mode
    if mode == "constant" and (fill is not None and x.dtype == "bool"):
        raise Unsupported("a number beside booleans")
    for place in range(0, len(pads), 2):
        d = len(x.shape) - 1 - place // 2
        before, behind = b.size(pads[place]), b.size(pads[place + 1])
        x = _padded(b, x, d, before, behind, mode, 0 if fill is None else fill)
    return x


def _padded(b: Builder, x: Value, d: int, before: Size, behind: Size, mode: str, fill: Any) -> Value:
    """One dim with more elements before and behind it. A negative number of them takes elements away."""
    cut = [Size(tuple(max(-v, 0) for v in side.values)) for side in (before, behind)]
    more = [Size(tuple(max(v, 0) for v in side.values)) for side in (before, behind)]
    x = b.slice(x, d, cut[0], x.shape[d] - cut[0] - cut[1])
    size, start = x.shape[d], b.const(0)
    if all(m.equals(0) for m in more):
        return x
    shape = (*x.shape[:d], size + more[0] + more[1], *x.shape[d + 1 :])
    if mode != "constant" and b.backend == "cpp":
        raise Unsupported("a border of the tensor's own elements")
    if mode == "constant":
        return _parts(b, [x], d, [more[0]], shape, fill)
    if mode == "circular":
        left, right = b.slice(x, d, size - more[0], more[0]), b.slice(x, d, start, more[1])
    elif mode == "reflect":
        left = _flipped(b, b.slice(x, d, start + 1, more[0]), [d])
        right = _flipped(b, b.slice(x, d, size - more[1] - 1, more[1]), [d])
    else:
        ends = [b.slice(x, d, start, start + 1), b.slice(x, d, size - 1, start + 1)]
        left, right = (
            b.expand(end, [*x.shape[:d], many, *x.shape[d + 1 :]]) for end, many in zip(ends, more, strict=True)
        )
    return _parts(b, [left, x, right], d, [start, more[0], more[0] + size], shape, None)


for _name, _mode in {"reflection": "reflect", "replication": "replicate"}.items():
    for _rank in (1, 2, 3):
        TABLE[f"{_name}_pad{_rank}d"] = lambda b, x, pads, mode=_mode: _pad(b, x, pads, mode)


@lowering("embedding")
def _embedding(b: Builder, weight: Value, index: Value, *_: Any) -> Value:
    wide = b.reshape(index, [*index.shape, b.const(1)])
    shape = (*index.shape, weight.shape[1])
    return b.make("gather", (weight, wide), shape, weight.dtype, "embedding", dim=0, lead=len(index.shape))


@lowering("glu")
def _glu(b: Builder, x: Value, dim: int = -1) -> Value:
    left, right = _chunk(b, x, 2, dim)
    return b.pointwise("mul", left, b.pointwise("sigmoid", right), name="glu")
