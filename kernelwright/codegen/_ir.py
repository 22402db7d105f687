"""The small operator set that everything is lowered to, and values over it.

Five families: leaves (memory), pointwise operators, views, reductions, and heavy operators (a library call or a
generated template). A view is only an index map. A pointwise value or a reduction has no memory until a region stores
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kernelwright.codegen._size import Affine, Shape, delinearise, linearise

HALVES = ("float16", "bfloat16")  # stored in two bytes, computed in float32
BYTES = ("int8", "uint8")  # read, and cast: nothing is computed in them
C_TYPES = {"float32": "float", "float64": "double", "int64": "int64_t", "int32": "int32_t", "bool": "bool"}
C_TYPES |= {**dict.fromkeys(HALVES, "float"), **{name: f"{name}_t" for name in BYTES}}
# Memory types: GCC 12 vectorises loads of bytes, but not of bool.
STORED_TYPES = {**C_TYPES, "bool": "uint8_t", "float16": "Float16", "bfloat16": "BFloat16"}

# name -> C++ expression over {0}, {1}, ...; {f} is the literal suffix of the compute type.
POINTWISE: dict[str, str] = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "neg": "-{0}",
    "abs": "std::abs({0})",
    "sign": "(({0} > 0) - ({0} < 0))",
    "square": "{0} * {0}",
    "reciprocal": "1.0f / {0}",
    "sqrt": "std::sqrt({0})",
    "rsqrt": "1.0f / std::sqrt({0})",
    "exp": "kw_exp({0})",
    "exp2": "kw_exp2({0})",
    "expm1": "kw_expm1({0})",
    "log": "kw_log({0})",
    "log1p": "kw_log1p({0})",
    "log2": "kw_log2({0})",
    "sin": "std::sin({0})",
    "cos": "std::cos({0})",
    "pow": "kw_pow({0}, {1})",
    "tanh": "kw_tanh({0})",
    "erf": "kw_erf({0})",
    "sigmoid": "kw_sigmoid({0})",
    "silu": "{0} / (1.0f + kw_exp_short(-{0}))",
    "mish": "kw_mish({0})",
    "softplus": "kw_softplus({0})",
    "gelu": "kw_gelu({0})",
    "gelu_tanh": "{0} / (1.0f + kw_exp_short(-1.59576912f * ({0} + 0.044715f * {0} * {0} * {0})))",
    "relu": "({0} < 0 ? 0 : {0})",
    "floor": "std::floor({0})",
    "ceil": "std::ceil({0})",
    "trunc": "std::trunc({0})",
    "round": "std::nearbyint({0})",
    "remainder": "kw_floor_mod({0}, {1})",
    "maximum": "kw_max({0}, {1})",
    "minimum": "kw_min({0}, {1})",
    "clamp_min": "({0} < {1} ? {1} : {0})",
    "clamp_max": "({0} > {1} ? {1} : {0})",
    "where": "({0} ? {1} : {2})",
    "eq": "({0} == {1})",
    "ne": "({0} != {1})",
    "lt": "({0} < {1})",
    "le": "({0} <= {1})",
    "gt": "({0} > {1})",
    "ge": "({0} >= {1})",
    "and": "({0} && {1})",
    "or": "({0} || {1})",
    "xor": "(bool({0}) != bool({1}))",
    "not": "(!{0})",
    "isnan": "({0} != {0})",
    "isinf": "(std::abs({0}) == INFINITY)",
    "cast": "{0}",
    "copy": "{0}",
}
# Rough cost in flops per element, for choosing the values to keep between passes and for the roofline.
COSTS = {
    "exp": 16, "exp2": 17, "expm1": 26, "log": 24, "log1p": 30, "log2": 25, "sin": 40, "cos": 40, "pow": 60, "tanh": 34,
    "erf": 44, "sigmoid": 22, "silu": 22, "mish": 30, "softplus": 48, "gelu": 34, "gelu_tanh": 28, "div": 4, "sqrt": 6,
    "rsqrt": 10, "reciprocal": 4, "remainder": 10, "cast": 0, "copy": 0,
}  # fmt: skip
REDUCTIONS = ("sum", "prod", "amax", "amin", "any", "all", "argmax", "argmin")
VIEWS = ("permute", "expand", "reshape", "slice")


@dataclass(eq=False)
class Value:
    """One tensor of the lowered program.

    Attributes:
        op: ``leaf``, ``full``, ``iota``, ``gather``, ``parts`` (tensors side by side along ``dim``, each from its place
            in ``starts``, and the number ``fill`` between them), ``scatter`` (the last argument added to places along
            ``dim`` that the one before it names, over ``over``), a key of POINTWISE, a reduction, a view, ``scan``,
            ``matmul``, ``attention``, ``conv``, ``pool``, ``routine``, ``second`` (a routine's other result) or
            ``extern``.
        args: operands: values, or plain numbers.
        attrs: further parameters of the operator (dims of a reduction, the index map of a view, the ATen call).
        origin: the name of the captured node that this came from, and its operator.
        order: position in execution order.
    """

    name: str
    op: str
    args: tuple[Any, ...]
    shape: Shape
    dtype: str
    attrs: dict[str, Any] = field(default_factory=dict)
    origin: tuple[str, str] = ("", "")
    order: int = 0

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The operands that are values, those inside argument lists included."""
        return tuple(_values(self.args)) + tuple(_values(self.attrs.get("extra", ())))

    @property
    def is_view(self) -> bool:
        """True where the value is an index map over another one."""
        return self.op in VIEWS

    @property
    def is_reduction(self) -> bool:
        """True for reductions."""
        return self.op in REDUCTIONS

    @property
    def is_fusible(self) -> bool:
        """True where the value can be computed inside a loop nest."""
        made = ("full", "iota", "gather", "parts", "scatter")
        return self.is_reduction or self.op in POINTWISE or self.op in made

    @property
    def cost(self) -> int:
        """Flops per element, roughly."""
        return COSTS.get(self.op, 1) if self.op in POINTWISE else int(self.is_reduction)


def _values(args: Iterable[Any]) -> Iterable[Value]:
    for arg in args:
        if isinstance(arg, Value):
            yield arg
        elif isinstance(arg, (tuple, list)):
            yield from _values(arg)
        elif isinstance(arg, Mapping):
            yield from _values(arg.values())


@dataclass
class Program:
    """A lowered graph: values in execution order (views among them).

    Attributes:
        outputs: values that must be in memory: first the returned ones, then those for the buffers in ``writes``.
        writes: dotted names of the buffers that the last outputs are written to.
        counters: dotted names of buffers that are incremented, each with its increment.
    """

    values: list[Value]
    outputs: list[Value]
    variants: int
    writes: list[str] = field(default_factory=list)
    counters: list[tuple[str, int]] = field(default_factory=list)

    @property
    def returned(self) -> list[Value]:
        """The outputs that are returned."""
        return self.outputs[: len(self.outputs) - len(self.writes)]

    @property
    def written(self) -> list[tuple[str, Value]]:
        """The buffers that are changed, each with its new value."""
        return list(zip(self.writes, self.outputs[len(self.outputs) - len(self.writes) :], strict=True))


def root(value: Value) -> Value:
    """The value at the end of a chain of views."""
    while value.is_view:
        value = value.args[0]
    return value


def reachable(values: Iterable[Value], outputs: Iterable[Value]) -> list[Value]:
    """Those of the values that the outputs are computed from, in their order."""
    needed: set[Value] = set()
    stack = list(outputs)
    while stack:
        value = stack.pop()
        if value not in needed:
            needed.add(value)
            stack.extend(value.inputs)
    return [v for v in values if v in needed]


Index = tuple[Affine, ...]


def broadcast_index(index: Index, operand: Value, result: Shape, variants: int) -> Index:
    """The operand's index where the result's index is known (right-aligned; size-1 dims of the operand read at 0)."""
    lead = len(result) - len(operand.shape)
    out: list[Affine] = []
    for position, size in enumerate(operand.shape):
        broadcast = size.equals(1) and not result[position + lead].equals(1)
        out.append(Affine.zero(variants) if broadcast else index[position + lead])
    return tuple(out)


def through_view(view: Value, index: Index, variants: int) -> Index | None:
    """The index into a view's source, or None where it is not affine in the loops at hand."""
    source: Value = view.args[0]
    if view.op == "permute":
        out: list[Affine | None] = [None] * len(source.shape)
        for position, dim in enumerate(view.attrs["dims"]):
            out[dim] = index[position]
        return tuple(a for a in out if a is not None)
    if view.op == "expand":
        return broadcast_index(index, source, view.shape, variants)
    if view.op == "slice":
        dim, start, step = view.attrs["dim"], view.attrs["start"], view.attrs["step"]
        moved = list(index)
        moved[dim] = index[dim].scaled(step).plus(Affine(start))
        return tuple(moved)
    position_in_memory = linearise(index, view.shape, variants)
    found = delinearise(position_in_memory, source.shape, variants)
    return None if found is None else tuple(found)
