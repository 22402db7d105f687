"""The loops of a nest as C++: rows in parallel, vector loops, and stripes for long rows."""

from __future__ import annotations

from collections.abc import Mapping

from kernelwright.codegen._keeping import KeepingWriter
from kernelwright.codegen._nest import CHUNK, Expr, has_long_rows, has_uneven_rows, is_element

PARALLEL_FROM = 65536  # iterations from which several threads pay off


class LoopWriter(KeepingWriter):
    """Adds the loops of a nest."""

    def _open_rows(self, reductions: str) -> None:
        """The parallel loop over rows (or chunks, or blocks of columns), with its pragmas."""
        nest = self.nest
        if self.form != "kernel":
            return  # the caller passes the loop variables
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
        return len(loops) + (2 if self._masks() else 1)

    def _open_vector(self, reductions: Mapping[str, list[str]]) -> None:
        nest = self.nest
        vector = "v" if nest.mode == "column" else "j"
        if self.striped:
            self.open("auto step = [&](int64_t j, int64_t lane)")
            self._elements_at(nest.vector)
            return
        clauses = "".join(f" reduction({op} : {', '.join(names)})" for op, names in reductions.items())
        self.emit(f"#pragma omp simd{clauses}")
        if self._masks():
            whole = "(end + VECTOR_LANES - 1) / VECTOR_LANES * VECTOR_LANES"
            self.open(f"for (int32_t {vector} = 0; {vector} < {whole}; ++{vector})")
            self.open(f"if ({vector} < end)")
            self._elements_at(nest.vector)
            return
        self.open(f"for (int64_t {vector} = 0; {vector} < {self._limit()}; ++{vector})")
        self._elements_at(nest.vector)

    def _name_end(self) -> None:
        """Hide the length of a row from g++ if masks are used. It would peel off the last element of a known length."""
        if self._masks():
            self.names_taken.add("end")
            self.emit(f"int32_t end = {self._limit()};")
            self.emit('asm("" : "+r"(end));')

    def _masks(self) -> bool:
        """True where only whole vectors run over a row, and masks hide the elements beyond its end."""
        wanted = self.options.get("tails", "masked") == "masked" and self.form == "kernel" and not self.striped
        return wanted and has_uneven_rows(self.nest)

    def _close_pass(self, opened: int) -> None:
        """Close the loops of a pass. A striped pass runs its step over whole stripes, then over the remainder."""
        if self.striped:
            self.depth -= 1
            self.emit("};")
            limit = self._limit()
            self.emit("int64_t begin_stripe = 0;")
            self.open(f"for (; begin_stripe + STRIPE <= {limit}; begin_stripe += STRIPE)")
            self._prefetch_next_row()
            self._lanes("STRIPE")
            self.close()
            self._lanes(f"{limit} - begin_stripe")
            opened -= 1
        for _ in range(opened):
            self.close()

    def _lanes(self, count: str) -> None:
        self.emit("#pragma omp simd")
        self.emit(f"for (int64_t lane = 0; lane < {count}; ++lane) step(begin_stripe + lane, lane);")

    def _stripes(self, reduces: list[Expr]) -> bool:
        """True where a pass is bound by the latency of its additions: long rows, and little work per element."""
        nest = self.nest
        if not has_long_rows(nest) or self.form != "kernel" or nest.chunked or not self.options.get("STRIPE", 64):
            return False
        if not all(e.value.op in ("sum", "amax", "amin") for e in reduces):
            return False
        light = sum(e.value.cost for e in self.counts if e.kind == "op" and e not in self.reading) < 8
        # A stripe that reads no memory is unrolled, and then no longer vectorised.
        reads = any(e.kind in ("load", "gather") and is_element(nest, e) for e in self.counts)
        return light and reads if reduces else self._asks_next_row()

    def _asks_next_row(self) -> bool:
        """True where a later pass, which works on data in cache, should prefetch the next row from memory."""
        return self.stage == 1 and bool(self.options.get("prefetch", True)) and bool(self.nest.outer)

    def _prefetch_next_row(self) -> None:
        """Prefetch the stripe of the next row that the first pass will read. Beyond the last row it has no effect."""
        nest, vector = self.nest, self.nest.vector
        if not self._asks_next_row() or vector is None:
            return
        asked = set()
        for expr in nest.order:
            position = expr.position
            if expr.kind != "load" or expr.stage or position is None or (expr.value, position) in asked:
                continue
            step = position.coefficient(nest.outer[-1])
            if position.coefficient(vector).equals(1) and any(step.values):
                asked.add((expr.value, position))
                pointer = self.pointers[self.alias.get(expr.value, expr.value), position]
                inner = {**self.inner_vars, vector: "begin_stripe + lane"}
                place = self.sizes.affine(position, {lp: inner[lp] for lp in nest.inner}, offset=False)
                self.emit("for (int64_t lane = 0; lane < STRIPE; lane += 16)")
                self.emit(f"    __builtin_prefetch({pointer} + {self.sizes.expr(step)} + {place}, 0, 2);")
