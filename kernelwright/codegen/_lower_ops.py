"""The table of lowerings: one small function per ATen operator, written as PyTorch documents it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kernelwright.codegen._builder import Builder, Operand, Unsupported
from kernelwright.codegen._graph import Symbol
from kernelwright.codegen._ir import Value
from kernelwright.codegen._size import Size, product

Lowering = Callable[..., Any]
TABLE: dict[str, Lowering] = {}


def lowering(*names: str) -> Callable[[Lowering], Lowering]:
    """Register a lowering under operator names (with or without overload)."""

    def register(function: Lowering) -> Lowering:
        for name in names:
            if name in TABLE:
                raise ValueError(f"two lowerings for {name}")
            TABLE[name] = function
        return function

    return register


# ------------------------------------------------------------------------------------------------ pointwise


def _unary(op: str) -> Lowering:
    def build(b: Builder, x: Value) -> Value:
        if x.dtype not in ("float32", "float64") and op not in ("neg", "abs", "square", "relu", "sign"):
            x = b.cast(x, "float32")
        return b.pointwise(op, x)

    return build


for _name in [
    "neg",
    "abs",
    "sign",
    "square",
    "reciprocal",
    "sqrt",
    "rsqrt",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log1p",
    "log2",
    "sin",
    "cos",
    "tanh",
    "erf",
    "sigmoid",
    "silu",
    "mish",
    "relu",
    "floor",
    "ceil",
    "trunc",
    "round",
]:
    TABLE[_name] = _unary(_name)
TABLE["isnan"] = lambda b, x: b.pointwise("isnan", x)
TABLE["logical_not"] = lambda b, x: b.pointwise("not", x)
TABLE["bitwise_not"] = lambda b, x: b.pointwise("not", _require_bool(x))
for _name, _op in {"logical_and": "and", "logical_or": "or", "logical_xor": "xor"}.items():
    TABLE[_name] = lambda b, x, y, op=_op: b.pointwise(op, x, y)
for _name, _op in {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor"}.items():
    TABLE[_name] = lambda b, x, y, op=_op: b.pointwise(op, _require_bool(x), _require_bool(y))
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "maximum", "minimum"):
    TABLE[_name] = lambda b, x, y, op=_name: b.pointwise(op, *_same_type(b, x, y))


def _require_bool(x: Value) -> Value:
    if x.dtype != "bool":
        raise Unsupported("bitwise operators on integers")
    return x


def _same_type(b: Builder, x: Operand, y: Operand) -> tuple[Operand, Operand]:
    dtype = b.promote([x, y])
    return tuple(b.cast(a, dtype) if isinstance(a, Value) and a.dtype != dtype else a for a in (x, y))  # type: ignore[return-value]


def _arithmetic(op: str) -> Lowering:
    def build(b: Builder, x: Operand, y: Operand, *, alpha: Any = 1, rounding_mode: Any = None) -> Value:
        if rounding_mode is not None:
            raise Unsupported("division with rounding")
        x, y = _same_type(b, x, y)
        if alpha != 1:
            y = b.pointwise("mul", y, alpha)
        if op == "div":
            x, y = (b.cast(a, "float32") if isinstance(a, Value) and a.dtype in _INTEGERS else a for a in (x, y))
            if isinstance(y, (int, float)) and not isinstance(y, bool) and y and _power_of_two(float(y)):
                return b.pointwise("mul", x, 1.0 / y, name="div")
        return b.pointwise(op, x, y)

    return build


_INTEGERS = ("int64", "int32", "bool")


def _power_of_two(y: float) -> bool:
    return abs(float.fromhex(y.hex()).as_integer_ratio()[0]) == 1 or (
        y == int(y) and int(abs(y)) & (int(abs(y)) - 1) == 0
    )


for _name in ("add", "sub", "mul", "div"):
    TABLE[_name] = _arithmetic(_name)
TABLE["true_divide"] = TABLE["div"]
TABLE["rsub"] = lambda b, x, y, alpha=1: TABLE["sub"](b, y, x, alpha=alpha)
TABLE["remainder"] = lambda b, x, y: b.pointwise("remainder", *_same_type(b, x, y))


@lowering("pow")
def _pow(b: Builder, x: Operand, y: Operand) -> Value:
    if isinstance(x, Value) and isinstance(y, (int, float)):
        if x.dtype in _INTEGERS:
            raise Unsupported("integer power")
        if y == 2:
            return b.pointwise("square", x, name="pow")
        if y == 3:
            return b.pointwise("mul", b.pointwise("square", x), x, name="pow")
        if y == 4:
            return b.pointwise("square", b.pointwise("square", x), name="pow")
        named = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal", 1.0: "copy"}.get(float(y))
        if named:
            return b.pointwise(named, x, name="pow")
    return b.pointwise("pow", *_same_type(b, x, y))


@lowering(
    "clone",
    "alias",
    "contiguous",
    "detach",
    "lift_fresh_copy",
    "dropout",
    "_to_copy",
    "to",
    "clone_",
    "feature_dropout",
)
def _copy(b: Builder, x: Value, *args: Any, dtype: Symbol | None = None, **_: Any) -> Value:
    symbols = [a for a in (*args, dtype) if isinstance(a, Symbol) and a.kind == "dtype"]
    if symbols:
        return b.cast(x, symbols[0].value)
    if len(args) == 2 and args[1] is True:  # dropout in training mode
        raise Unsupported("dropout in training mode")
    return x


@lowering("type_as")
def _type_as(b: Builder, x: Value, other: Value) -> Value:
    return b.cast(x, other.dtype)


@lowering("where")
def _where(b: Builder, condition: Value, x: Operand, y: Operand) -> Value:
    dtype = b.promote([v for v in (x, y) if isinstance(v, Value)] or [condition, 0.0])
    return b.pointwise("where", condition, x, y, dtype=dtype)


@lowering("masked_fill")
def _masked_fill(b: Builder, x: Value, mask: Value, value: Operand) -> Value:
    return b.pointwise("where", mask, value, x, dtype=x.dtype, name="masked_fill")


@lowering("clamp", "hardtanh", "clip")
def _clamp(
    b: Builder, x: Value, low: Operand | None = None, high: Operand | None = None, *, hardtanh: bool = False
) -> Value:
    if low is not None:
        x = b.pointwise("maximum" if isinstance(low, Value) else "clamp_min", x, low)
    if high is not None:
        x = b.pointwise("minimum" if isinstance(high, Value) else "clamp_max", x, high)
    return x


TABLE["hardtanh"] = lambda b, x, low=-1.0, high=1.0: _clamp(b, x, low, high)
TABLE["clamp_min"] = lambda b, x, low: _clamp(b, x, low)
TABLE["clamp_max"] = lambda b, x, high: _clamp(b, x, None, high)
TABLE["relu6"] = lambda b, x: _clamp(b, x, 0.0, 6.0)


@lowering("gelu")
def _gelu(b: Builder, x: Value, *, approximate: str = "none") -> Value:
    return b.pointwise("gelu_tanh" if approximate == "tanh" else "gelu", x)


@lowering("leaky_relu")
def _leaky_relu(b: Builder, x: Value, slope: float = 0.01) -> Value:
    return b.pointwise("where", b.pointwise("gt", x, 0.0), x, b.pointwise("mul", x, slope), name="leaky_relu")


@lowering("prelu")
def _prelu(b: Builder, x: Value, weight: Value) -> Value:
    slope = b.unsqueeze_to(weight, len(x.shape), 1) if len(x.shape) > 1 else weight
    return b.pointwise("where", b.pointwise("gt", x, 0.0), x, b.pointwise("mul", x, slope), name="prelu")


@lowering("elu", "celu", "selu")
def _elu(b: Builder, x: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Value:
    if b.origin[1].startswith("selu"):
        alpha, scale = 1.6732632423543772, 1.0507009873554805
    if b.origin[1].startswith("celu"):
        input_scale = 1.0 / alpha
    scaled = x if input_scale == 1.0 else b.pointwise("mul", x, input_scale)
    negative = b.pointwise("mul", b.pointwise("expm1", scaled), alpha * scale)
    positive = x if scale == 1.0 else b.pointwise("mul", x, scale)
    return b.pointwise("where", b.pointwise("gt", x, 0.0), positive, negative, name="elu")


@lowering("softplus")
def _softplus(b: Builder, x: Value, beta: float = 1.0, threshold: float = 20.0) -> Value:
    scaled = x if beta == 1.0 else b.pointwise("mul", x, beta)
    soft = b.pointwise("softplus", scaled)
    soft = soft if beta == 1.0 else b.pointwise("mul", soft, 1.0 / beta)
    return b.pointwise("where", b.pointwise("gt", scaled, threshold), x, soft, name="softplus")


@lowering("log_sigmoid")
def _log_sigmoid(b: Builder, x: Value) -> Value:
    return b.pointwise("neg", b.pointwise("softplus", b.pointwise("neg", x)), name="log_sigmoid")


@lowering("hardsigmoid")
def _hardsigmoid(b: Builder, x: Value) -> Value:
    return b.pointwise("mul", _clamp(b, b.pointwise("add", x, 3.0), 0.0, 6.0), 1.0 / 6.0, name="hardsigmoid")


@lowering("hardswish")
def _hardswish(b: Builder, x: Value) -> Value:
    return b.pointwise("mul", x, _hardsigmoid(b, x), name="hardswish")


@lowering("softsign")
def _softsign(b: Builder, x: Value) -> Value:
    return b.pointwise("div", x, b.pointwise("add", b.pointwise("abs", x), 1.0))


@lowering("threshold")
def _threshold(b: Builder, x: Value, threshold: float, value: float) -> Value:
    return b.pointwise("where", b.pointwise("le", x, threshold), value, x, name="threshold")


@lowering("glu")
def _glu(b: Builder, x: Value, dim: int = -1) -> Value:
    left, right = _chunk(b, x, 2, dim)
    return b.pointwise("mul", left, b.pointwise("sigmoid", right), name="glu")


# ------------------------------------------------------------------------------------------------ creation


@lowering(
    "full",
    "full_like",
    "zeros",
    "ones",
    "zeros_like",
    "ones_like",
    "scalar_tensor",
    "new_zeros",
    "new_ones",
    "new_full",
)
def _full(b: Builder, first: Any, *rest: Any, dtype: Symbol | None = None, **_: Any) -> Value:
    op = b.origin[1].split(".")[0]
    fill: Any = {"zeros": 0, "ones": 1}.get(op.removeprefix("new_").removesuffix("_like"))
    shape = (
        first.shape if isinstance(first, Value) else tuple(b.size(s) for s in first) if isinstance(first, tuple) else ()
    )
    if op.startswith("new_"):
        shape, rest = tuple(b.size(s) for s in rest[0]), rest[1:]
    if fill is None:
        fill = first if op == "scalar_tensor" else rest[0]
    default = (
        first.dtype if isinstance(first, Value) else "float32" if isinstance(fill, float) or op != "full" else "int64"
    )
    if op == "full" and isinstance(fill, bool):
        default = "bool"
    return b.make("full", (fill,), shape, dtype.value if dtype else default)


@lowering("arange")
def _arange(b: Builder, *args: Any, dtype: Symbol | None = None, **_: Any) -> Value:
    numbers = [a for a in args if isinstance(a, (int, float, Size))]
    start: Any = 0 if len(numbers) == 1 else numbers[0]
    end: Any = numbers[0] if len(numbers) == 1 else numbers[1]
    step = numbers[2] if len(numbers) > 2 else 1
    if isinstance(start, float) or isinstance(end, float) or step != 1:
        raise Unsupported("arange with a step or fractions")
    iota = b.make("iota", (), (b.size(end) - b.size(start),), "int64", dim=0)
    shifted = iota if start == 0 else b.pointwise("add", iota, start)
    return b.cast(shifted, dtype.value if dtype else "int64")


@lowering("tril", "triu")
def _triangle(b: Builder, x: Value, diagonal: int = 0) -> Value:
    row = b.make("iota", (), x.shape, "int64", "row_index", dim=len(x.shape) - 2)
    column = b.make("iota", (), x.shape, "int64", "column_index", dim=len(x.shape) - 1)
    edge = row if diagonal == 0 else b.pointwise("add", row, diagonal)
    inside = b.pointwise("le" if b.origin[1].startswith("tril") else "ge", column, edge, name="inside")
    if x.op == "full" and x.dtype == "bool" and x.args[0]:
        return inside
    return b.pointwise("where", inside, x, 0, dtype=x.dtype, name=b.origin[1].split(".")[0])


# ------------------------------------------------------------------------------------------------ views


def _dim(x: Value, dim: int) -> int:
    return dim % max(len(x.shape), 1)


@lowering("view", "reshape", "_unsafe_view", "_reshape_alias")
def _reshape(b: Builder, x: Value, shape: Sequence[int | Size]) -> Value:
    sizes: list[Size | None] = [None if s == -1 else b.size(s) for s in shape]
    total = product(x.shape, b.variants)
    known = product([s for s in sizes if s is not None], b.variants)
    return b.reshape(x, [s if s is not None else total // known for s in sizes])


@lowering("flatten")
def _flatten(b: Builder, x: Value, start: int = 0, end: int = -1) -> Value:
    first, last = _dim(x, start), _dim(x, end)
    return b.reshape(x, [*x.shape[:first], product(x.shape[first : last + 1], b.variants), *x.shape[last + 1 :]])


@lowering("unflatten")
def _unflatten(b: Builder, x: Value, dim: int, sizes: Sequence[int | Size]) -> Value:
    d = _dim(x, dim)
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
    drop = {_dim(x, d) for d in axes if x.shape[_dim(x, d)].equals(1)}
    return b.reshape(x, [s for d, s in enumerate(x.shape) if d not in drop])


@lowering("permute")
def _permute(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    return b.permute(x, [_dim(x, d) for d in dims])


@lowering("transpose", "swapaxes")
def _transpose(b: Builder, x: Value, first: int, second: int) -> Value:
    dims = list(range(len(x.shape)))
    i, j = _dim(x, first), _dim(x, second)
    dims[i], dims[j] = j, i
    return b.permute(x, dims)


@lowering("t", "numpy_T", "mT")
def _t(b: Builder, x: Value) -> Value:
    return _transpose(b, x, -1, -2) if len(x.shape) > 1 else x


@lowering("movedim")
def _movedim(b: Builder, x: Value, source: Any, target: Any) -> Value:
    sources = [_dim(x, s) for s in ([source] if isinstance(source, int) else source)]
    targets = [_dim(x, t) for t in ([target] if isinstance(target, int) else target)]
    rest = [d for d in range(len(x.shape)) if d not in sources]
    placed = dict(zip(targets, sources, strict=True))
    return b.permute(x, [placed[d] if d in placed else rest.pop(0) for d in range(len(x.shape))])


@lowering("expand")
def _expand(b: Builder, x: Value, shape: Sequence[int | Size], *, implicit: bool = False) -> Value:
    lead = len(shape) - len(x.shape)
    return b.expand(x, [x.shape[d - lead] if s == -1 else b.size(s) for d, s in enumerate(shape)])


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
    d = _dim(x, dim)
    size = x.shape[d]
    first, last = _bound(b, start, size, b.const(0)), _bound(b, end, size, size)
    return b.slice(x, d, first, (last - first + (step - 1)) // step, step)


@lowering("narrow")
def _narrow(b: Builder, x: Value, dim: int, start: int | Size, length: int | Size) -> Value:
    return b.slice(x, _dim(x, dim), b.size(start), b.size(length))


@lowering("select.int")
def _select(b: Builder, x: Value, dim: int, index: int | Size) -> Value:
    d = _dim(x, dim)
    start = _bound(b, index, x.shape[d], b.const(0))
    return b.reshape(b.slice(x, d, start, b.const(1)), [*x.shape[:d], *x.shape[d + 1 :]])


@lowering("split.Tensor", "split")
def _split(b: Builder, x: Value, size: int | Size, dim: int = 0) -> list[Value]:
    d = _dim(x, dim)
    piece = b.size(size)
    counts = {-(-n // p) for n, p in zip(x.shape[d].values, piece.values, strict=True)}
    if len(counts) != 1:
        raise Unsupported("a different number of pieces in different variants")
    return _pieces(b, x, d, [piece] * counts.pop())


@lowering("split_with_sizes")
def _split_with_sizes(b: Builder, x: Value, sizes: Sequence[int | Size], dim: int = 0) -> list[Value]:
    return _pieces(b, x, _dim(x, dim), [b.size(s) for s in sizes])


@lowering("chunk")
def _chunk(b: Builder, x: Value, chunks: int, dim: int = 0) -> list[Value]:
    size = x.shape[_dim(x, dim)]
    return _split(b, x, (size + (chunks - 1)) // chunks, dim)


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
    d = _dim(x, dim)
    if not x.shape[d].is_const:
        raise Unsupported("a different number of pieces in different variants")
    return [_select(b, x, d, i) for i in range(x.shape[d].timed)]


@lowering("embedding")
def _embedding(b: Builder, weight: Value, index: Value, *_: Any) -> Value:
    wide = b.reshape(index, [*index.shape, b.const(1)])
    shape = (*index.shape, weight.shape[1])
    return b.make("gather", (weight, wide), shape, weight.dtype, "embedding", dim=0, lead=len(index.shape))


# ------------------------------------------------------------------------------------------------ reductions


def _axes(x: Value, dims: Any) -> list[int]:
    if dims is None or dims == ():
        return list(range(len(x.shape)))
    return [_dim(x, d) for d in ([dims] if isinstance(dims, int) else dims)]


def _float_input(b: Builder, x: Value, dtype: Symbol | None) -> Value:
    return b.cast(x, dtype.value) if dtype else x


@lowering("sum")
def _sum(b: Builder, x: Value, dims: Any = None, keepdim: bool = False, *, dtype: Symbol | None = None) -> Value:
    if x.dtype in _INTEGERS and dtype is None:
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


TABLE["max.other"] = lambda b, x, y: b.pointwise("maximum", *_same_type(b, x, y))
TABLE["min.other"] = lambda b, x, y: b.pointwise("minimum", *_same_type(b, x, y))


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
def _var_mean(b: Builder, x: Value, dims: Any = None, keepdim: bool = False, *, correction: Any = None) -> list[Value]:
    mean, variance = b.variance(x, _axes(x, dims), keepdim, 1.0 if correction is None else float(correction))
    return [variance, b.reshape(mean, variance.shape)]


@lowering("logsumexp")
def _logsumexp(b: Builder, x: Value, dims: Any, keepdim: bool = False) -> Value:
    top, rest = b.logsumexp(x, _axes(x, dims), keepdim)
    return b.pointwise("add", top, rest, name="logsumexp")


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


@lowering("cumsum")
def _cumsum(b: Builder, x: Value, dim: int, *, dtype: Symbol | None = None) -> Value:
    x = _float_input(b, x, dtype)
    if x.dtype != "float32":
        raise Unsupported(f"cumsum of {x.dtype}")
    return b.make("scan", (x,), x.shape, x.dtype, "cumsum", dim=_dim(x, dim))


@lowering("gather")
def _gather(b: Builder, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    return b.make("gather", (x, index), index.shape, x.dtype, dim=_dim(x, dim), lead=None)


# ------------------------------------------------------------------------------------------------ softmax, norms


@lowering("softmax", "_softmax")
def _softmax(b: Builder, x: Value, dim: int, *rest: Any) -> Value:
    return b.softmax(_to_float(b, x, rest), _dim(x, dim))


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
    return b.cast(x, dtype.value if dtype else "float32" if x.dtype in _INTEGERS else x.dtype)


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
    normalised, _, _ = _normalised(b, grouped, [2, 3], eps)
    return b.reshape(_affine(b, normalised, scale, shift), x.shape)


@lowering("native_group_norm")
def _native_group_norm(
    b: Builder, x: Value, weight: Value | None, bias: Value | None, n: Any, c: Any, hw: Any, groups: int, eps: float
) -> list[Value]:
    return [_group_norm(b, x, groups, weight, bias, eps)]


@lowering("instance_norm")
def _instance_norm(
    b: Builder, x: Value, weight: Value | None, bias: Value | None, mean: Any, var: Any, use_input: bool, momentum: float,
    eps: float, cudnn: bool,
) -> Value:  # fmt: skip
    if not use_input:
        raise Unsupported("instance norm with running statistics")
    normalised, _, _ = _normalised(b, x, list(range(2, len(x.shape))), eps)
    vectors = [None if v is None else b.unsqueeze_to(v, len(x.shape), 1) for v in (weight, bias)]
    return _affine(b, normalised, vectors[0], vectors[1])


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


# ------------------------------------------------------------------------------------------------ losses


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


@lowering("binary_cross_entropy_with_logits")
def _bce_logits(
    b: Builder, x: Value, y: Value, weight: Any = None, pos_weight: Any = None, reduction: int = 1
) -> Value:
    if weight is not None or pos_weight is not None:
        raise Unsupported("weighted binary cross entropy")
    return _reduced(b, b.pointwise("sub", b.pointwise("softplus", x), b.pointwise("mul", x, y)), reduction)


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


def _picked(b: Builder, x: Value, target: Value, ignore_index: int) -> Value:
    """x[row, target[row]]; ignored rows read column 0, and count for nothing later."""
    column = b.reshape(target, [target.shape[0], b.const(1)])
    ignored = b.pointwise("eq", column, ignore_index)
    column = b.pointwise("where", ignored, 0, column, dtype="int64", name="column")
    return b.make("gather", (x, column), column.shape, x.dtype, "picked", dim=1, lead=None)


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
