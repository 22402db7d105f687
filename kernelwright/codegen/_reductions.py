"""Reductions of a nest as C++: accumulators over a row, over columns, and totals."""

from __future__ import annotations

from kernelwright.codegen._expressions import ctype
from kernelwright.codegen._ir import C_TYPES, Value
from kernelwright.codegen._loops import LoopWriter
from kernelwright.codegen._names import atom
from kernelwright.codegen._nest import Expr
from kernelwright.codegen._size import Affine, Loop, product

SPLIT_FROM = 256  # column sums longer than this are added up in two levels

START = {"sum": "0", "prod": "1", "amax": "-INFINITY", "amin": "INFINITY", "any": "0", "all": "1"}
CLAUSE = {"sum": "+", "prod": "*", "amax": "max", "amin": "min", "any": "|", "all": "&"}


class RowReductionWriter(LoopWriter):
    """Adds reductions along a row, with one accumulator or a stripe of them, and totals over all rows."""

    def _declare(self, reduces: list[Expr]) -> dict[str, list[str]]:
        """Declare accumulators; returns the simd reduction clauses."""
        clauses: dict[str, list[str]] = {}
        for expr in reduces:
            name = self.fresh(expr.value.name)
            op = expr.value.op
            if op in ("argmax", "argmin"):
                op = "a" + op[3:]
            kind = "double" if self._adds_one_by_one(expr) else accumulator(expr)
            self.emit(f"{kind} {name} = {START[op]};")
            if self.striped:
                self.emit(f"{kind} {name}_lanes[STRIPE];")
                self.emit(f"std::fill({name}_lanes, {name}_lanes + STRIPE, {name});")
            clauses.setdefault(CLAUSE[op], []).append(name)
            if self._watches_nan(expr):
                flag = self.fresh(f"{name}_nan")
                self.emit(f"int {flag} = 0;")
                if self.striped:
                    self.emit(f"int {flag}_lanes[STRIPE] = {{0}};")
                clauses.setdefault("|", []).append(flag)
                self.flags[expr] = flag
            self.local[expr] = name
        return clauses

    def _adds_one_by_one(self, expr: Expr) -> bool:
        """True for a chunk's part of a total, in a loop that gathers.

        Compilers leave such loops scalar, so one float would add up to 4096 terms, and its error grows with their
        number. The lanes of a vector add far fewer terms each. A double costs a scalar loop nothing.
        """
        gathers = any(other.kind == "gather" for other in self.nest.order)
        return gathers and expr.scope == "all" and expr.value.op == "sum" and accumulator(expr) == "float"

    def _watches_nan(self, expr: Expr) -> bool:
        extreme = expr.value.op in ("amax", "amin", "argmax", "argmin")
        return extreme and "float" in expr.args[0].value.dtype and not expr.value.attrs.get("nan_may_vanish")

    def _accumulate(self, expr: Expr) -> None:
        name, text, op = self.local[expr], self._text(expr.args[0]), expr.value.op
        slot = f"{name}_lanes[lane]" if self.striped else name
        if op in ("amax", "argmax", "amin", "argmin"):
            sign = ">" if op.endswith("max") else "<"
            self.emit(f"{slot} = {atom(text)} {sign} {slot} ? {text} : {slot};")
        else:
            sign = {"sum": "+=", "prod": "*=", "any": "|=", "all": "&="}[op]
            self.emit(f"{slot} {sign} {text};")
        if self._watches_nan(expr):
            flag = f"{self.flags[expr]}_lanes[lane]" if self.striped else self.flags[expr]
            self.emit(f"{flag} |= {atom(text)} != {atom(text)};")

    def _join_lanes(self, reduces: list[Expr]) -> None:
        """One value out of the accumulators of a stripe."""
        for expr in reduces:
            name, op = self.local[expr], expr.value.op
            self.emit(f"#pragma omp simd reduction({CLAUSE[op]} : {name})")
            update = f"{name} += {name}_lanes[lane]"
            if op != "sum":
                sign = ">" if op == "amax" else "<"
                update = f"{name} = {name}_lanes[lane] {sign} {name} ? {name}_lanes[lane] : {name}"
            self.emit(f"for (int64_t lane = 0; lane < STRIPE; ++lane) {update};")
            if self._watches_nan(expr):
                flag = self.flags[expr]
                self.emit(f"for (int64_t lane = 0; lane < STRIPE; ++lane) {flag} |= {flag}_lanes[lane];")

    def _finish(self, expr: Expr) -> None:
        """After a pass: NaN flags, positions of extremes, totals."""
        name, op = self.local[expr], expr.value.op
        if self._watches_nan(expr):
            self.emit(f"if ({self.flags[expr]}) {name} = NAN;")
        self.texts[expr] = name
        if op in ("argmax", "argmin"):
            self.texts[expr] = self._find(expr, name)
        if expr.scope == "all":
            self._accumulate_total(expr, name)
            self.texts[expr] = self.total_texts[expr]

    def _declare_totals(self) -> str:
        """Declare the totals over all rows; returns the clauses of the parallel loop."""
        clauses = ""
        for expr in self.nest.order:
            if expr.kind != "reduce" or expr.scope not in ("all", "outer"):
                continue
            op, kind = expr.value.op, ctype(expr)
            wide = op in ("sum", "prod") and kind == "float"
            name = self.fresh(f"{expr.value.name}_total")
            self.total_names[expr] = name
            self.emit(f"{'double' if wide else kind} {name} = {START[op]};")
            clauses += f" reduction({CLAUSE[op]} : {name})"
            self.total_texts[expr] = f"({kind}){name}" if wide else name
            if self._total_watches_nan(expr):
                self.emit(f"int {name}_nan = 0;")
                clauses += f" reduction(| : {name}_nan)"
                self.total_texts[expr] = f"({name}_nan ? NAN : {name})"
            self.texts[expr] = self.total_texts[expr]
        return clauses

    def _total_watches_nan(self, expr: Expr) -> bool:
        return expr.value.op in ("amax", "amin") and "float" in expr.value.dtype

    def _accumulate_total(self, expr: Expr, text: str) -> None:
        """Add a row's value to a total. OpenMP's ``max`` over threads would lose a NaN, so a flag carries it."""
        name, op = self.total_names[expr], expr.value.op
        if op in ("amax", "amin"):
            self.emit(f"{name} = {text} {'>' if op == 'amax' else '<'} {name} ? {text} : {name};")
        else:
            self.emit(f"{name} { {'sum': '+=', 'prod': '*=', 'any': '|=', 'all': '&='}[op] } {text};")
        if self._total_watches_nan(expr):
            self.emit(f"{name}_nan |= {text} != {text};")

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


