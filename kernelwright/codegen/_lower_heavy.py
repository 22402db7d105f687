"""Lowerings of the heavy operators: matrix products, convolutions, pooling, attention."""

from __future__ import annotations

from typing import Any

from kernelwright.codegen._builder import Builder, Unsupported
from kernelwright.codegen._graph import Scalar
from kernelwright.codegen._ir import Value
from kernelwright.codegen._registry import lowering
from kernelwright.codegen._size import Size


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


@lowering("matmul", "mm", "bmm")
def _matmul(b: Builder, left: Value, right: Value) -> Value:
    return product_of(b, left, right)


@lowering("linear")
def _linear(b: Builder, x: Value, weight: Value, bias: Value | None = None) -> Value:
    if len(x.shape) < 2:
        raise Unsupported("linear on a vector")
    y = product_of(b, x, weight, transposed=True)
    return y if bias is None else b.pointwise("add", y, bias, name="linear")


@lowering("addmm", "baddbmm")
def _addmm(b: Builder, bias: Value, left: Value, right: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    y = product_of(b, left, right)
    y = y if alpha == 1 else b.pointwise("mul", y, alpha)
    bias = bias if beta == 1 else b.pointwise("mul", bias, beta)
    return b.pointwise("add", y, bias, name="addmm")


Pair = tuple[Size, Size]


def _pair(b: Builder, value: Any, default: int = 1) -> Pair:
    """A window parameter of both image dims."""
    if value is None or value == ():
        return b.const(default), b.const(default)
    if isinstance(value, (int, Size)):
        return b.size(value), b.size(value)
    sizes = [b.size(v) for v in value]
    if len(sizes) == 1:
        sizes *= 2
    if len(sizes) != 2:
        raise Unsupported("windows that are not two-dimensional")
    return sizes[0], sizes[1]


@lowering("conv2d")
def _conv2d(
    b: Builder,
    x: Value,
    weight: Value,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: Any = 1,
) -> Value:
    if isinstance(padding, str) or len(x.shape) != 4:
        raise Unsupported("convolution with named padding, or without a batch")
    steps, border, gaps = _pair(b, stride), _pair(b, padding, 0), _pair(b, dilation)
    out = []
    for d in (0, 1):
        reach = (weight.shape[2 + d] - 1) * gaps[d] + 1
        out.append((x.shape[2 + d] + border[d] * 2 - reach) // steps[d] + 1)
    shape = (x.shape[0], weight.shape[0], *out)
    count = b.size(groups)
    y = b.make("conv", (x, weight), shape, x.dtype, stride=steps, padding=border, dilation=gaps, groups=count)
    return y if bias is None else b.pointwise("add", y, b.unsqueeze_to(bias, 4, 1), name="conv_bias")


@lowering("convolution")
def _convolution(
    b: Builder,
    x: Value,
    weight: Value,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    *rest: Any,
) -> Value:
    if transposed:
        raise Unsupported("transposed convolution")
    out: Value = _conv2d(b, x, weight, bias, stride, padding, dilation, rest[1])
    return out


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


def _pool(
    b: Builder, x: Value, kind: str, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, **more: Any
) -> Value:
    if len(x.shape) < 3 or x.dtype != "float32":
        raise Unsupported("pooling of this rank or dtype")
    window = _pair(b, kernel)
    steps = window if stride in (None, ()) else _pair(b, stride)
    border, gaps = _pair(b, padding, 0), _pair(b, dilation)
    spatial = [pooled_size(size, window[d], steps[d], border[d], gaps[d], ceil) for d, size in enumerate(x.shape[-2:])]
    attrs = {"kind": kind, "kernel": window, "stride": steps, "padding": border, "dilation": gaps, **more}
    return b.make("pool", (x,), (*x.shape[:-2], *spatial), x.dtype, f"{kind}_pool", **attrs)


@lowering("max_pool2d")
def _max_pool2d(
    b: Builder, x: Value, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Value:
    return _pool(b, x, "max", kernel, stride, padding, dilation, ceil_mode)


@lowering("avg_pool2d")
def _avg_pool2d(
    b: Builder, x: Value, kernel: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: Any = None,
) -> Value:  # fmt: skip
    padded = any(any(p.values) for p in _pair(b, padding, 0))
    if divisor_override is not None or (ceil_mode and padded):
        raise Unsupported("average pooling with a divisor, or with ceil mode and padding")
    return _pool(b, x, "avg", kernel, stride, padding, 1, ceil_mode, include_pad=count_include_pad and not ceil_mode)


@lowering("adaptive_avg_pool2d", "mean_pool")
def _adaptive_avg_pool2d(b: Builder, x: Value, output: Any) -> Value:
    out = _pair(b, output)
    if out[0].equals(1) and out[1].equals(1):
        rank = len(x.shape)
        return b.mean(x, [rank - 2, rank - 1], True)
    sizes = x.shape[-2:]
    if not all(o.divides(s) for s, o in zip(sizes, out, strict=True)):
        raise Unsupported("adaptive pooling with windows of different sizes")
    kernel = (sizes[0] // out[0], sizes[1] // out[1])
    return _pool(b, x, "avg", kernel, kernel, 0, 1, False, include_pad=True)


# ------------------------------------------------------------------------------------------------ attention


@lowering("scaled_dot_product_attention")
def _attention(
    b: Builder, q: Value, k: Value, v: Value, mask: Value | None = None, dropout: float = 0.0, causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False,
) -> Value:  # fmt: skip
    if dropout or enable_gqa:
        raise Unsupported("attention with dropout or grouped queries")
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
    return product_of(b, b.softmax(scores, len(scores.shape) - 1), v)
