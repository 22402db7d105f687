"""Lowerings of pointwise operators, and of operators that create tensors (``full``, ``arange``)."""

from __future__ import annotations

from typing import Any

from kernelwright.codegen._builder import Builder, Operand, Unsupported
from kernelwright.codegen._graph import Symbol
from kernelwright.codegen._ir import Value
from kernelwright.codegen._registry import INTEGERS, TABLE, Lowering, lowering, same_type
from kernelwright.codegen._size import Size


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
for _op in ("and", "or", "xor"):
    for _name in (f"bitwise_{_op}", f"__{_op}__"):
        TABLE[_name] = lambda b, x, y, op=_op: b.pointwise(op, _require_bool(x), _require_bool(y))
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "maximum", "minimum"):
    TABLE[_name] = lambda b, x, y, op=_name: b.pointwise(op, *same_type(b, x, y))


def _require_bool(x: Operand) -> Operand:
    if (x.dtype if isinstance(x, Value) else type(x).__name__) != "bool":
        raise Unsupported("bitwise operators on integers")
    return x


def _arithmetic(op: str) -> Lowering:
    def build(b: Builder, x: Operand, y: Operand, *, alpha: Any = 1, rounding_mode: Any = None) -> Value:
        if rounding_mode is not None:
            raise Unsupported("division with rounding")
        x, y = same_type(b, x, y)
        if alpha != 1:
            y = b.pointwise("mul", y, alpha)
        if op == "div":
            x, y = (b.cast(a, "float32") if isinstance(a, Value) and a.dtype in INTEGERS else a for a in (x, y))
            if isinstance(y, (int, float)) and not isinstance(y, bool) and y and _power_of_two(float(y)):
                return b.pointwise("mul", x, 1.0 / y, name="div")
        return b.pointwise(op, x, y)

    return build


def _power_of_two(y: float) -> bool:
    return abs(float.fromhex(y.hex()).as_integer_ratio()[0]) == 1 or (
        y == int(y) and int(abs(y)) & (int(abs(y)) - 1) == 0
    )


for _name in ("add", "sub", "mul", "div"):
    TABLE[_name] = _arithmetic(_name)
TABLE["true_divide"] = TABLE["div"]
TABLE["rsub"] = lambda b, x, y, alpha=1: TABLE["sub"](b, y, x, alpha=alpha)
TABLE["remainder"] = lambda b, x, y: b.pointwise("remainder", *same_type(b, x, y))


@lowering("pow")
def _pow(b: Builder, x: Operand, y: Operand) -> Value:
    if isinstance(x, Value) and isinstance(y, (int, float)):
        if x.dtype in INTEGERS:
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
    return b.pointwise("pow", *same_type(b, x, y))


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
