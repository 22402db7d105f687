"""Lowerings of the heavy operators: matrix products, convolutions, pooling, attention."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from kernelwright.codegen._builder import Builder, Unsupported
from kernelwright.codegen._graph import Scalar
from kernelwright.codegen._ir import POINTWISE, Value
from kernelwright.codegen._registry import lowering
from kernelwright.codegen._size import Size, product

_MOST_LANES = 1 << 13  # columns times bins that a Triton kernel adds up at once (a fourth of its largest tile)
_SHORT = 16  # elements of a window that a loop nest reads whole
_CHEAP = 64  # flops for all elements of such a window


def product_of(b: Builder, left: Value, right: Value, *, transposed: bool = False) -> Value:
    """``left @ right`` over the last two dims; with ``transposed``, right is given as (..., N, K)."""
    if left.dtype not in b.floats or right.dtype != left.dtype or len(right.shape) < 2 or len(left.shape) < 2:
        raise Unsupported("a matrix product of this dtype or rank")
    if right.is_view and right.op == "permute" and not transposed:
        dims = right.attrs["dims"]
        rank = len(dims)
        if tuple(dims) == (*range(rank - 2), rank - 1, rank - 2):
            right, transposed = right.args[0], True
    batch = left.shape[:-2]
    if len(right.shape) > 2 and right.shape[:-2] != batch:
        raise Unsupported("a batched matrix product that broadcasts")
    columns = right.shape[-2] if transposed else right.shape[-1]
    shape = (*left.shape[:-1], columns)
    return b.make("matmul", (left, right), shape, left.dtype, transposed=transposed)


@lowering("matmul", "mm", "bmm", "mv", "dot")
def _matmul(b: Builder, left: Value, right: Value) -> Value:
    if len(right.shape) == 1:  # a sum over each row: a matrix of one column would be copied needlessly
        return b.reduce("sum", b.pointwise("mul", left, right), [len(left.shape) - 1], False, name="product")
    return product_of(b, left, right)


@lowering("linear")
def _linear(b: Builder, x: Value, weight: Value, bias: Value | None = None) -> Value:
    if len(x.shape) == 1:
        y: Value = _matmul(b, weight, x)
    elif x.op == "permute" and x.attrs["dims"][-1] == len(x.shape) - 1:  # the order of rows does not matter
        return b.permute(_linear(b, x.args[0], weight, bias), x.attrs["dims"])
    else:
        y = product_of(b, x, weight, transposed=True)
    return y if bias is None else b.pointwise("add", y, bias, name="linear")


@lowering("addmm", "baddbmm")
def _addmm(b: Builder, bias: Value, left: Value, right: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    y = product_of(b, left, right)
    y = y if alpha == 1 else b.pointwise("mul", y, alpha)
    bias = bias if beta == 1 else b.pointwise("mul", bias, beta)
    return b.pointwise("add", y, bias, name="addmm")


# ------------------------------------------------------------------------------------------------ convolutions


def window(b: Builder, value: Any, rank: int, default: int = 1) -> tuple[Size, ...]:
    """A window parameter of each image dim."""
    if value is None or value == ():
        return (b.const(default),) * rank
    if isinstance(value, (int, Size)):
        return (b.size(value),) * rank
    sizes = [b.size(v) for v in value]
    sizes = sizes * rank if len(sizes) == 1 else sizes
    if len(sizes) != rank:
        raise Unsupported("windows of another rank than the image's")
    return tuple(sizes)


def _biased(b: Builder, y: Value, bias: Value | None, x: Value) -> Value:
    """Add the bias of each filter. Remove the batch dim if the input had none."""
    if bias is not None:
        y = b.pointwise("add", y, b.unsqueeze_to(bias, len(y.shape), 1), name="conv_bias")
    return y if len(x.shape) == len(y.shape) else b.reshape(y, y.shape[1:])


def _batched(b: Builder, x: Value, weight: Value) -> Value:
    if x.dtype not in b.floats or weight.dtype != x.dtype:
        raise Unsupported(f"a convolution of {x.dtype}")
    return x if len(x.shape) == len(weight.shape) else b.reshape(x, [b.const(1), *x.shape])


@lowering("conv1d", "conv2d", "conv3d")
def _conv(
    b: Builder, x: Value, weight: Value, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: Any = 1,
) -> Value:  # fmt: skip
    rank = len(weight.shape) - 2
    image = _batched(b, x, weight)
    steps, gaps = window(b, stride, rank), window(b, dilation, rank)
    named = padding if isinstance(padding, str) else None
    reach = [(weight.shape[2 + d] - 1) * gaps[d] + 1 for d in range(rank)]
    border = window(b, 0 if named else padding, rank, 0)
    both = [p * 2 for p in border]
    if named == "same":
        both = [r - 1 for r in reach]
        border = tuple(p // 2 for p in both)
    spatial = [(image.shape[2 + d] + both[d] - reach[d]) // steps[d] + 1 for d in range(rank)]
    attrs: dict[str, Any] = {
        "stride": steps,
        "padding": border,
        "dilation": gaps,
        "groups": b.size(groups),
        "named": named,
    }
    attrs |= {"transposed": False, "output_padding": window(b, 0, rank)}
    y = b.make("conv", (image, weight), (image.shape[0], weight.shape[0], *spatial), x.dtype, **attrs)
    return _biased(b, y, bias, x)


@lowering("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _conv_transpose(
    b: Builder, x: Value, weight: Value, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
    groups: Any = 1, dilation: Any = 1,
) -> Value:  # fmt: skip
    rank = len(weight.shape) - 2
    image = _batched(b, x, weight)
    steps, border, gaps = window(b, stride, rank), window(b, padding, rank, 0), window(b, dilation, rank)
    more = window(b, output_padding, rank, 0)
    spatial = []
    for d in range(rank):
        reach = (weight.shape[2 + d] - 1) * gaps[d] + 1
        spatial.append((image.shape[2 + d] - 1) * steps[d] - border[d] * 2 + reach + more[d])
    count = b.size(groups)
    attrs: dict[str, Any] = {"stride": steps, "padding": border, "dilation": gaps, "groups": count, "named": None}
    attrs |= {"transposed": True, "output_padding": more}
    y = b.make("conv", (image, weight), (image.shape[0], weight.shape[1] * count, *spatial), x.dtype, **attrs)
    return _biased(b, y, bias, x)


@lowering("convolution")
def _convolution(
    b: Builder, x: Value, weight: Value, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: Any, *_: Any,
) -> Value:  # fmt: skip
    if transposed:
        y: Value = _conv_transpose(b, x, weight, bias, stride, padding, output_padding, groups, dilation)
    else:
        y = _conv(b, x, weight, bias, stride, padding, dilation, groups)
    return y


# ------------------------------------------------------------------------------------------------ pooling


def pooled_size(size: Size, kernel: Size, stride: Size, padding: Size, dilation: Size, ceil_mode: bool) -> Size:
    """How many windows fit along one dim."""
    out = []
    columns = (size.values, kernel.values, stride.values, padding.values, dilation.values)
    for whole, k, step, border, gap in zip(*columns, strict=True):
        reach = whole + 2 * border - gap * (k - 1) - 1
        count = (reach + (step - 1 if ceil_mode else 0)) // step + 1
        if ceil_mode and (count - 1) * step >= whole + border:
            count -= 1  # the last window must begin inside the input
        out.append(count)
    return Size(tuple(out))


def pool_rank(b: Builder) -> int:
    """The number of image dims of the pooling that is lowered, from its name."""
    return int(b.origin[1].split(".")[0][-2])


def _pool(
    b: Builder, x: Value, kind: str, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, **more: Any
) -> Value:
    """Pooling over one to three dims. The C++ template takes two, so depth is pooled after height and width."""
    rank = pool_rank(b)
    if len(x.shape) <= rank or x.dtype not in b.floats:
        raise Unsupported("pooling of this rank or dtype")
    kernels = window(b, kernel, rank)
    steps = kernels if stride in (None, ()) else window(b, stride, rank)
    columns = [kernels, steps, window(b, padding, rank, 0), window(b, dilation, rank)]
    lead, image = list(x.shape[:-rank]), x.shape[-rank:]
    places = zip(image, *columns, strict=True)
    spatial = [pooled_size(size, k, step, pad, gap, ceil) for size, k, step, pad, gap in places]
    if b.backend != "cpp" and _is_short(b, x, kernels):
        total = _window_by_window(b, x, kind, columns, spatial)
        if kind == "max":
            return total
        count: Any = product(kernels, b.variants)
        if not more["include_pad"]:
            ones = b.make("full", (1.0,), image, x.dtype)
            count = _window_by_window(b, ones, kind, columns, spatial)
        return b.pointwise("div", total, count, dtype=x.dtype, name="avg_pool")
    if rank == 2 or b.backend != "cpp":
        return _pool_plane(b, x, kind, columns, spatial, more)
    missing = [b.const(n) for n in (1, 1, 0, 1)]  # kernel, stride, padding and dilation of a missing dim
    one = b.const(1)
    y = x if rank > 1 else b.reshape(x, [*lead, one, *image])
    across: list[tuple[Size, ...]] = [
        (none, given[-1]) if rank == 1 else given[-2:] for none, given in zip(missing, columns, strict=True)
    ]
    plane = spatial[-2:] if rank > 1 else [one, *spatial]
    y = _pool_plane(b, y, kind, across, plane, more, "float32" if rank == 3 and kind == "avg" else x.dtype)
    if rank == 3:
        y = b.reshape(y, [*lead, image[0], plane[0] * plane[1]])
        along = [(given[0], none) for none, given in zip(missing, columns, strict=True)]
        y = _pool_plane(b, y, kind, along, [spatial[0], plane[0] * plane[1]], more, x.dtype)
    return b.reshape(y, [*lead, *spatial])


def _is_short(b: Builder, x: Value, kernels: Sequence[Size]) -> bool:
    """True where a loop nest may read whole windows, which then fuses with what comes before and after."""
    volume = product(kernels, b.variants)
    return all(k.is_const for k in kernels) and volume.timed <= _SHORT and _work(x) * volume.timed <= _CHEAP


def _work(x: Value) -> int:
    """Flops that one element takes from memory."""
    if not (x.is_view or x.op in POINTWISE or x.op == "parts"):
        return 0
    return x.cost + sum(_work(operand) for operand in x.inputs)


def _window_by_window(
    b: Builder, x: Value, kind: str, columns: Sequence[tuple[Size, ...]], spatial: Sequence[Size]
) -> Value:
    """The largest or the sum of each window, as pointwise work on shifted views of the padded input."""
    rank, fill = len(spatial), float("-inf") if kind == "max" else 0.0
    kernels, steps, borders, gaps = columns
    first = len(x.shape) - rank
    wide = x
    for d, (kernel, step, border, gap, size) in enumerate(zip(kernels, steps, borders, gaps, spatial, strict=True)):
        reach = (size - 1) * step + (kernel - 1) * gap + 1
        if not border.equals(0) or any(r > s for r, s in zip(reach.values, wide.shape[first + d].values, strict=True)):
            shape = (*wide.shape[: first + d], reach, *wide.shape[first + d + 1 :])
            attrs = {"dim": first + d, "starts": (border,), "fill": fill}
            wide = b.make("parts", (wide,), shape, x.dtype, "bordered", **attrs)
    out: Value | None = None
    for place in itertools.product(*(range(k.timed) for k in kernels)):
        one = wide
        for d, (offset, step, gap, size) in enumerate(zip(place, steps, gaps, spatial, strict=True)):
            if not all(s == 1 for s in step.values):
                start = gap * offset
                shape = (*one.shape[: first + d], size, *one.shape[first + d + 1 :])
                one = b.make("slice", (one,), shape, x.dtype, dim=first + d, start=start, step=step)
            else:
                one = b.slice(one, first + d, gap * offset, size)
        out = one if out is None else b.pointwise("add" if kind == "avg" else "maximum", out, one, name=f"{kind}_pool")
    assert out is not None
    return out if out is not wide else b.pointwise("copy", out)


def _pool_plane(
    b: Builder, x: Value, kind: str, columns: Sequence[tuple[Size, ...]], plane: Sequence[Size], more: dict[str, Any],
    dtype: str = "",
) -> Value:  # fmt: skip
    """Pooling over the last ``len(plane)`` dims."""
    attrs = dict(zip(("kernel", "stride", "padding", "dilation"), columns, strict=True))
    shape = (*x.shape[: -len(plane)], *plane)
    return b.make("pool", (x,), shape, dtype or x.dtype, f"{kind}_pool", kind=kind, **attrs, **more)


@lowering("max_pool1d", "max_pool2d", "max_pool3d")
def _max_pool(
    b: Builder, x: Value, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Value:
    return _pool(b, x, "max", kernel, stride, padding, dilation, ceil_mode)


@lowering("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(
    b: Builder, x: Value, kernel: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: Any = None,
) -> Value:  # fmt: skip
    padded = any(any(p.values) for p in window(b, padding, pool_rank(b), 0))
    if divisor_override is not None or (ceil_mode and padded):
        raise Unsupported("average pooling with a divisor, or with ceil mode and padding")
    whole = (count_include_pad or not padded) and not ceil_mode
    return _pool(b, x, "avg", kernel, stride, padding, 1, ceil_mode, include_pad=whole)


@lowering("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def _adaptive_avg_pool(b: Builder, x: Value, output: Any) -> Value:
    rank = pool_rank(b)
    out, sizes = window(b, output, rank), x.shape[-rank:]
    if all(o.equals(1) for o in out):
        return b.mean(x, list(range(len(x.shape) - rank, len(x.shape))), True)
    if not all(o.divides(s) for s, o in zip(sizes, out, strict=True)):
        wide = any(w * o > _MOST_LANES for w, o in zip(sizes[-1].values, out[-1].values, strict=True))
        if rank != 2 or x.dtype != "float32" or (wide and b.backend == "triton"):
            raise Unsupported("adaptive pooling with windows of different sizes")
        return b.routine("bins", [x], (*x.shape[:-2], *out), x.dtype)
    kernel = tuple(s // o for s, o in zip(sizes, out, strict=True))
    return _pool(b, x, "avg", kernel, kernel, 0, 1, False, include_pad=True)


# ------------------------------------------------------------------------------------------------ attention


@lowering("scaled_dot_product_attention")
def _attention(
    b: Builder, q: Value, k: Value, v: Value, mask: Value | None = None, dropout: float = 0.0, causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False,
) -> Value:  # fmt: skip
    if dropout:
        raise Unsupported("attention with dropout")
    if enable_gqa:
        k, v = (_for_each_query_head(b, x, q.shape[-3]) for x in (k, v))
    scores = product_of(b, q, k, transposed=True)
    factor: Any = scale if scale is not None else Scalar(tuple(d**-0.5 for d in q.shape[-1].values))
    scores = b.pointwise("mul", scores, factor, name="scores")
    if causal:
        rank = len(scores.shape)
        square = scores.shape[-2:]
        row = b.make("iota", (), square, "int64", "query", dim=0)
        column = b.make("iota", (), square, "int64", "key", dim=1)
        hidden = b.reshape(b.pointwise("gt", column, row), [*[b.const(1)] * (rank - 2), *square])
        scores = b.pointwise("where", hidden, float("-inf"), scores, name="masked_scores")
    if mask is not None:
        if mask.dtype == "bool":
            scores = b.pointwise("where", mask, scores, float("-inf"), name="masked_scores")
        else:
            scores = b.pointwise("add", scores, mask, name="masked_scores")
    weights = b.softmax(scores, len(scores.shape) - 1)
    if mask is not None:  # torch gives 0, and not NaN, for a query that sees no key
        largest = next(value for value in reversed(b.values) if value.op == "amax")
        weights = b.pointwise("where", b.pointwise("eq", largest, float("-inf")), 0.0, weights, name="safe_weights")
    return product_of(b, weights, v)


def _for_each_query_head(b: Builder, x: Value, heads: Size) -> Value:
    """Keys or values of shape (..., groups, tokens, size), each group as often as query heads share it."""
    *lead, groups, tokens, size = x.shape
    if not groups.divides(heads):
        raise Unsupported("grouped queries whose groups differ in size")
    apart = b.reshape(x, [*lead, groups, b.const(1), tokens, size])
    shared = b.expand(apart, [*lead, groups, heads // groups, tokens, size])
    return b.reshape(shared, [*lead, heads, tokens, size])
