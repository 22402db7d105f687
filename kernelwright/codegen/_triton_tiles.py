"""Values of a loop nest as Triton tiles: axes, masks, loads and stores, and expressions that are written on demand."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from kernelwright.codegen._graph import Scalar
from kernelwright.codegen._ir import HALVES, Value
from kernelwright.codegen._kernel import Argument
from kernelwright.codegen._names import KernelSizes
from kernelwright.codegen._nest import Expr, Nest
from kernelwright.codegen._size import Affine, Loop, Size, product
from kernelwright.codegen._triton_math import template

_RESERVED = {"tl", "triton", "libdevice", "start", "inside", "acc", "parts", "range", "min", "max", "all", "any"}
_FRIENDLY = {"sum": "total", "amax": "largest", "amin": "smallest", "any": "found", "all": "every", "prod": "product",
             "abs": "size", "pow": "power", "round": "rounded"}  # fmt: skip
_NAME = re.compile(r"[A-Za-z_]\w*")
_NUMBER = re.compile(r"-?[\d.]+(e[+-]?\d+)?")
_LONGEST_INLINE = 48
LARGE = 1 << 31  # elements from which an index needs 64 bits


@dataclass
class Kernel:
    """A Triton function and how it is launched.

    Attributes:
        arguments: the arguments before the constants. ``kind`` is one of a C++ function's kinds, or ``local`` for a
            variable of ``forward`` that ``setup`` makes.
        setup: statements of ``forward`` before the launch. They may use ``device``.
        grid: the number of programs. Like ``setup`` and ``meta`` it is a template over the names in ``sizes``.
        meta: the compile-time constants and the options of the launch.
        again: bytes that it moves beyond those that the step's values have.
    """

    name: str
    text: str
    arguments: list[Argument]
    grid: str
    meta: dict[str, str]
    sizes: dict[str, Size]
    setup: list[str] = field(default_factory=list)
    again: int = 0


@dataclass
class Axis:
    """One axis of a tile: loops that are walked as one index.

    Attributes:
        subscript: turns the index into a tile of the kernel's rank, for example ``[:, None]``.
    """

    name: str
    loops: list[Loop]
    subscript: str = ""

    @property
    def inside(self) -> str:
        """The name of the mask."""
        return f"{self.name}_inside"

    def extent(self, variants: int) -> Size:
        """The number of positions of the axis."""
        return product([lp.extent for lp in self.loops], variants)


class _Sizes(KernelSizes):
    """Sizes of a kernel. The names of their arguments differ from all other names of the kernel."""

    def __init__(self, fresh: Callable[[str], str]) -> None:
        super().__init__()
        self._fresh = fresh

    def name(self, size: Size, preferred: str) -> str:
        """The expression of a size. If it must be an argument, the argument is named after ``preferred``."""
        if size.is_const:
            return str(size.timed)
        if size not in self.arguments:
            self.arguments[size] = self._fresh(preferred)
        return self.arguments[size]


class TileWriter:
    """Writes statements of one kernel. A value's tile has the axes that the value depends on, and size 1 elsewhere.

    Args:
        nest: the analysed region.
        axes: all its loops, in groups.
        given: values that are in registers already, with their names.
        fill: True if lanes outside a mask are combined with others. They are then loaded as 0, not left undefined.
    """

    def __init__(self, nest: Nest, axes: list[Axis], given: dict[Value, str] | None = None, fill: bool = False) -> None:
        self.nest, self.axes, self.given = nest, axes, dict(given or {})
        self.fill = ", other=0" if fill else ""
        self.sizes = _Sizes(self.fresh)
        self.tensors: dict[Value, str] = {}
        self.numbers: dict[Any, str] = {}
        self.locals: list[str] = []
        self.texts: dict[Expr, str] = {}
        self.variables: dict[Loop, str] = {}
        self.walks: list[tuple[str, list[Loop]]] = []  # indices, and the loops that each walks as one
        self.names_taken = {*_RESERVED, *(n for a in axes for n in (a.name, a.inside)), *self.given.values()}
        self.uses = _uses(nest)
        self.lines: list[str] = []
        self.depth = 1
        self.wide = False

    # ------------------------------------------------------------------------------------------ lines and names

    def emit(self, text: str) -> None:
        """One line at the current depth."""
        self.lines.append("    " * self.depth + text if text else "")

    def open(self, text: str) -> None:
        """A line that opens a block."""
        self.emit(text)
        self.depth += 1

    def close(self) -> None:
        """The end of a block."""
        self.depth -= 1

    def fresh(self, name: str) -> str:
        """A name that is not taken in this kernel."""
        candidate, n = name, 2
        while candidate in self.names_taken:
            candidate, n = f"{name}_{n}", n + 1
        self.names_taken.add(candidate)
        return candidate

    def arguments_first(self, values: Iterable[Value]) -> None:
        """Name the pointers of these values before anything else takes their names."""
        stored = [v for v, _, _ in self.nest.stores]
        for value in values:
            if value in self.given or value in self.tensors:
                continue
            name = value.name if value not in stored else "out" if len(stored) == 1 else f"{value.name}_out"
            self.tensors[value] = self.fresh(name)

    def tensor(self, value: Value) -> str:
        """The pointer argument of a value in memory."""
        if value not in self.tensors:
            self.tensors[value] = self.fresh(value.name)
        return self.tensors[value]

    def function(
        self, name: str, title: str, constants: Iterable[str], arguments: Iterable[Argument] | None = None
    ) -> str:
        """The whole kernel around the lines written so far."""
        parameters = [argument.name for argument in arguments or self.arguments()]
        parameters += [f"{constant}: tl.constexpr" for constant in constants]
        head = f"def {name}({', '.join(parameters)}):"
        if len(head) > 110:
            head = f"def {name}(\n    " + ", ".join(parameters) + ",\n):"
        return f'@triton.jit\n{head}\n    """{title}."""\n' + "\n".join(self.lines) + "\n"

    def arguments(self) -> list[Argument]:
        """The arguments before the constants."""
        out = [Argument("tensor", name, value) for value, name in self.tensors.items()]
        out += [Argument("local", name, name) for name in self.locals]
        out += [Argument("size", name, size) for size, name in self.sizes.arguments.items()]
        return out + [Argument("number", name, value) for value, name in self.numbers.items()]

    # ------------------------------------------------------------------------------------------ axes

    def program(self, *others: Value) -> str:
        """The number of this program, wide enough for every index computed from it, also into ``others``."""
        values = [*self.nest.loads(), *(v for v, _, _ in self.nest.stores), *others]
        volumes = [self.nest.volume(), *(product(v.shape, self.nest.variants) for v in values)]
        self.wide = is_large(volumes)
        return program_number(self.wide)

    def lanes(self, count: str) -> str:
        """The positions in a block."""
        return f"tl.arange(0, {count})" + (".to(tl.int64)" if self.wide else "")

    def declare(self, axis: Axis, start: str, count: str, preferred: str = "n") -> None:
        """The index of an axis, its mask, and its loops' variables."""
        extent = self.sizes.expr(axis.extent(self.nest.variants), preferred)
        begin = "" if start == "0" else f"{start} + "
        self.emit(f"{axis.name} = {begin}{self.lanes(count)}{axis.subscript}")
        self.emit(f"{axis.inside} = {axis.name} < {extent}")
        self.decode(axis.name, axis.loops)

    def decode(self, index: str, loops: list[Loop]) -> None:
        """Define the variables of the loops that one index runs over. An axis of one element has no loops."""
        if not loops:
            return
        self.walks = [walk for walk in self.walks if walk[1] != loops] + [(index, loops)]
        if len(loops) == 1:
            self.variables[loops[0]] = index
            return
        for n, loop in enumerate(loops):
            name = self.variables.get(loop) or self.fresh(f"{index}{n}")
            self.variables[loop] = name
            inner = product([lp.extent for lp in loops[n + 1 :]], self.nest.variants)
            size = "" if n == 0 else f" % {self.sizes.expr(loop.extent, f'{name}_size')}"
            text = index if n == len(loops) - 1 else f"{index} // {self.sizes.expr(inner, f'{name}_step')}"
            self.emit(f"{name} = {text}{size}")

    def mask(self, loops: Iterable[Loop]) -> str:
        """The mask of a tile that depends on some loops; empty where it is a scalar."""
        wanted = set(loops)
        return " & ".join(axis.inside for axis in self.axes if wanted & set(axis.loops))

    # ------------------------------------------------------------------------------------------ memory

    def _pointer(self, value: Value, position: Affine, extra: str = "") -> str:
        text = self.position(position)
        return " + ".join(part for part in (self.tensor(value), text, extra) if part)

    def position(self, position: Affine) -> str:
        """A position as text; loops that it walks as one are written as one index."""
        variables = dict(self.variables)
        for index, loops in self.walks:
            step = position.coefficient(loops[-1])
            inner = Size.const(1, self.nest.variants)
            natural = any(step.values)
            for loop in reversed(loops):
                natural = natural and position.coefficient(loop) == step * inner
                inner = inner * loop.extent
            if natural and len(loops) > 1:
                merged = Loop(index, inner)
                terms = tuple((lp, s) for lp, s in position.terms if lp not in loops)
                position, variables[merged] = Affine(position.offset, (*terms, (merged, step))), index
        return self.sizes.affine(position, variables, offset=True)

    def store(self, value: Value, expr: Expr, position: Affine) -> None:
        """Write a value to its place."""
        if expr.kind == "scatter":
            self._add_at(value, expr, position)
            return
        mask = self.mask(position.loops)
        text = self.value(expr)
        self.emit(f"tl.store({self._pointer(value, position)}, {text}{f', mask={mask}' if mask else ''})")

    def _add_at(self, value: Value, expr: Expr, position: Affine) -> None:
        """Add values to the places that an index names. What would go beyond the end is left out."""
        at, size = self.named(expr.args[0]), self.sizes.expr(value.shape[value.attrs["dim"]], "places")
        term = expr.args[1]
        text = self.value(term) if isinstance(term, Expr) else self._number(term, value.dtype)
        if (scale := value.attrs["scale"]) != 1:
            text = f"{atom(text)} * {self._number(scale, value.dtype)}"
        pointer = self._pointer(value, position, self._along(expr))
        if not expr.args[0].loops | position.loops:  # each lane adds, also if all of them add to one place
            pointer += f" + 0 * {self.axes[0].name}"
        inside = " & ".join([*(axis.inside for axis in self.axes), f"({at} >= 0) & ({at} < {size})"])
        self.emit(f'tl.atomic_add({pointer}, {text}, mask={inside}, sem="relaxed")')

    def _along(self, expr: Expr) -> str:
        """How far an index leads from the position of a gather or scatter, in elements."""
        at, step = self.value(expr.args[0]), self.sizes.expr(expr.stride or Size.const(1, self.nest.variants))
        if self.wide and expr.args[0].value.dtype == "int32":
            at = f"{atom(at)}.to(tl.int64)"
        return at if step == "1" else f"{atom(at)} * {step}"

    def load(self, source: Value, position: Affine, expr: Expr, extra: str = "") -> str:
        """The text that reads memory at a position, under the mask of an expression's loops and guards."""
        mask = " & ".join(part for part in (self.mask(expr.loops), *(self.named(g) for g in expr.guards)) if part)
        masked = f", mask={mask}{self.fill}" if mask else ""
        text = f"tl.load({self._pointer(source, position, extra)}{masked})"
        return f"{text}.to(tl.float32)" if source.dtype in HALVES else text

    # ------------------------------------------------------------------------------------------ expressions

    def value(self, expr: Expr) -> str:
        """The text of a value; statements that it needs are written first."""
        if expr not in self.texts:
            text = self._compose(expr)
            inline = self.uses[expr] <= 1 and expr.kind == "op" and len(text) <= _LONGEST_INLINE
            self.texts[expr] = text if inline or simple(text) else self.bind(expr, text)
        return self.texts[expr]

    def bind(self, expr: Expr, text: str) -> str:
        """Give a text a name."""
        name = self.fresh(friendly(expr.value.name) if expr.kind != "load" else f"{expr.value.name}_value")
        self.emit(f"{name} = {text}")
        return name

    def named(self, expr: Expr) -> str:
        """The name (or number) of a value whose text is used several times."""
        text = self.value(expr)
        if not simple(text):
            self.texts[expr] = text = self.bind(expr, text)
        return text

    def _compose(self, expr: Expr) -> str:
        value = expr.value
        if expr.kind == "load" and expr.position is not None:
            known = self.given.get(value)
            return known or self.load(value, expr.position, expr)
        if expr.kind == "iota" and expr.position is not None:
            text = self.position(expr.position) or "0"
            return f"{atom(text)}.to(tl.int64)" if expr.position.loops else f"tl.full((), {text}, tl.int64)"
        if expr.kind == "gather" and expr.position is not None and expr.stride is not None:
            return self.load(value.args[0], expr.position, expr, self._along(expr))
        if expr.kind == "inside" and expr.position is not None:
            text = atom(self.position(expr.position))
            tests = [f"({text} {sign} {self.sizes.expr(size, 'edge')})"
                     for sign, size in zip((">=", "<"), expr.bounds, strict=True) if size is not None]  # fmt: skip
            return " & ".join(tests)
        if value.op == "full":
            kind = "int1" if value.dtype == "bool" else tile_type(value.dtype)
            return f"tl.full((), {self._number(value.args[0], value.dtype)}, tl.{kind})"
        return self._cast(expr) if value.op == "cast" else self._operation(expr)

    def _cast(self, expr: Expr) -> str:
        source, target = expr.args[0], expr.value.dtype
        text = atom(self.value(source))
        if target == "bool":
            return text if source.value.dtype == "bool" else f"{text} != 0"
        if target in HALVES:
            return f"{text}.to(tl.{target}).to(tl.float32)"
        return text if tile_type(source.value.dtype) == target else f"{text}.to(tl.{target})"

    def _operation(self, expr: Expr) -> str:
        value = expr.value
        compute = tile_type(value.dtype)
        if compute == "bool":
            compute = next((tile_type(a.value.dtype) for a in expr.operands), "float32")
        pattern = template(value.op, compute)
        tiles = [a for a in expr.operands if a.value.op != "full"]
        texts = []
        for position, arg in enumerate(expr.args):
            literal = isinstance(arg, Expr) and arg.value.op == "full" and bool(tiles)
            number = arg.value.args[0] if literal else arg
            if isinstance(arg, Expr) and not literal:
                texts.append(self._operand(arg, value.op, position, compute, pattern))
            else:
                text = self._number(number, compute)
                wide = value.op == "pow" and compute == "float64"  # a bare number would be a float32 to libdevice
                texts.append(f"tl.full((), {text}, tl.float64)" if wide else text)
        bare = re.fullmatch(r"[\w.]+\(\{0\}(, \{\d\})*(, [^{}]*)?\)", pattern)
        parts = [t if bare or _NUMBER.fullmatch(t) else atom(t) for t in texts]
        text = pattern.format(*parts, t=f"tl.{compute}", zero="0.0" if compute.startswith("float") else "0")
        if value.op == "where" and not any(a in tiles for a in expr.args[1:]):
            text = f"{text}.to(tl.{compute if compute != 'bool' else 'int1'})"
        return text

    def _operand(self, arg: Expr, op: str, position: int, compute: str, pattern: str) -> str:
        text = self.named(arg) if pattern.count(f"{{{position}}}") > 1 else self.value(arg)
        dtype = tile_type(arg.value.dtype)
        if op in ("and", "or", "xor", "not") or (op == "where" and position == 0):
            return text if dtype == "bool" else f"{atom(text)} != 0"
        if dtype == compute or op == "copy" or compute == "bool":
            return text
        return f"{atom(text)}.to(tl.{compute})"

    def _number(self, number: Any, dtype: str) -> str:
        if isinstance(number, (Scalar, Size)):
            varies = len(set(number.values)) > 1
            if varies and isinstance(number, Size):
                return self.sizes.expr(number, "count")
            if varies:
                return self.numbers.setdefault(number, f"factor{len(self.numbers)}")
            number = number.values[0]
        return literal(number, dtype)


