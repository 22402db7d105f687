"""Lowerings of reductions, normalisations and losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelwright.codegen._builder import Builder, Unsupported
from kernelwright.codegen._graph import Symbol
from kernelwright.codegen._ir import POINTWISE, Value
from kernelwright.codegen._registry import INTEGERS, TABLE, dim_of, lowering, same_type
from kernelwright.codegen._size import Size, product


def _axes(x: Value, dims: Any) -> list[int]:
    if dims is None or dims == ():
        return list(range(len(x.shape)))
    return [dim_of(x, d) for d in ([dims] if isinstance(dims, int) else dims)]


def _float_input(b: Builder, x: Value, dtype: Symbol | None) -> Value:
    return b.cast(x, dtype.value) if dtype else x


@lowering("sum")
def _sum(b: Builder, x: Value, dims: Any = None, keepdim: bool = False, *, dtype: Symbol | None = None) -> Value:
    if x.dtype in INTEGERS and dtype is None:
        x = b.cast(x, "int64")
    return b.reduce("sum", _float_input(b, x, dtype), _axes(x, dims), keepdim)


@lowering("mean")
def _mean(b: Builder, x: Value, dims: Any = None, keepdim: bool = False, *, dtype: Symbol | None = None) -> Value:
    return b.mean(_float_input(b, x, dtype), _axes(x, dims), keepdim)


@lowering("prod")
def _prod(b: Builder, x: Value, dim: int | None = None, keepdim: bool = False, *, dtype: Symbol | None = None) -> Value:
    return b.reduce("prod", _float_input(b, x, dtype), _axes(x, dim), keepdim)


@lowering("amax", "amin")
def _amax(b: Builder, x: Value, dims: Any = (), keepdim: bool = False) -> Value:
    return b.reduce(b.origin[1].split(".")[0], x, _axes(x, dims), keepdim)


@lowering("max.default", "min.default")
def _max_all(b: Builder, x: Value) -> Value:
    return b.reduce("a" + b.origin[1].split(".")[0], x, _axes(x, None), False)


@lowering("max.dim", "min.dim")
def _max_dim(b: Builder, x: Value, dim: int, keepdim: bool = False) -> list[Value]:
    name = b.origin[1].split(".")[0]
    return [b.reduce("a" + name, x, [dim], keepdim), b.reduce("arg" + name, x, [dim], keepdim, "int64")]


TABLE["max.other"] = lambda b, x, y: b.pointwise("maximum", *same_type(b, x, y))
TABLE["min.other"] = lambda b, x, y: b.pointwise("minimum", *same_type(b, x, y))


@lowering("argmax", "argmin")
def _argmax(b: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    if dim is None:
        raise Unsupported("argmax over all elements")
    return b.reduce(b.origin[1].split(".")[0], x, [dim], keepdim, "int64")


@lowering("any", "all")
def _any(b: Builder, x: Value, dims: Any = None, keepdim: bool = False) -> Value:
    return b.reduce(b.origin[1].split(".")[0], b.pointwise("ne", x, 0), _axes(x, dims), keepdim)


@lowering("var", "std")
def _var(
    b: Builder, x: Value, dims: Any = None, second: Any = None, keepdim: bool = False, *, correction: Any = None
) -> Value:
    if isinstance(dims, bool):
        dims, second = None, dims
    if isinstance(second, bool):
        correction = int(second)
    _, variance = b.variance(x, _axes(x, dims), keepdim, 1.0 if correction is None else float(correction))
    return b.pointwise("sqrt", variance) if b.origin[1].startswith("std") else variance


@lowering("var_mean")
def _var_mean(
    b: Builder, x: Value, dims: Any = None, second: Any = None, keepdim: bool = False, *, correction: Any = None
) -> list[Value]:
    variance = _var(b, x, dims, second, keepdim, correction=correction)
    return [variance, b.mean(x, _axes(x, None if isinstance(dims, bool) else dims), keepdim)]


@lowering("logsumexp")
def _logsumexp(b: Builder, x: Value, dims: Any, keepdim: bool = False) -> Value:
    axes = _axes(x, dims)
    top, rest = b.logsumexp(x, axes, keepdim)
    total = b.pointwise("add", top, rest, name="logsumexp")
    total.attrs |= {"logsumexp_of": x, "logsumexp_dims": tuple(axes)}
    return total


@lowering("linalg_vector_norm", "norm")
def _norm(b: Builder, x: Value, order: Any = 2, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    axes = _axes(x, dims)
    if order in (2, None):
        return b.pointwise("sqrt", b.reduce("sum", b.pointwise("square", x), axes, keepdim), name="norm")
    if order == 1:
        return b.reduce("sum", b.pointwise("abs", x), axes, keepdim)
    if order == float("inf"):
        return b.reduce("amax", b.pointwise("abs", x), axes, keepdim)
    raise Unsupported(f"norm of order {order}")


@lowering("cumsum", "cumprod")
def _scan(b: Builder, x: Value, dim: int, *, dtype: Symbol | None = None) -> Value:
    kind = b.origin[1].split(".")[0]
    x = _float_input(b, x, dtype)
    if x.dtype not in b.floats or not x.shape:
        raise Unsupported(f"{kind} of {x.dtype}")
    return b.make("scan", (x,), x.shape, x.dtype, kind, dim=dim_of(x, dim), kind=kind)


@lowering("gather")
def _gather(b: Builder, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    return _gathered(b, x, dim_of(x, dim), index)


def _gathered(b: Builder, x: Value, d: int, index: Value) -> Value:
    """Elements along one dim. Of a pointwise value only these are computed, so that it need not be in memory."""
    few = product(index.shape, b.variants).timed <= product(x.shape, b.variants).timed
    parts = [a for a in x.args if isinstance(a, Value)] if x.op in POINTWISE and few else []
    rest = [size for n, size in enumerate(index.shape) if n != d]
    whole = [a for a in parts if len(a.shape) + d >= len(x.shape) and not a.shape[d - len(x.shape)].equals(1)]
    if not whole or any(a.shape != x.shape for a in whole) or rest != [s for n, s in enumerate(x.shape) if n != d]:
        return b.make("gather", (b.in_memory(x), index), index.shape, x.dtype, dim=d, lead=None)
    args = [_gathered(b, a, d, index) if a in whole else a for a in x.args]
    return b.make(x.op, tuple(args), index.shape, x.dtype, x.name, **x.attrs)


@lowering("softmax", "_softmax")
def _softmax(b: Builder, x: Value, dim: int, *rest: Any) -> Value:
    return b.softmax(_to_float(b, x, rest), dim_of(x, dim))


@lowering("log_softmax", "_log_softmax")
def _log_softmax(b: Builder, x: Value, dim: int, *rest: Any) -> Value:
    x = _to_float(b, x, rest)
    top = b.reduce("amax", x, [dim], True)
    top.attrs["nan_may_vanish"] = True
    shifted = b.pointwise("sub", x, top, name="shifted")
    total = b.pointwise("log", b.reduce("sum", b.pointwise("exp", shifted), [dim], True))
    return b.pointwise("sub", shifted, total, name="log_softmax")


def _to_float(b: Builder, x: Value, rest: Sequence[Any]) -> Value:
    dtype = next((a for a in rest if isinstance(a, Symbol)), None)
    return b.cast(x, dtype.value if dtype else "float32" if x.dtype in INTEGERS else x.dtype)


def _affine(b: Builder, x: Value, weight: Value | None, bias: Value | None) -> Value:
    if weight is not None:
        x = b.pointwise("mul", x, weight)
    return x if bias is None else b.pointwise("add", x, bias)


def _normalised(b: Builder, x: Value, dims: Sequence[int], eps: float) -> tuple[Value, Value, Value]:
    mean, variance = b.variance(x, dims, True, 0.0)
    rstd = b.pointwise("rsqrt", b.pointwise("add", variance, eps), name="rstd")
    return b.pointwise("mul", b.pointwise("sub", x, mean, name="centred"), rstd, name="normalised"), mean, rstd


@lowering("layer_norm", "native_layer_norm")
def _layer_norm(
    b: Builder,
    x: Value,
    shape: Sequence[Any],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Any:
    dims = list(range(len(x.shape) - len(shape), len(x.shape)))
    normalised, mean, rstd = _normalised(b, x, dims, eps)
    out = _affine(b, normalised, weight, bias)
    return [out, mean, rstd] if b.origin[1].startswith("native") else out


@lowering("rms_norm")
def _rms_norm(
    b: Builder, x: Value, shape: Sequence[Any], weight: Value | None = None, eps: float | None = None
) -> Value:
    dims = list(range(len(x.shape) - len(shape), len(x.shape)))
    mean_square = b.mean(b.pointwise("square", x), dims, True)
    epsilon = 1.1920928955078125e-07 if eps is None else eps
    rstd = b.pointwise("rsqrt", b.pointwise("add", mean_square, epsilon), name="rstd")
    return _affine(b, b.pointwise("mul", x, rstd, name="normalised"), weight, None)


@lowering("group_norm")
def _group_norm(
    b: Builder,
    x: Value,
    groups: int | Size,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Value:
    count = b.size(groups)
    batch, channels = x.shape[0], x.shape[1]
    per_group, space = channels // count, product(x.shape[2:], b.variants)
    grouped = b.reshape(x, [batch, count, per_group, space])
    scale = None if weight is None else b.reshape(weight, [count, per_group, b.const(1)])
    shift = None if bias is None else b.reshape(bias, [count, per_group, b.const(1)])
    normalised = _normalised(b, grouped, [2, 3], eps)[0]
    return b.reshape(_affine(b, normalised, scale, shift), x.shape)


@lowering("native_group_norm")
def _native_group_norm(
    b: Builder, x: Value, weight: Value | None, bias: Value | None, n: Any, c: Any, hw: Any, groups: int, eps: float
) -> list[Value]:
    return [_group_norm(b, x, groups, weight, bias, eps)]


@lowering("instance_norm")
def _instance_norm(
    b: Builder, x: Value, weight: Value | None, bias: Value | None, _mean: Any, _var: Any, use_input: bool, *rest: Any
) -> Value:
    if not use_input:
        raise Unsupported("instance norm with running statistics")
    eps = float(rest[1])
    normalised = _normalised(b, x, list(range(2, len(x.shape))), eps)[0]
    vectors = [None if v is None else b.unsqueeze_to(v, len(x.shape), 1) for v in (weight, bias)]
    return _affine(b, normalised, vectors[0], vectors[1])


@lowering("_native_batch_norm_legit.no_stats")
def _own_statistics(
    b: Builder, x: Value, weight: Value | None, bias: Value | None, training: bool, momentum: float, eps: float
) -> list[Value]:
    """Normalise each channel by its own mean and variance.

    Instance norm arrives as this operator, with batch and channels merged into one dim. They are separated again.
    """
    image, rank = x, len(x.shape)
    if x.op == "reshape" and x.shape[0].equals(1) and x.args[0].shape[2:] == x.shape[2:]:
        image = x.args[0]
    dims = list(range(2, rank)) if image.shape[0] * image.shape[1] == x.shape[1] else [0, *range(2, rank)]
    normalised, mean, rstd = _normalised(b, image, dims, eps)
    vectors = [None if v is None else b.reshape(v, mean.shape) for v in (weight, bias)]
    out = b.reshape(_affine(b, normalised, vectors[0], vectors[1]), x.shape)
    return [out, *(b.reshape(value, [x.shape[1]]) for value in (mean, rstd))]


def _running_norm(
    b: Builder, x: Value, w: Value | None, bias: Value | None, mean: Value, var: Value, eps: float
) -> Value:
    """Batch norm with running statistics: one scale and one shift per channel."""
    scale = b.pointwise("rsqrt", b.pointwise("add", var, eps), name="rstd")
    scale = scale if w is None else b.pointwise("mul", scale, w, name="scale")
    rank = len(x.shape)
    centred = b.pointwise("sub", x, b.unsqueeze_to(mean, rank, 1), name="centred")
    scaled = b.pointwise("mul", centred, b.unsqueeze_to(scale, rank, 1))
    return scaled if bias is None else b.pointwise("add", scaled, b.unsqueeze_to(bias, rank, 1), name="batch_norm")


@lowering("batch_norm")
def _batch_norm(
    b: Builder,
    x: Value,
    w: Any,
    bias: Any,
    mean: Any,
    var: Any,
    training: bool,
    momentum: float,
    eps: float,
    cudnn: bool,
) -> Value:
    if training or mean is None:
        raise Unsupported("batch norm in training mode")
    return _running_norm(b, x, w, bias, mean, var, eps)


@lowering("_native_batch_norm_legit_no_training")
def _native_batch_norm(
    b: Builder, x: Value, w: Any, bias: Any, mean: Value, var: Value, momentum: float, eps: float
) -> list[Value]:
    return [_running_norm(b, x, w, bias, mean, var, eps)]


@lowering("_native_batch_norm_legit_functional")
def _trained_batch_norm(
    b: Builder, x: Value, w: Any, bias: Any, mean: Value, var: Value, training: bool, momentum: float, eps: float
) -> list[Value]:
    """Batch norm by batch statistics. Running statistics move towards them, the variance by its unbiased estimate."""
    if not training:
        raise Unsupported("batch norm in evaluation mode by this operator")
    dims = [0, *range(2, len(x.shape))]
    average, squares = b.variance(x, dims, True, 0.0)
    rstd = b.pointwise("rsqrt", b.pointwise("add", squares, eps), name="rstd")
    normalised = b.pointwise("mul", b.pointwise("sub", x, average, name="centred"), rstd, name="normalised")
    vectors = [None if v is None else b.unsqueeze_to(v, len(x.shape), 1) for v in (w, bias)]
    unbiased = b.pointwise("div", squares.args[0], b.count(x, dims) - 1, dtype=x.dtype, name="unbiased")
    flat = [b.reshape(v, mean.shape) for v in (average, rstd, unbiased)]
    moved = [
        b.pointwise("add", b.pointwise("mul", old, 1.0 - momentum), b.pointwise("mul", new, momentum), name=name)
        for old, new, name in (
            (mean, flat[0], "running_mean"),
            (var, flat[2], "running_var"),
        )
    ]
    return [_affine(b, normalised, vectors[0], vectors[1]), flat[0], flat[1], *moved]


def _reduced(b: Builder, loss: Value, reduction: int) -> Value:
    if reduction == 0:
        return loss
    dims = list(range(len(loss.shape)))
    return b.mean(loss, dims, False) if reduction == 1 else b.reduce("sum", loss, dims, False)


@lowering("mse_loss")
def _mse(b: Builder, x: Value, y: Value, reduction: int = 1) -> Value:
    return _reduced(b, b.pointwise("square", b.pointwise("sub", x, y)), reduction)


@lowering("l1_loss")
def _l1(b: Builder, x: Value, y: Value, reduction: int = 1) -> Value:
    return _reduced(b, b.pointwise("abs", b.pointwise("sub", x, y)), reduction)


@lowering("smooth_l1_loss", "huber_loss")
def _smooth_l1(b: Builder, x: Value, y: Value, reduction: int = 1, beta: float = 1.0) -> Value:
    error = b.pointwise("abs", b.pointwise("sub", x, y), name="error")
    huber = b.origin[1].startswith("huber")
    small = b.pointwise("mul", b.pointwise("square", error), 0.5 if huber else 0.5 / beta)
    large = b.pointwise(
        "mul" if huber else "sub",
        b.pointwise("sub", error, 0.5 * beta) if huber else error,
        beta if huber else 0.5 * beta,
    )
    return _reduced(b, b.pointwise("where", b.pointwise("lt", error, beta), small, large), reduction)


@lowering("kl_div")
def _kl_div(b: Builder, x: Value, target: Value, reduction: int = 1, *, log_target: bool = False) -> Value:
    if log_target:
        loss = b.pointwise("mul", b.pointwise("exp", target), b.pointwise("sub", target, x))
    else:
        entropy = b.pointwise("mul", target, b.pointwise("log", target))
        entropy = b.pointwise("where", b.pointwise("eq", target, 0.0), 0.0, entropy)
        loss = b.pointwise("sub", entropy, b.pointwise("mul", target, x))
    return _reduced(b, loss, reduction)


@lowering("binary_cross_entropy")
def _bce(b: Builder, x: Value, y: Value, weight: Any = None, reduction: int = 1) -> Value:
    """Binary cross entropy. Logarithms are clamped at -100, as in torch."""
    hit = b.pointwise("clamp_min", b.pointwise("log", x), -100.0)
    miss = b.pointwise("clamp_min", b.pointwise("log1p", b.pointwise("neg", x)), -100.0)
    loss = b.pointwise(
        "sub", b.pointwise("mul", b.pointwise("sub", y, 1.0), miss), b.pointwise("mul", y, hit), name="loss"
    )
    return _reduced(b, loss if weight is None else b.pointwise("mul", loss, weight), reduction)


@lowering("soft_margin_loss")
def _soft_margin(b: Builder, x: Value, y: Value, reduction: int = 1) -> Value:
    return _reduced(b, b.pointwise("softplus", b.pointwise("neg", b.pointwise("mul", x, y))), reduction)


@lowering("binary_cross_entropy_with_logits")
def _bce_logits(
    b: Builder, x: Value, y: Value, weight: Any = None, pos_weight: Any = None, reduction: int = 1
) -> Value:
    if pos_weight is None:
        loss = b.pointwise("sub", b.pointwise("softplus", x), b.pointwise("mul", x, y))
    else:  # (1 - y) * x + (1 + (pos_weight - 1) * y) * softplus(-x)
        more = b.pointwise("mul", b.pointwise("sub", pos_weight, 1.0), y)
        hits = b.pointwise("mul", b.pointwise("add", more, 1.0), b.pointwise("softplus", b.pointwise("neg", x)))
        loss = b.pointwise("add", b.pointwise("mul", b.pointwise("sub", 1.0, y), x), hits)
    return _reduced(b, loss if weight is None else b.pointwise("mul", loss, weight), reduction)


@lowering("pairwise_distance")
def _pairwise_distance(
    b: Builder, x: Value, y: Value, order: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Value:
    apart = b.pointwise("add", b.pointwise("sub", x, y), eps, name="apart")
    distance: Value = _norm(b, apart, order, [len(apart.shape) - 1], keepdim)
    return distance


@lowering("triplet_margin_loss")
def _triplet_margin(
    b: Builder, anchor: Value, near: Value, far: Value, margin: float = 1.0, order: float = 2.0, eps: float = 1e-6,
    swap: bool = False, reduction: int = 1,
) -> Value:  # fmt: skip
    to_far = _pairwise_distance(b, anchor, far, order, eps)
    if swap:
        to_far = b.pointwise("minimum", to_far, _pairwise_distance(b, near, far, order, eps))
    gap = b.pointwise("sub", _pairwise_distance(b, anchor, near, order, eps), to_far)
    return _reduced(b, b.pointwise("clamp_min", b.pointwise("add", gap, margin), 0.0), reduction)


@lowering("cross_entropy_loss")
def _cross_entropy(
    b: Builder,
    x: Value,
    target: Value,
    weight: Any = None,
    reduction: int = 1,
    ignore_index: Any = -100,
    smoothing: float = 0.0,
) -> Value:
    if weight is not None or smoothing or len(x.shape) != 2 or target.dtype != "int64":
        raise Unsupported("this form of cross entropy")
    top, rest = b.logsumexp(x, [1], True)
    picked = _picked(b, x, target, ignore_index)
    loss = b.pointwise("add", b.pointwise("sub", top, picked, name="margin"), rest)
    return _nll_reduced(b, loss, target, reduction, ignore_index)


@lowering("nll_loss", "nll_loss_nd")
def _nll(
    b: Builder, x: Value, target: Value, weight: Any = None, reduction: int = 1, ignore_index: Any = -100
) -> Value:
    if weight is not None or len(x.shape) != 2:
        raise Unsupported("this form of nll_loss")
    return _nll_reduced(b, b.pointwise("neg", _picked(b, x, target, ignore_index)), target, reduction, ignore_index)


@lowering("nll_loss_forward")
def _nll_forward(b: Builder, x: Value, target: Value, weight: Any, reduction: int, ignore_index: int) -> list[Value]:
    """The loss, and the number of rows that are not ignored."""
    loss = _nll(b, x, target, weight, reduction, ignore_index)
    kept = b.pointwise("not", b.pointwise("eq", target, ignore_index))
    return [loss, b.reduce("sum", b.cast(kept, x.dtype), [0], False)]


def _picked(b: Builder, x: Value, target: Value, ignore_index: int) -> Value:
    """x[row, target[row]]. Ignored rows read column 0 and are masked out later."""
    column = b.reshape(target, [target.shape[0], b.const(1)])
    ignored = b.pointwise("eq", column, ignore_index)
    column = b.pointwise("where", ignored, 0, column, dtype="int64", name="column")
    return b.make("gather", (b.in_memory(x), column), column.shape, x.dtype, "picked", dim=1, lead=None)


def _nll_reduced(b: Builder, loss: Value, target: Value, reduction: int, ignore_index: int) -> Value:
    flat = b.reshape(loss, target.shape)
    ignored = b.pointwise("eq", target, ignore_index)
    kept = b.pointwise("where", ignored, 0.0, flat, dtype=loss.dtype, name="loss")
    if reduction == 0:
        return kept
    total = b.reduce("sum", kept, [0], False)
    if reduction == 2:
        return total
    count = b.reduce("sum", b.cast(b.pointwise("not", ignored), loss.dtype), [0], False)
    return b.pointwise("div", total, count)
