"""Writes the C++ function of one loop nest."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from kernelwright.codegen._graph import Scalar
from kernelwright.codegen._ir import C_TYPES, POINTWISE, STORED_TYPES, Value
from kernelwright.codegen._names import KernelSizes, atom, literal
from kernelwright.codegen._nest import CHUNK, Expr, Nest, is_element
from kernelwright.codegen._size import Affine, Loop, Size, product

PARALLEL_FROM = 65536  # iterations from which more threads pay
SPLIT_FROM = 256  # column sums longer than this are added up in two levels

_DOUBLE = {
    "sigmoid": "1.0 / (1.0 + std::exp(-{0}))",
    "silu": "{0} / (1.0 + std::exp(-{0}))",
    "softplus": "(({0} < 0 ? 0.0 : {0}) + std::log1p(std::exp(-std::abs({0}))))",
    "mish": "{0} * std::tanh(({0} < 0 ? 0.0 : {0}) + std::log1p(std::exp(-std::abs({0}))))",
    "gelu": "0.5 * {0} * (1.0 + std::erf({0} * 0.70710678118654752))",
    "gelu_tanh": "{0} / (1.0 + std::exp(-1.5957691216057308 * ({0} + 0.044715 * {0} * {0} * {0})))",
    "exp2": "std::exp2({0})",
    "log2": "std::log2({0})",
    "maximum": "(({0} > {1} || {0} != {0}) ? {0} : {1})",
    "minimum": "(({0} < {1} || {0} != {0}) ? {0} : {1})",
    "remainder": "{0} - std::floor({0} / {1}) * {1}",
}
_START = {"sum": "0", "prod": "1", "amax": "-INFINITY", "amin": "INFINITY", "any": "0", "all": "1"}
_CLAUSE = {"sum": "+", "prod": "*", "amax": "max", "amin": "min", "any": "|", "all": "&"}


@dataclass
class Argument:
    """One argument of a generated function. ``kind``: ``tensor``, ``size`` or ``number``."""

    kind: str
    name: str
    value: Any


@dataclass
class Function:
    """A generated C++ function and how to call it."""

    name: str
    text: str
    arguments: list[Argument]
    fused: list[str] = field(default_factory=list)


class NestWriter:
    """Writes one nest as C++.

    Args:
        nest: the analysed region.
        name: the function's name.
        title: what the function does, for its comment.
        alias: outputs that are written over an input of the same size.
        options: structural choices of the schedule.
        form: ``kernel``: a function of its own. Else a helper that a template calls on a tile in cache: ``row`` for
            one whole row of the nest, ``segment`` for ``count`` elements of a row from ``begin``.
        given: the value whose row (or segment) such a helper gets as ``acc``.
    """

    def __init__(
        self,
        nest: Nest,
        name: str,
        title: str,
        alias: Mapping[Value, Value],
        options: Mapping[str, Any],
        form: str = "kernel",
        given: Value | None = None,
    ) -> None:
        self.form, self.given = form, given
        self.nest, self.name, self.title, self.alias, self.options = nest, name, title, dict(alias), options
        self.sizes = KernelSizes()
        self.lines: list[str] = []
        self.depth = 1
        self.texts: dict[Expr, str] = {}
        self.uses = _use_counts(nest)
        self.repeated = _repeated(nest)
        self.tensors: dict[Value, str] = {}
        self.numbers: dict[Any, str] = {}
        self.pointers: dict[tuple[Value, Affine], str] = {}
        self.names_taken: set[str] = set()
        self.cached: dict[Expr, str] = {}
        self.buffers: list[tuple[str, str]] = []
        self.local: dict[Expr, str] = {}
        self.counts: dict[Expr, int] = {}
        self.reading: set[Expr] = set()
        self.stage = 0

    # ------------------------------------------------------------------------------------------ text

    def emit(self, text: str) -> None:
        """One line at the current depth; preprocessor lines too."""
        self.lines.append("    " * self.depth + text)

    def open(self, text: str) -> None:
        """A line that opens a block."""
        self.emit(text + " {")
        self.depth += 1

    def close(self) -> None:
        """The end of a block."""
        self.depth -= 1
        self.emit("}")

    def fresh(self, name: str) -> str:
        """A variable name that is not taken in this function."""
        candidate, n = name, 2
        while candidate in self.names_taken:
            candidate, n = f"{name}_{n}", n + 1
        self.names_taken.add(candidate)
        return candidate

    # ------------------------------------------------------------------------------------------ function

    def write(self) -> Function:
        """The whole function."""
        nest = self.nest
        for value in [*nest.loads(), *(self.alias.get(v, v) for v, _, _ in nest.stores)]:
            if value is not self.given:
                self._tensor(value)
        self.names_taken |= {"acc"} if self.form != "kernel" else set()
        self._name_loops()
        self._plan_cache()
        body = self.lines
        self._level_statements(lambda e: not e.loops and not e.final)
        if nest.mode == "pointwise":
            self._pointwise()
        else:
            self._rows()
        self._level_statements(lambda e: e.final)
        for value, expr, _ in nest.stores:
            if expr.final:
                self.emit(f"{self._tensor(value)}[0] = {self._text(expr)};")
        return Function(self.name, self._assemble(body), self._arguments(), fused_operators(nest))

    def _assemble(self, body: list[str]) -> str:
        written = {self.alias.get(v, v) for v, _, _ in self.nest.stores}
        parameters = []
        for value, name in self.tensors.items():
            const = "" if value in written else "const "
            parameters.append(f"{const}{STORED_TYPES[value.dtype]}* __restrict {name}")
        parameters += [f"int64_t {n}" for n in self.sizes.arguments.values()]
        parameters += [f"float {n}" for n in self.numbers.values()]
        linkage = 'extern "C"'
        if self.form != "kernel":
            linkage = "static inline"
            parameters = [f"{'' if self.given in written else 'const '}float* acc", *parameters, "int64_t row"]
            parameters += ["int64_t begin", "int64_t count"] if self.form == "segment" else []
        head = f"{linkage} void {self.name}({', '.join(parameters)}) {{"
        if len(head) > 110:
            head = f"{linkage} void {self.name}(\n    " + ",\n    ".join(parameters) + ") {"
        return f"// {self.title}\n{head}\n" + "\n".join(body) + "\n}\n"

    def _arguments(self) -> list[Argument]:
        out = [Argument("tensor", name, value) for value, name in self.tensors.items()]
        out += [Argument("size", name, size) for size, name in self.sizes.arguments.items()]
        out += [Argument("number", name, value) for value, name in self.numbers.items()]
        return out

    def _tensor(self, value: Value) -> str:
        if value in self.alias:
            value = self.alias[value]
        if value not in self.tensors:
            self.tensors[value] = self.fresh(value.name)
        return self.tensors[value]

    # ------------------------------------------------------------------------------------------ loops

    def _name_loops(self) -> None:
        nest = self.nest
        self.outer_vars: dict[Loop, str] = {}
        self.inner_vars: dict[Loop, str] = {}
        labels = ["j"] if len(nest.inner) == 1 else [f"k{n}" for n in range(len(nest.inner) - 1)] + ["j"]
        if nest.mode == "column":
            labels = ["k"] if len(nest.inner) == 1 else [f"k{n}" for n in range(len(nest.inner))]
        for loop, label in zip(nest.inner, labels, strict=True):
            self.inner_vars[loop] = label
            single = "n" if nest.mode == "pointwise" and not nest.outer else "cols"
            if nest.chunked:
                single = "n"
            self.sizes.name(loop.extent, "steps" if nest.mode == "column" else single if label == "j" else "groups")
        if nest.vector is not None and nest.mode == "column":
            self.sizes.name(nest.vector.extent, "width")
        for n, loop in enumerate(nest.outer):
            self.outer_vars[loop] = "row" if len(nest.outer) == 1 else f"i{n}"
            self.sizes.name(loop.extent, "rows" if len(nest.outer) == 1 else f"size{n}")
        self.names_taken |= {*self.inner_vars.values(), *self.outer_vars.values(), "row", "v", "begin", "count", "rows"}
        if nest.mode == "column" and nest.vector is not None:
            self.inner_vars[nest.vector] = "v"

    def _rows_extent(self) -> str:
        total = product([lp.extent for lp in self.nest.outer], self.nest.variants)
        return self.sizes.expr(total, "rows")

    def _open_rows(self, reductions: str) -> None:
        """The parallel loop over rows (or chunks, or blocks of columns), with its pragmas."""
        nest = self.nest
        if self.form != "kernel":
            self._decode()
            return
        if nest.chunked:
            extent = self.sizes.expr(nest.inner[0].extent, "n")
            self.emit(f"const int64_t chunks = ({extent} + {CHUNK - 1}) / {CHUNK};")
            count, work = "chunks", extent
        elif nest.mode == "column":
            width = self.sizes.expr(nest.vector.extent if nest.vector else nest.volume(), "width")
            self.emit(f"const int64_t blocks = ({width} + BLOCK - 1) / BLOCK;")
            rows = self._rows_extent() if nest.outer else "1"
            count, work = ("blocks" if rows == "1" else f"{rows} * blocks"), self._work()
        else:
            count, work = self._rows_extent(), self._work()
        condition = f" if ({work} > {PARALLEL_FROM})" if not work.isdigit() else ""
        if self.buffers:
            self.emit(f"#pragma omp parallel{condition}{reductions}")
            self.emit("{")
            self.depth += 1
            for declaration, _ in self.buffers:
                self.emit(declaration)
            self.emit("#pragma omp for schedule(static)")
        else:
            self.emit(f"#pragma omp parallel for schedule(static){condition}{reductions}")
        variable = "chunk" if nest.chunked else "block" if nest.mode == "column" else "row"
        self.open(f"for (int64_t {variable} = 0; {variable} < {count}; ++{variable})")
        self._decode()

    def _work(self) -> str:
        parts = []
        for loop in (*self.nest.outer, *self.nest.inner, *([self.nest.vector] if self.nest.mode == "column" else [])):
            if loop is not None:
                parts.append(self.sizes.expr(loop.extent, "extent"))
        numbers = [int(p) for p in parts if p.isdigit()]
        names = [p for p in parts if not p.isdigit()]
        constant = 1
        for number in numbers:
            constant *= number
        return " * ".join(([str(constant)] if constant != 1 or not names else []) + names)

    def _decode(self) -> None:
        nest = self.nest
        if nest.chunked:
            extent = self.sizes.expr(nest.inner[0].extent, "n")
            self.emit(f"const int64_t begin = chunk * {CHUNK};")
            self.emit(f"const int64_t count = std::min<int64_t>({CHUNK}, {extent} - begin);")
            return
        if nest.mode == "column":
            width = self.sizes.expr(nest.vector.extent if nest.vector else nest.volume(), "width")
            if nest.outer and self._rows_extent() != "1":
                self.emit("const int64_t row = block / blocks;")
                self.emit("const int64_t begin = (block - row * blocks) * BLOCK;")
            else:
                self.emit("const int64_t begin = block * BLOCK;")
            self.emit(f"const int64_t count = std::min<int64_t>(BLOCK, {width} - begin);")
        if len(nest.outer) > 1:
            rest = "row"
            for loop in reversed(nest.outer[1:]):
                extent = self.sizes.expr(loop.extent, "size")
                self.emit(f"const int64_t {self.outer_vars[loop]} = {rest} % {extent};")
                rest = f"{rest} / {extent}" if rest == "row" else f"({rest}) / {extent}"
                rest = f"({rest})"
            self.emit(f"const int64_t {self.outer_vars[nest.outer[0]]} = {rest};")

    def _open_inner(self, reductions: Mapping[str, list[str]]) -> int:
        """Open the loops of one row's work, with the values of each level; returns how many blocks were opened."""
        nest = self.nest
        loops = nest.inner if nest.mode == "column" else nest.inner[:-1]
        for loop in loops:
            variable = self.inner_vars[loop]
            self.open(f"for (int64_t {variable} = 0; {variable} < {self.sizes.expr(loop.extent)}; ++{variable})")
            self._elements_at(loop)
        self._open_vector(reductions)
        return len(loops) + 1

    def _open_vector(self, reductions: Mapping[str, list[str]]) -> None:
        nest = self.nest
        vector = "v" if nest.mode == "column" else "j"
        clauses = "".join(f" reduction({op} : {', '.join(names)})" for op, names in reductions.items())
        self.emit(f"#pragma omp simd{clauses}")
        part = nest.chunked or nest.mode == "column" or self.form == "segment"
        limit = "count" if part else self.sizes.expr(nest.inner[-1].extent)
        self.open(f"for (int64_t {vector} = 0; {vector} < {limit}; ++{vector})")
        self._elements_at(nest.vector)

    # ------------------------------------------------------------------------------------------ passes

    def _pointwise(self) -> None:
        nest = self.nest
        stores = [(v, e, p) for v, e, p in nest.stores if not e.final]
        if not nest.outer and self.form == "kernel":
            extent = self.sizes.expr(nest.inner[0].extent, "n")
            condition = "" if extent.isdigit() else f" if ({extent} > {PARALLEL_FROM})"
            self.emit(f"#pragma omp parallel for simd schedule(static){condition}")
            self._plan_elements([e for _, e, _ in stores], 0)
            self.open(f"for (int64_t j = 0; j < {extent}; ++j)")
            self._elements_at(nest.vector)
            self._store(stores)
            self.close()
            return
        self._open_rows("")
        self._row_pointers()
        self._level_statements(lambda e: bool(e.loops) and not is_element(nest, e) and e.stage == 0)
        self._plan_elements([e for _, e, _ in stores if is_element(nest, e)], 0)
        opened = self._open_inner({})
        self._store([s for s in stores if is_element(nest, s[1])])
        for _ in range(opened):
            self.close()
        self._store([s for s in stores if not is_element(nest, s[1])])
        if self.form == "kernel":
            self.close()

    def _rows(self) -> None:
        nest = self.nest
        totals = [e for e in nest.order if e.kind == "reduce" and e.scope in ("all", "outer")]
        clauses = ""
        for expr in totals:
            kind = "double" if expr.value.op in ("sum", "prod") and expr.value.dtype == "float32" else _ctype(expr)
            name = self.fresh(f"{expr.value.name}_total")
            self.texts[expr] = name if kind == _ctype(expr) else f"({_ctype(expr)}){name}"
            self.emit(f"{kind} {name} = {_START[expr.value.op]};")
            clauses += f" reduction({_CLAUSE[expr.value.op]} : {name})"
        self.total_names = {e: re.sub(r"^\(\w+\)", "", self.texts[e]) for e in totals}
        self._open_rows(clauses)
        self._row_pointers()
        last = max(e.stage for e in nest.order)
        for stage in range(last + 1):
            if stage == 0:
                self._row_statements(0)
            self._pass(stage)
            self._row_statements(stage + 1)
        self._store([s for s in nest.stores if not is_element(nest, s[1]) and not s[1].final])
        if self.form == "kernel":
            self.close()
        if self.buffers:
            self.close()

    def _row_statements(self, stage: int) -> None:
        nest = self.nest
        wanted = [
            e
            for e in nest.order
            if not is_element(nest, e) and e.loops and e.stage == stage and e.kind != "reduce" and not e.final
        ]
        outers = [e for e in nest.order if e.scope == "outer" and e.args[0].stage == stage]
        if nest.mode == "column":
            varying = [e for e in wanted if nest.vector in e.loops]
            self._statements([e for e in wanted if e not in varying])
            self._column_arrays(varying)
        else:
            self._statements(wanted)
        for expr in outers:
            self._accumulate_total(expr, self._text(expr.args[0]))

    def _column_arrays(self, varying: list[Expr]) -> None:
        """Row values in column mode: one per column of the block, kept in small arrays."""
        needed = [e for e in varying if self.uses[e] > 0 and e.kind != "load"]
        if not needed:
            return
        names = {e: self.fresh(e.value.name) for e in needed}
        for expr, name in names.items():
            self.emit(f"{_ctype(expr)} {name}[BLOCK];")
        self.emit("#pragma omp simd")
        self.open("for (int64_t v = 0; v < count; ++v)")
        for expr in varying:
            if expr.kind == "load":
                self.texts[expr] = self._compose(expr)
        for expr, name in names.items():
            self.emit(f"{name}[v] = {self._compose(expr)};")
            self.texts[expr] = f"{name}[v]"
        self.close()

    def _pass(self, stage: int) -> None:
        nest = self.nest
        reduces = [e for e in nest.order if e.kind == "reduce" and e.scope in ("row", "all")]
        reduces = [e for e in reduces if e.args[0].stage == stage]
        stores = [s for s in nest.stores if is_element(nest, s[1]) and s[1].stage == stage]
        if not reduces and not stores:
            return
        self.emit("")
        if nest.mode == "column":
            self._column_pass(stage, reduces, stores)
            return
        clauses = self._declare(reduces)
        self._plan_elements([e.args[0] for e in reduces] + [e for _, e, _ in stores], stage)
        scope = set(self.names_taken)
        opened = self._open_inner(clauses)
        for expr in reduces:
            self._accumulate(expr)
        self._store(stores)
        for _ in range(opened):
            self.close()
        self.names_taken = scope
        for expr in reduces:
            self._finish(expr)

    def _declare(self, reduces: list[Expr]) -> dict[str, list[str]]:
        """Declare accumulators; returns the simd reduction clauses."""
        clauses: dict[str, list[str]] = {}
        for expr in reduces:
            name = self.fresh(expr.value.name)
            op = expr.value.op
            if op in ("argmax", "argmin"):
                op = "a" + op[3:]
            self.emit(f"{_accumulator(expr)} {name} = {_START[op]};")
            clauses.setdefault(_CLAUSE[op], []).append(name)
            if self._watches_nan(expr):
                flag = self.fresh(f"{name}_nan")
                self.emit(f"int {flag} = 0;")
                clauses.setdefault("|", []).append(flag)
                self.texts[expr] = flag
            self.local[expr] = name
        return clauses

    def _watches_nan(self, expr: Expr) -> bool:
        extreme = expr.value.op in ("amax", "amin", "argmax", "argmin")
        return extreme and expr.args[0].value.dtype.startswith("float") and not expr.value.attrs.get("nan_may_vanish")

    def _accumulate(self, expr: Expr) -> None:
        name, text, op = self.local[expr], self._text(expr.args[0]), expr.value.op
        if op in ("amax", "argmax"):
            self.emit(f"{name} = {atom(text)} > {name} ? {text} : {name};")
        elif op in ("amin", "argmin"):
            self.emit(f"{name} = {atom(text)} < {name} ? {text} : {name};")
        else:
            sign = {"sum": "+=", "prod": "*=", "any": "|=", "all": "&="}[op]
            self.emit(f"{name} {sign} {text};")
        if self._watches_nan(expr):
            self.emit(f"{self.texts[expr]} |= {atom(text)} != {atom(text)};")

    def _finish(self, expr: Expr) -> None:
        """After a pass: NaN flags, positions of extremes, totals."""
        name, op = self.local[expr], expr.value.op
        if self._watches_nan(expr):
            self.emit(f"if ({self.texts[expr]}) {name} = NAN;")
        self.texts[expr] = name
        if op in ("argmax", "argmin"):
            self.texts[expr] = self._find(expr, name)
        if expr.scope == "all":
            self._accumulate_total(expr, name)

    def _accumulate_total(self, expr: Expr, text: str) -> None:
        name, op = self.total_names[expr], expr.value.op
        if op in ("amax", "amin"):
            sign = ">" if op == "amax" else "<"
            self.emit(f"{name} = ({text} {sign} {name} || {atom(text)} != {atom(text)}) ? {text} : {name};")
        else:
            self.emit(f"{name} { ({'sum': '+=', 'prod': '*=', 'any': '|=', 'all': '&='}[op]) } {text};")
        self.texts[expr] = f"({_ctype(expr)}){name}"

    def _find(self, expr: Expr, extreme: str) -> str:
        """The first position of an extreme value (or of the first NaN) in a row."""
        name = self.fresh(f"{expr.value.name}_index")
        self.emit(f"int32_t {name} = INT32_MAX;")
        operand = expr.args[0]
        self._plan_elements([operand], operand.stage, again=True)
        scope = set(self.names_taken)
        opened = self._open_inner({"min": [name]})
        position = " + ".join(
            self.inner_vars[lp] if s == "1" else f"{self.inner_vars[lp]} * {s}" for lp, s in self._inner_strides()
        )
        text = self._text(operand)
        found = f"{atom(text)} == {extreme}"
        if self._watches_nan(expr):
            found = f"({found} || ({atom(text)} != {atom(text)} && {extreme} != {extreme}))"
        self.emit(f"const int32_t position = {found} ? (int32_t)({position}) : INT32_MAX;")
        self.emit(f"{name} = position < {name} ? position : {name};")
        for _ in range(opened):
            self.close()
        self.names_taken = scope
        return name

    def _inner_strides(self) -> list[tuple[Loop, str]]:
        loops = [lp for lp in self.nest.inner if lp.reduced]
        out = []
        for n, loop in enumerate(loops):
            stride = product([lp.extent for lp in loops[n + 1 :]], self.nest.variants)
            out.append((loop, self.sizes.expr(stride)))
        return out

    # ------------------------------------------------------------------------------------------ column mode

    def _column_pass(self, stage: int, reduces: list[Expr], stores: list[tuple[Value, Expr, Affine]]) -> None:
        for expr in reduces:
            name, op = self.fresh(expr.value.name), expr.value.op
            self.local[expr] = name
            if op in ("argmax", "argmin"):
                self.emit(f"int32_t {name}_index[BLOCK];")
                op = "a" + op[3:]
            self.emit(f"{_accumulator(expr)} {name}[BLOCK];")
            self.emit(f"for (int64_t v = 0; v < count; ++v) {name}[v] = {_START[op]};")
            if expr.value.op in ("argmax", "argmin"):
                self.emit(f"for (int64_t v = 0; v < count; ++v) {name}_index[v] = 0;")
        split = self._split_sums(reduces)
        self._plan_elements([e.args[0] for e in reduces] + [e for _, e, _ in stores], stage)
        scope = set(self.names_taken)
        opened = self._open_column_loops(split, reduces)
        for expr in reduces:
            self._accumulate_column(expr, split)
        self._store(stores)
        for _ in range(opened):
            self.close()
        self.names_taken = scope
        if split:
            for expr in reduces:
                if expr.value.op == "sum":
                    name = self.local[expr]
                    self.emit(f"for (int64_t v = 0; v < count; ++v) {name}[v] += {name}_part[v];")
            self.close()
        for expr in reduces:
            index = expr.value.op in ("argmax", "argmin")
            self.texts[expr] = f"{self.local[expr]}{'_index' if index else ''}[v]"

    def _split_sums(self, reduces: list[Expr]) -> bool:
        """True where sums run over so many steps that they are added up in two levels, for accuracy."""
        longest = max(product([lp.extent for lp in self.nest.inner], self.nest.variants).values)
        return longest > SPLIT_FROM and any(e.value.op == "sum" for e in reduces)

    def _open_column_loops(self, split: bool, reduces: list[Expr]) -> int:
        if not split:
            return self._open_inner({})
        first = self.nest.inner[0]
        variable, extent = self.inner_vars[first], self.sizes.expr(first.extent)
        step = f"{variable}_begin"
        self.open(f"for (int64_t {step} = 0; {step} < {extent}; {step} += {SPLIT_FROM // 2})")
        for expr in reduces:
            if expr.value.op == "sum":
                self.emit(f"{_accumulator(expr)} {self.local[expr]}_part[BLOCK] = {{0}};")
        end = f"{variable}_end"
        self.emit(f"const int64_t {end} = std::min<int64_t>({step} + {SPLIT_FROM // 2}, {extent});")
        self.open(f"for (int64_t {variable} = {step}; {variable} < {end}; ++{variable})")
        self._elements_at(first)
        for loop in self.nest.inner[1:]:
            name = self.inner_vars[loop]
            self.open(f"for (int64_t {name} = 0; {name} < {self.sizes.expr(loop.extent)}; ++{name})")
            self._elements_at(loop)
        self._open_vector({})
        return len(self.nest.inner) + 1

    def _accumulate_column(self, expr: Expr, split: bool) -> None:
        name, text, op = self.local[expr], self._text(expr.args[0]), expr.value.op
        slot = f"{name}_part[v]" if split and op == "sum" else f"{name}[v]"
        value = atom(text)
        if op in ("sum", "prod", "any", "all"):
            self.emit(f"{slot} { ({'sum': '+=', 'prod': '*=', 'any': '|=', 'all': '&='}[op]) } {text};")
            return
        sign = ">" if op in ("amax", "argmax") else "<"
        if op in ("amax", "amin"):
            nan = "" if expr.value.attrs.get("nan_may_vanish") else f" || {value} != {value}"
            self.emit(f"{slot} = ({value} {sign} {slot}{nan}) ? {text} : {slot};")
            return
        position = " + ".join(
            self.inner_vars[lp] if s == "1" else f"{self.inner_vars[lp]} * {s}" for lp, s in self._inner_strides()
        )
        self.emit(f"const bool better = {value} {sign} {slot} || ({value} != {value} && {slot} == {slot});")
        self.emit(f"{name}_index[v] = better ? (int32_t)({position}) : {name}_index[v];")
        self.emit(f"{slot} = better ? {text} : {slot};")

    # ------------------------------------------------------------------------------------------ keeping values

    def _plan_cache(self) -> None:
        """Decide which element values are kept between passes rather than computed again."""
        nest = self.nest
        if nest.mode == "pointwise" or self.options.get("scratch") == "recompute":
            return
        computed: set[Expr] = set()
        kept: list[Expr] = []
        for stage in range(max(e.stage for e in nest.order) + 1):
            roots = [e.args[0] for e in nest.order if e.kind == "reduce" and e.args[0].stage == stage]
            roots += [e for _, e, _ in nest.stores if e.stage == stage]
            stack = [r for r in roots if is_element(nest, r)]
            seen: set[Expr] = set()
            while stack:
                expr = stack.pop()
                if expr in seen:
                    continue
                seen.add(expr)
                if expr in computed and expr.kind == "op" and _heavy(nest, expr):
                    if expr not in kept:
                        kept.append(expr)
                    continue
                stack += [o for o in expr.operands if is_element(nest, o)]
            computed |= seen
        for expr in kept:
            self._give_place(expr)

    def _give_place(self, expr: Expr) -> None:
        nest = self.nest
        for value, stored, position in nest.stores:
            holders = [e for e, place in self.cached.items() if place == f"store:{value.name}"]
            taken = any(self._needed_after(expr.stage, lambda e, h=h: e is h, {*self.cached, expr}) for h in holders)
            fits = value.dtype == expr.value.dtype and is_element(nest, stored) and self._overwritable(value, expr)
            if fits and not taken and stored is not expr and stored.stage > expr.stage and self._whole_row(position):
                self.cached[expr] = f"store:{value.name}"
                return
        if nest.chunked:
            return
        name = self.fresh(f"{expr.value.name}_kept")
        loops = [lp.extent for lp in nest.inner]
        size = self.sizes.expr(product(loops, nest.variants), "cols")
        size = f"{size} * BLOCK" if nest.mode == "column" else size
        self.buffers.append((f"std::vector<{_ctype(expr)}> {name}({size});", name))
        self.cached[expr] = f"buffer:{name}"

    def _overwritable(self, value: Value, expr: Expr) -> bool:
        """True where an output's memory is free as soon as ``expr`` is known: nobody reads its old content later."""
        source = self.alias.get(value)
        if source is None:
            return True
        kept = {*self.cached, expr}
        return not self._needed_after(expr.stage, lambda e: e.kind == "load" and e.value is source, kept)

    def _needed_after(self, stage: int, wanted: Callable[[Expr], bool], kept: Collection[Expr] | None = None) -> bool:
        """True where a pass after ``stage`` still needs an expression that ``wanted`` describes."""
        stack = [e.args[0] for e in self.nest.order if e.kind == "reduce" and e.args[0].stage > stage]
        stack += [e for _, e, _ in self.nest.stores if e.stage > stage]
        while stack:
            current = stack.pop()
            if wanted(current):
                return True
            if current not in (self.cached if kept is None else kept) and is_element(self.nest, current):
                stack += current.operands
        return False

    def _whole_row(self, position: Affine) -> bool:
        """True where every element of the row's work has its own place at ``position``."""
        return all(any(position.coefficient(lp).values) or lp.extent.equals(1) for lp in self.nest.inner)

    def _place(self, expr: Expr) -> str:
        """The lvalue of a kept value."""
        kind, name = self.cached[expr].split(":")
        if kind == "store":
            value, _, position = next(s for s in self.nest.stores if s[0].name == name)
            return self._element(value, position)
        strides = self._kept_strides()
        index = " + ".join(v if s == "1" else f"{v} * {s}" for v, s in strides)
        return f"{name}[{index}]"

    def _kept_strides(self) -> list[tuple[str, str]]:
        loops, out = self.nest.inner, []
        if self.nest.mode == "column":
            out = [("v", "1")]
        for n, loop in enumerate(loops):
            stride = self.sizes.expr(product([lp.extent for lp in loops[n + 1 :]], self.nest.variants))
            if self.nest.mode == "column":
                stride = "BLOCK" if stride == "1" else f"{stride} * BLOCK"
            out.append((self.inner_vars[loop], stride))
        return out

    # ------------------------------------------------------------------------------------------ expressions

    def _row_pointers(self) -> None:
        """Pointers to the start of a row, for every access that moves along it."""
        nest = self.nest
        accesses: list[tuple[Value, Affine]] = []
        for expr in nest.order:
            if expr.kind in ("load", "gather") and expr.position is not None and is_element(nest, expr):
                accesses.append((expr.value if expr.kind == "load" else expr.value.args[0], expr.position))
        accesses += [(v, p) for v, e, p in nest.stores if is_element(nest, e)]
        column = nest.mode == "column"
        for expr in nest.order if column else []:
            if expr.kind == "load" and expr.position is not None and nest.vector in expr.loops:
                accesses.append((expr.value, expr.position))
        accesses += [(v, p) for v, e, p in nest.stores if column and not is_element(nest, e)]
        written = {self.alias.get(v, v) for v, _, _ in nest.stores}
        for value, position in accesses:
            value = self.alias.get(value, value)
            if (value, position) in self.pointers:
                continue
            if value is self.given:
                self.pointers[value, position] = "acc"
                continue
            base = self._base(position)
            if base:
                name = self.fresh(f"{self._tensor(value)}_row")
                const = "" if value in written else "const "
                self.emit(f"{const}{STORED_TYPES[value.dtype]}* {name} = {self._tensor(value)} + {base};")
                self.pointers[value, position] = name
            else:
                self.pointers[value, position] = self._tensor(value)

    def _base(self, position: Affine) -> str:
        """What the outer loops (and the block or chunk) add to an index."""
        nest = self.nest
        text = self.sizes.affine(position, self.outer_vars, offset=True)
        if (nest.chunked or nest.mode == "column" or self.form == "segment") and nest.vector is not None:
            factor = self.sizes.expr(position.coefficient(nest.vector))
            if factor != "0":
                step = "begin" if factor == "1" else f"begin * {factor}"
                text = f"{text} + {step}" if text else step
        return text

    def _element(self, value: Value, position: Affine) -> str:
        value = self.alias.get(value, value)
        pointer = self.pointers.get((value, position))
        if pointer is None:
            variables = {**self.outer_vars, **self.inner_vars}
            return f"{self._tensor(value)}[{self.sizes.affine(position, variables, offset=True) or '0'}]"
        return f"{pointer}[{self.sizes.affine(position, self.inner_vars, offset=False) or '0'}]"

    def _level_statements(self, wanted: Any) -> None:
        self._statements([e for e in self.nest.order if e.kind != "reduce" and wanted(e)])

    def _plan_elements(self, roots: list[Expr], stage: int, *, again: bool = False) -> None:
        """Find the element values that a pass needs, and which of them were kept by an earlier one."""
        nest = self.nest
        self.stage = stage
        self.reading = {e for e in self.cached if e.stage < stage or again}
        self.counts = {}
        stack = [r for r in roots if is_element(nest, r)]
        for root in stack:
            self.counts[root] = self.counts.get(root, 0) + 1
        seen: set[Expr] = set()
        while stack:
            expr = stack.pop()
            if expr in seen or expr in self.reading:
                continue
            seen.add(expr)
            for operand in expr.operands:
                if is_element(nest, operand):
                    self.counts[operand] = self.counts.get(operand, 0) + 1
                    stack.append(operand)

    def _elements_at(self, loop: Loop | None) -> None:
        """Statements for the values that are known once ``loop`` runs, operands first."""
        nest = self.nest
        levels = [*nest.inner, nest.vector] if nest.mode == "column" else nest.inner
        level = levels.index(loop)
        for expr in nest.order:
            if expr not in self.counts or max(n for n, lp in enumerate(levels) if lp in expr.loops) != level:
                continue
            if expr in self.reading:
                self.texts[expr] = self._place(expr)
                if self.counts[expr] > 1:
                    self._bind(expr, self.texts[expr])
            elif expr in self.cached and expr.stage == self.stage:
                self._bind(expr, self._compose(expr))
                self.emit(f"{self._place(expr)} = {self.texts[expr]};")
            else:
                self._statement(expr, self.counts[expr])

    def _statements(self, exprs: list[Expr]) -> None:
        for expr in exprs:
            self._statement(expr, self.uses[expr])

    def _statement(self, expr: Expr, uses: int = 2) -> None:
        text = self._compose(expr)
        if expr in self.repeated and not re.fullmatch(r"\w+", text):
            self._bind(expr, text)
            return
        limit = 44 if expr.kind == "op" else 60
        ternary = "?" in text and expr.kind == "op"
        squares = expr.value.op == "square" and expr.kind == "op"
        if (uses <= 1 and len(text) <= limit and not ternary and not squares) or (
            expr.kind in ("load", "iota") and is_element(self.nest, expr) and uses <= 1
        ):
            self.texts[expr] = text
        else:
            self._bind(expr, text)

    def _bind(self, expr: Expr, text: str) -> None:
        base = expr.value.name if expr.kind != "load" else f"{self._tensor(expr.value)}_value"
        name = base if base not in self.names_taken else self.fresh(base)
        self.names_taken.add(name)
        self.emit(f"const {_ctype(expr)} {name} = {text};")
        self.texts[expr] = name

    def _text(self, expr: Expr) -> str:
        if expr not in self.texts:
            self.texts[expr] = self._compose(expr)
        return self.texts[expr]

    def _compose(self, expr: Expr) -> str:
        """The C++ expression of a value from its operands' texts."""
        value = expr.value
        if expr.kind == "load" and expr.position is not None:
            text = self._element(value, expr.position)
            return f"({text} != 0)" if value.dtype == "bool" else text
        if expr.kind == "iota" and expr.position is not None:
            variables = {**self.outer_vars, **self.inner_vars}
            text = self.sizes.affine(expr.position, variables, offset=True) or "0"
            part = self.nest.mode == "column" or self.nest.chunked or self.form == "segment"
            if self.nest.vector in expr.position.loops and part:
                text = f"{text} + begin * {self.sizes.expr(expr.position.coefficient(self.nest.vector))}"
            return f"(int64_t)({text})" if text == "0" else text
        if expr.kind == "gather" and expr.position is not None and expr.stride is not None:
            at = f"{atom(self._text(expr.args[0]))}"
            step = self.sizes.expr(expr.stride)
            along = at if step == "1" else f"{at} * {step}"
            element = self._element(value.args[0], expr.position)
            head, inside = element[: element.index("[")], element[element.index("[") + 1 : -1]
            return f"{head}[{along}]" if inside == "0" else f"{head}[{inside} + {along}]"
        if value.op == "full":
            return self._number(value.args[0], value.dtype)
        return self._operation(expr)

    def _operation(self, expr: Expr) -> str:
        value = expr.value
        dtypes = [a.value.dtype for a in expr.operands]
        compute = value.dtype if value.dtype != "bool" else (dtypes or ["float32"])[0]
        if value.op == "cast":
            source = expr.args[0]
            text = atom(self._text(source))
            return f"{text} != 0" if value.dtype == "bool" else f"({C_TYPES[value.dtype]}){text}"
        template = POINTWISE[value.op]
        if compute == "float64":
            template = _DOUBLE.get(value.op, re.sub(r"(\d)f\b", r"\1", template).replace("kw_", "std::"))
        texts = []
        for arg in expr.args:
            if isinstance(arg, Expr):
                texts.append(self._converted(arg, value, compute))
            else:
                texts.append(self._number(arg, compute))
        bare = re.fullmatch(r"[\w:]+\(\{0\}(, \{1\})?\)", template)
        return template.format(*(t if bare else atom(t) for t in texts))

    def _converted(self, arg: Expr, value: Value, compute: str) -> str:
        text = self._text(arg)
        boolean_context = value.op in ("where", "and", "or", "xor", "not", "copy")
        if arg.value.dtype == compute or boolean_context or arg.value.dtype == "bool":
            return text if arg.value.dtype != "bool" or boolean_context else f"({C_TYPES[compute]}){atom(text)}"
        return f"({C_TYPES[compute]}){atom(text)}"

    def _number(self, number: Any, dtype: str) -> str:
        if isinstance(number, (Scalar, Size)):
            varies = len(set(number.values)) > 1
            if varies:
                if number not in self.numbers:
                    self.numbers[number] = self.fresh("factor")
                return self.numbers[number]
            number = number.values[0]
        return literal(number, dtype)

    def _store(self, stores: list[tuple[Value, Expr, Affine]]) -> None:
        column = self.nest.mode == "column"
        for value, expr, position in stores:
            whole = column and not is_element(self.nest, expr)
            if whole:
                self.open("for (int64_t v = 0; v < count; ++v)")
            self.emit(f"{self._element(value, position)} = {self._text(expr)};")
            if whole:
                self.close()