def is_large(volumes: Iterable[Size]) -> bool:
    """True where an index into one of these volumes does not fit into 32 bits."""
    return any(max(volume.values) >= LARGE for volume in volumes)


def program_number(wide: bool) -> str:
    """The number of a program."""
    return "tl.program_id(0).to(tl.int64)" if wide else "tl.program_id(0)"


def friendly(name: str) -> str:
    """A variable name that does not shadow a Python builtin."""
    base, _, number = name.partition("_")
    return f"{_FRIENDLY.get(base, base)}_{number}" if number else _FRIENDLY.get(base, name)


def atom(text: str) -> str:
    """``text`` in parentheses, unless it already binds tighter than any operator."""
    if simple(text) or re.fullmatch(r"-?[\w.]+", text):
        return text
    head = re.match(r"[\w.]*\(", text)
    if head is None or not text.endswith(")"):
        return f"({text})"
    depth = 0
    for position, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0 and char == ")":
            return text if position == len(text) - 1 or text[position + 1] == "." else f"({text})"
    return f"({text})"


def simple(text: str) -> bool:
    """True for a name or a number."""
    return bool(_NAME.fullmatch(text) or _NUMBER.fullmatch(text))


def tile_type(dtype: str) -> str:
    """The type in which tiles of a tensor's dtype are computed."""
    return "float32" if dtype in HALVES else dtype


def literal(number: float | int | bool, dtype: str) -> str:
    """A number as Python writes it."""
    if dtype == "bool":
        return str(bool(number))
    if not dtype.startswith("float"):
        return str(int(number))
    value = float(number)
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def _uses(nest: Nest) -> dict[Expr, int]:
    counts = dict.fromkeys(nest.order, 0)
    for expr in nest.order:
        for operand in expr.operands:
            counts[operand] += 1
    for _, expr, _ in nest.stores:
        counts[expr] += 1
    return counts
