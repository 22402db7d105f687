"""Writes the C++ function of one loop nest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kernelwright.codegen._ir import STORED_TYPES, Value
from kernelwright.codegen._loops import PARALLEL_FROM
from kernelwright.codegen._names import atom
from kernelwright.codegen._nest import Expr, Nest, is_element
from kernelwright.codegen._reductions import ColumnReductionWriter
from kernelwright.codegen._size import Affine

_PIECES = range(256, 8193)  # lengths of pieces of a row that stay in the L1 cache for a second read


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


class NestWriter(ColumnReductionWriter):
    """Writes one nest as a C++ function."""

    def write(self) -> Function:
        """The whole function."""
        nest = self.nest
        for value in [*nest.loads(), *(self.alias.get(v, v) for v, _, _ in nest.stores)]:
            if value is not self.given:
                self._tensor(value)
        self.names_taken |= {"acc"} if self.form != "kernel" else set()
        self._name_loops()
        self._name_end()
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
            parameters = [f"{'' if self.given in written else 'const '}float* acc", *parameters]
            parameters += [f"int64_t {name}" for name in self.outer_vars.values()]
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
        # A value of a row may be stored in each of its elements.
        inside = [s for s in stores if is_element(nest, s[1]) or nest.vector in s[2].loops]
        self._plan_elements([e for _, e, _ in inside], 0)
        opened = self._open_inner({})
        self._store(inside)
        for _ in range(opened):
            self.close()
        self._store([s for s in stores if s not in inside])
        if self.form == "kernel":
            self.close()

    def _rows(self) -> None:
        nest = self.nest
        clauses = self._declare_totals()
        self._open_rows(clauses)
        self._row_pointers()
        last = max(e.stage for e in nest.order)
        done = -1
        for stage in range(last + 1):
            if stage == 0:
                self._row_statements(0)
            if stage > done:
                done = stage + 1 if self._moments(stage) else stage
                if done == stage:
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

    def _of_stage(self, stage: int) -> tuple[list[Expr], list[tuple[Value, Expr, Affine]]]:
        """The reductions and the stores of one pass over a row."""
        nest = self.nest
        reduces = [e for e in nest.order if e.kind == "reduce" and e.scope in ("row", "all")]
        stores = [s for s in nest.stores if is_element(nest, s[1]) and s[1].stage == stage]
        return [e for e in reduces if e.args[0].stage == stage], stores

    def _moments(self, stage: int) -> bool:
        """Write the sum and the sum of squares about the mean in one pass over memory, for rows of several loops.

        Each piece is read twice while it is in the L1 cache. Pieces are combined as in Chan, Golub and LeVeque (1979):
        with d the difference of the means of m and n numbers, both sums of squares and d^2 m n / (m + n) are added.

        Returns:
            True if this and the next pass consist of only these sums. Otherwise nothing is written.
        """
        found = self._centred(stage)
        if found is None:
            return False
        total, squares, mean = found
        nest, sums, about, seen = self.nest, *(self.fresh(n) for n in (total.value.name, squares.value.name, "seen"))
        self.emit("")
        self.emit(f"float {sums} = 0, {about} = 0, {seen} = 0;")
        length = self.sizes.expr(nest.inner[-1].extent)
        self._plan_elements([total.args[0]], stage)
        for loop in nest.inner[:-1]:
            variable = self.inner_vars[loop]
            self.open(f"for (int64_t {variable} = 0; {variable} < {self.sizes.expr(loop.extent)}; ++{variable})")
            self._elements_at(loop)
        part = self._piece(total)
        middle = self.fresh("middle")
        self.emit(f"const float {middle} = {part} / {atom(length)};")
        self.texts[mean] = middle
        part_about = self._piece(squares)
        apart = self.fresh("apart")
        self.emit(f"const float {apart} = {seen} > 0 ? {middle} - {sums} / {seen} : 0;")
        weight = f"({seen} * {atom(length)} / ({seen} + {atom(length)}))"
        self.emit(f"{about} += {part_about} + {apart} * {apart} * {weight};")
        self.emit(f"{sums} += {part};")
        self.emit(f"{seen} += {length};")
        for _ in nest.inner[:-1]:
            self.close()
        self.texts[total], self.texts[squares] = sums, about
        del self.texts[mean]
        return True

    def _centred(self, stage: int) -> tuple[Expr, Expr, Expr] | None:
        """The sum of a pass, the sum of squares about its mean in the next pass, and that mean; else None."""
        nest = self.nest
        (first, stored), (second, stored_next) = self._of_stage(stage), self._of_stage(stage + 1)
        fits = nest.mode == "row" and self.form == "kernel" and len(nest.inner) > 1 and not nest.chunked
        if not fits or len(first) != 1 or len(second) != 1 or stored or stored_next:
            return None
        total, squares = first[0], second[0]
        if nest.inner[-1].extent.timed not in _PIECES or {total.scope, squares.scope} != {"row"}:
            return None
        square = squares.args[0]
        centred = square.args[0] if square.value.op == "square" else None
        if {total.value.op, squares.value.op} != {"sum"} or centred is None or centred.value.op != "sub":
            return None
        element, mean = centred.args
        divided = isinstance(mean, Expr) and mean.value.op == "div" and mean.args[0] is total
        known = self.cached.keys() & {square, centred, element}
        return (total, squares, mean) if element is total.args[0] and divided and not known else None

    def _piece(self, expr: Expr) -> str:
        """A sum along the innermost loop; returns its name."""
        self._plan_elements([expr.args[0]], expr.args[0].stage)
        self.striped = self._stripes([expr])
        clauses = self._declare([expr])
        if self.striped:
            self.emit("{")
            self.depth += 1
        scope = set(self.names_taken)
        self._open_vector(clauses)
        self._accumulate(expr)
        self._close_pass(1)
        if self.striped:
            self.close()
            self._join_lanes([expr])
        self.names_taken = scope
        self.striped = False
        return self.local[expr]

    def _pass(self, stage: int) -> None:
        nest = self.nest
        reduces, stores = self._of_stage(stage)
        if not reduces and not stores:
            return
        self.emit("")
        if nest.mode == "column":
            self._column_pass(stage, reduces, stores)
            return
        self._plan_elements([e.args[0] for e in reduces] + [e for _, e, _ in stores], stage)
        self.striped = self._stripes(reduces)
        clauses = self._declare(reduces)
        if self.striped:
            self.emit("{")
            self.depth += 1
        scope = set(self.names_taken)
        opened = self._open_inner(clauses)
        for expr in reduces:
            self._accumulate(expr)
        self._store(stores)
        self._close_pass(opened)
        if self.striped:
            self.close()
            self._join_lanes(reduces)
        self.names_taken = scope
        self.striped = False
        for expr in reduces:
            self._finish(expr)


def fused_operators(nest: Nest) -> list[str]:
    """The PyTorch operators that a nest computes."""
    names: dict[str, None] = {}
    for expr in nest.order:
        if expr.kind != "load" and expr.value.origin[1]:
            names.setdefault(expr.value.origin[1].split(".")[0])
    return list(names)