class ColumnReductionWriter(RowReductionWriter):
    """Adds column mode: the vector runs over columns that are reduced side by side, a block at a time."""

    def _column_arrays(self, varying: list[Expr]) -> None:
        """Row values in column mode: one per column of the block, kept in small arrays."""
        needed = [e for e in varying if self.uses[e] > 0 and e.kind != "load"]
        if not needed:
            return
        names = {e: self.fresh(e.value.name) for e in needed}
        for expr, name in names.items():
            self.emit(f"{ctype(expr)} {name}[BLOCK];")
        self.emit("#pragma omp simd")
        self.open("for (int64_t v = 0; v < count; ++v)")
        for expr in varying:
            if expr.kind == "load":
                self.texts[expr] = self._compose(expr)
        for expr, name in names.items():
            self.emit(f"{name}[v] = {self._compose(expr)};")
            self.texts[expr] = f"{name}[v]"
        self.close()

    def _column_pass(self, stage: int, reduces: list[Expr], stores: list[tuple[Value, Expr, Affine]]) -> None:
        for expr in reduces:
            name, op = self.fresh(expr.value.name), expr.value.op
            self.local[expr] = name
            if op in ("argmax", "argmin"):
                self.emit(f"int32_t {name}_index[BLOCK];")
                op = "a" + op[3:]
            self.emit(f"{accumulator(expr)} {name}[BLOCK];")
            self.emit(f"for (int64_t v = 0; v < count; ++v) {name}[v] = {START[op]};")
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
                self.emit(f"{accumulator(expr)} {self.local[expr]}_part[BLOCK] = {{0}};")
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


def accumulator(expr: Expr) -> str:
    """The C++ type that a reduction adds up in."""
    if expr.value.op in ("any", "all"):
        return "int"
    operand = expr.args[0].value.dtype
    return C_TYPES[operand if expr.value.op in ("argmax", "argmin") else expr.value.dtype]
