"""Values of a loop nest in one CUDA thread: VECTOR neighbours along the innermost loop of memory, written on demand.

A value that differs between the neighbours is written inside a loop over them (``v``), every other value before that
loop. Neighbours in memory are loaded and stored together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from kernelwright.codegen._cuda_math import C_TYPES, STORED_TYPES, template
from kernelwright.codegen._graph import Scalar
from kernelwright.codegen._ir import HALVES, Value
from kernelwright.codegen._kernel import Argument
from kernelwright.codegen._names import atom as usual_atom
from kernelwright.codegen._names import literal
from kernelwright.codegen._nest import Expr, Nest
from kernelwright.codegen._size import Affine, Loop, Size, product
from kernelwright.codegen._triton_tiles import TileWriter, friendly, is_large

_RESERVED = {"row", "first", "inside", "lane", "item", "pack", "packs", "per_row", "per_group", "group", "column",
             "count", "v", "j", "step", "scratch", "shares", "at", "min", "max", "int", "float", "bool", "char", "long",
             "double", "short", "signed", "unsigned", "auto", "new", "delete", "this", "true", "false", "half", "const",
             "if", "else", "for", "while", "do", "switch", "case", "default", "return", "static", "void", "struct",
             "class", "enum", "union", "template", "typename", "using", "namespace", "operator", "register", "volatile",
             "sizeof", "signbit", "isnan", "isinf", "abs", "exp", "log", "sqrt", "pow", "sin", "cos"}  # fmt: skip
_ELEMENT = re.compile(r"[\w.]+(\[\w+\])*|[\d.]+e[+-]?\d+f?")
ARRAY = re.compile(r"(\w+(\[item\])?)\[v\]")
_LONGEST_INLINE = 60
_BOOLEAN = ("and", "or", "xor", "not")


class ThreadWriter(TileWriter):
    """Writes statements of one thread.

    Attributes:
        lane_loop: a thread has VECTOR neighbours along this loop.
        body: the lines of the loop over the neighbours; None outside of it.
        kept: values that stay in registers for later passes, with the names of their arrays.
    """

    def __init__(self, nest: Nest) -> None:
        super().__init__(nest, [])
        assert nest.vector is not None
        self.names_taken |= _RESERVED
        self.lane_loop: Loop = nest.vector
        self.body: list[str] | None = None
        self.kept: dict[Expr, str] = {}
        self.types: dict[str, str] = {}  # of arguments that are variables of forward

    # ------------------------------------------------------------------------------------------ lines

    def open(self, text: str) -> None:
        """A line that opens a block."""
        super().open(text + " {")

    def close(self) -> None:
        """The end of a block."""
        super().close()
        self.emit("}")

    @property
    def index(self) -> str:
        """The type of indices."""
        return "long long" if self.wide else "int"

    def measure(self) -> None:
        """Find out how wide indices must be. The last block may reach beyond the end."""
        values = [*self.nest.loads(), *(v for v, _, _ in self.nest.stores)]
        volumes = [self.nest.volume(), *(product(v.shape, self.nest.variants) for v in values)]
        self.wide = is_large(volume + (1 << 16) for volume in volumes)

    def block_number(self) -> str:
        """The number of this block."""
        return "(long long)blockIdx.x" if self.wide else "blockIdx.x"

    def decode(self, index: str, loops: list[Loop]) -> None:
        """Define the variables of the loops that one index runs over."""
        if not loops:
            return
        self.walks = [walk for walk in self.walks if walk[1] != loops] + [(index, loops)]
        if len(loops) == 1:
            self.variables[loops[0]] = index
            return
        for n, loop in enumerate(loops):
            name = self.fresh(f"{index}{n}")
            self.variables[loop] = name
            inner = product([lp.extent for lp in loops[n + 1 :]], self.nest.variants)
            size = "" if n == 0 else f" % {self.sizes.expr(loop.extent, f'{name}_size')}"
            text = index if n == len(loops) - 1 else f"{index} / {self.sizes.expr(inner, f'{name}_step')}"
            self.emit(f"const {self.index} {name} = {text}{size};")

    def varies(self, expr: Expr) -> bool:
        """True where a value differs between a thread's neighbours."""
        return self.lane_loop in expr.loops

    def begin_lanes(self) -> None:
        """Start the loop over the neighbours. Its lines are written at its end, after those that it needs."""
        self.body = []

    def end_lanes(self) -> None:
        """Write the loop over the neighbours, if it has lines."""
        lines, self.body = self.body or [], None
        if lines:
            if any(re.search(r"\bj\b", line) for line in lines):
                last = self.sizes.expr(self.lane_loop.extent, "cols")
                lines.insert(0, f"const {self.index} j = column + v < {last} ? column + v : {last} - 1;")
            self.emit("#pragma unroll")
            self.open("for (int v = 0; v < VECTOR; ++v)")
            for line in lines:
                self.emit(line)
            self.close()
        self.texts = {e: t for e, t in self.texts.items() if not self.varies(e) or ARRAY.fullmatch(t)}

    def write(self, line: str, *, inside: bool) -> None:
        """A line in the loop over the neighbours, or before it."""
        if inside:
            assert self.body is not None
            self.body.append(line)
        else:
            self.emit(line)

    # ------------------------------------------------------------------------------------------ the function

    def function(
        self, name: str, title: str, constants: Iterable[str], arguments: Iterable[Argument] | None = None
    ) -> str:
        """The whole kernel around the lines written so far. ``constants`` has the number of threads of a block."""
        stored = {v for v, _, _ in self.nest.stores}
        parameters = []
        for argument in arguments or self.arguments():
            if argument.kind == "tensor":
                const = "" if argument.value in stored else "const "
                kind = f"{const}{STORED_TYPES[argument.value.dtype]}* __restrict__"
            elif argument.kind == "local":
                kind = self.types[argument.name]
            else:
                kind = self.index if argument.kind == "size" else "double"
            parameters.append(f"{kind} {argument.name}")
        return definition(name, title, next(iter(constants)), parameters, self.lines)

    # ------------------------------------------------------------------------------------------ values

    def value(self, expr: Expr) -> str:
        """The text of a value; statements that it needs are written first."""
        if expr in self.texts:
            return self.texts[expr]
        text = self._compose(expr)
        if expr in self.kept and not ARRAY.fullmatch(text):
            place = f"{self.kept[expr]}[item][v]"
            self.write(f"{place} = {text};", inside=True)
            text = place
        inline = self.uses[expr] <= 1 and expr.kind == "op" and len(text) <= _LONGEST_INLINE
        self.texts[expr] = text if inline or _ELEMENT.fullmatch(text) else self.bind(expr, text)
        return self.texts[expr]

    def bind(self, expr: Expr, text: str) -> str:
        """Give a text a name."""
        name = self.fresh(friendly(expr.value.name) if expr.kind != "load" else f"{expr.value.name}_value")
        self.write(f"const {C_TYPES[expr.value.dtype]} {name} = {text};", inside=self.varies(expr))
        return name

    def named(self, expr: Expr) -> str:
        """The name (or number) of a value whose text is used several times."""
        text = self.value(expr)
        if not _ELEMENT.fullmatch(text):
            self.texts[expr] = text = self.bind(expr, text)
        return text

    def place_of(self, position: Affine, extra: str = "") -> str:
        """The position of one neighbour, whose index is ``j``."""
        known = self.variables.get(self.lane_loop, "column")
        self.variables[self.lane_loop] = "j"
        text = " + ".join(part for part in (self.position(position), extra) if part)
        self.variables[self.lane_loop] = known
        return text or "0"

    def _guarded(self, expr: Expr, text: str) -> str:
        """What is read of memory, only where it may be read."""
        tests = " && ".join(atom(self.value(g)) for g in expr.guards)
        return f"({tests} ? {text} : 0)" if tests else text

    def is_contiguous(self, position: Affine) -> bool:
        """True where the neighbours lie side by side."""
        return position.coefficient(self.lane_loop).equals(1)

    def _compose(self, expr: Expr) -> str:
        value = expr.value
        if expr.kind == "load" and expr.position is not None:
            if self.is_contiguous(expr.position) and not any(self.varies(g) for g in expr.guards):
                return self._neighbours(expr, expr.position)
            return self._guarded(expr, _converted(f"{self.tensor(value)}[{self.place_of(expr.position)}]", value))
        if expr.kind == "iota" and expr.position is not None:
            return f"({C_TYPES[value.dtype]}){atom(self.place_of(expr.position))}"
        if expr.kind == "inside" and expr.position is not None:
            text = atom(self.place_of(expr.position))
            tests = [f"{text} {sign} {self.sizes.expr(size, 'edge')}"
                     for sign, size in zip((">=", "<"), expr.bounds, strict=True) if size is not None]  # fmt: skip
            return " && ".join(tests)
        if expr.kind == "gather" and expr.position is not None and expr.stride is not None:
            step, at = self.sizes.expr(expr.stride), atom(self.value(expr.args[0]))
            source, place = value.args[0], self.place_of(expr.position, at if step == "1" else f"{at} * {step}")
            return self._guarded(expr, _converted(f"{self.tensor(source)}[{place}]", source))
        if value.op == "full":
            return self._number(value.args[0], value.dtype)
        return self._cast(expr) if value.op == "cast" else self._operation(expr)

    def _neighbours(self, expr: Expr, position: Affine) -> str:
        """Load neighbours at once; returns the text of one of them."""
        if expr in self.kept:
            name = f"{self.kept[expr]}[item]"
        else:
            name = self.fresh(f"{expr.value.name}_value")
            self.emit(f"{C_TYPES[expr.value.dtype]} {name}[VECTOR]{' = {}' if expr.guards else ''};")
        tests = " && ".join(atom(self.value(g)) for g in expr.guards)
        read = f"kw_load({name}, {self._pointer(expr.value, position)}, count);"
        self.emit(f"if ({tests}) {read}" if tests else read)
        return f"{name}[v]"

    def _cast(self, expr: Expr) -> str:
        source, target = expr.args[0], expr.value.dtype
        text = atom(self.value(source))
        if target == "bool":
            return text if source.value.dtype == "bool" else f"{text} != 0"
        if target in HALVES:
            return f"(float)({STORED_TYPES[target]}){text}"
        return text if C_TYPES[source.value.dtype] == C_TYPES[target] else f"({C_TYPES[target]}){text}"

    def _operation(self, expr: Expr) -> str:
        value = expr.value
        compute = value.dtype
        if compute == "bool":
            compute = next((a.value.dtype for a in expr.operands), "float32")
        pattern = template(value.op, compute)
        texts = []
        for position, arg in enumerate(expr.args):
            if isinstance(arg, Expr):
                texts.append(self._operand(arg, value.op, position, compute, pattern))
            else:
                texts.append(self._number(arg, compute))
        bare = re.fullmatch(r"[\w:<>{}]+\(\{0\}(, \{\d\})*\)", pattern)
        suffix = "" if compute == "float64" else "f"
        return pattern.format(*(t if bare else atom(t) for t in texts), t=C_TYPES[compute], f=suffix)

    def _operand(self, arg: Expr, op: str, position: int, compute: str, pattern: str) -> str:
        text = self.named(arg) if pattern.count(f"{{{position}}}") > 1 else self.value(arg)
        boolean = op in _BOOLEAN or op == "copy" or (op == "where" and position == 0)
        if boolean or compute == "bool" or C_TYPES[arg.value.dtype] == C_TYPES[compute]:
            return text
        return f"({C_TYPES[compute]}){atom(text)}"

    def _number(self, number: Any, dtype: str) -> str:
        if isinstance(number, (Scalar, Size)):
            varies = len(set(number.values)) > 1
            if varies and isinstance(number, Size):
                return f"({C_TYPES[dtype]}){atom(self.sizes.expr(number, 'count'))}"
            if varies:
                return f"({C_TYPES[dtype]}){self.numbers.setdefault(number, f'factor{len(self.numbers)}')}"
            number = number.values[0]
        return literal(number, dtype)


def atom(text: str) -> str:
    """``text`` in parentheses, unless it already binds tighter than any operator."""
    return text if _ELEMENT.fullmatch(text) else usual_atom(text)


def _converted(text: str, source: Value) -> str:
    """An element of memory in the type that it is computed with."""
    return f"(float){text}" if source.dtype in HALVES else text


def definition(name: str, title: str, threads: str, parameters: list[str], lines: list[str]) -> str:
    """A kernel with blocks of ``threads`` threads."""
    head = f'extern "C" __global__ void __launch_bounds__({threads}) {name}('
    text = head + ", ".join(parameters) + ") {"
    if len(text) > 110:
        text = head + "\n    " + ",\n    ".join(parameters) + ") {"
    return f"// {title}\n{text}\n" + "\n".join(lines) + "\n}\n"