def _ctype(expr: Expr) -> str:
    return C_TYPES[expr.value.dtype]


def _accumulator(expr: Expr) -> str:
    """The C++ type that a reduction adds up in."""
    if expr.value.op in ("any", "all"):
        return "int"
    operand = expr.args[0].value.dtype
    return C_TYPES[operand if expr.value.op in ("argmax", "argmin") else expr.value.dtype]


def _use_counts(nest: Nest) -> dict[Expr, int]:
    counts = dict.fromkeys(nest.order, 0)
    for expr in nest.order:
        for operand in expr.operands:
            counts[operand] += 2 if is_element(nest, expr) and not is_element(nest, operand) else 1
    for _, expr, _ in nest.stores:
        counts[expr] += 1
    return counts


def _repeated(nest: Nest) -> set[Expr]:
    """Operands that get a name of their own: a consumer writes them twice, or selects between them.

    A load inside a branch of a selection would become a masked load, and then the loop is not vectorised.
    """
    found: set[Expr] = set()
    for expr in nest.order:
        if expr.kind == "op" and expr.value.op in POINTWISE:
            template = POINTWISE[expr.value.op]
            for position, arg in enumerate(expr.args):
                twice = template.count(f"{{{position}}}") > 1 or (expr.value.op == "where" and position > 0)
                if isinstance(arg, Expr) and twice:
                    found.add(arg)
    return found


def _heavy(nest: Nest, expr: Expr) -> bool:
    """True where computing the value again costs more than keeping it: 8 flops, or two streams from memory."""
    cost, loads = 0, 0
    stack, seen = [expr], set()
    while stack:
        current = stack.pop()
        if current in seen or not is_element(nest, current):
            continue
        seen.add(current)
        cost += current.value.cost if current.kind == "op" else 0
        loads += current.kind == "load" and nest.vector in current.loops and len(current.loops) > 1
        stack += current.operands
    return cost >= 8 or loads >= 2


def fused_operators(nest: Nest) -> list[str]:
    """The PyTorch operators that a nest computes."""
    names: dict[str, None] = {}
    for expr in nest.order:
        if expr.kind != "load" and expr.value.origin[1]:
            names.setdefault(expr.value.origin[1].split(".")[0])
    return list(names)
