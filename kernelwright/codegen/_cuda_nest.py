"""Writes the CUDA kernels of one loop nest: pointwise, reductions along rows or columns, and totals in two steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelwright.codegen._cuda_reductions import LANE_TYPES, PassWriter, accumulated, operator_of
from kernelwright.codegen._ir import Value
from kernelwright.codegen._kernel import Argument
from kernelwright.codegen._nest import Expr, Nest, is_element
from kernelwright.codegen._size import Affine, product
from kernelwright.codegen._triton_reductions import lane_type, parts_name
from kernelwright.codegen._triton_tiles import Kernel

MOST_KEPT = 8192  # elements of the longest row that stays in registers
MOST_KEPT_COLUMN = 256
MOST_KEPT_SHARE = 256  # elements of a row that few threads may hold
_FINISH_THREADS = "1024"


def nest_kernels(nest: Nest, name: str, title: str, options: Mapping[str, Any]) -> list[Kernel]:
    """The kernels of a nest, in the order in which they are launched."""
    totals = [e for e in nest.order if e.kind == "reduce" and e.scope in ("all", "outer")]
    parallel = [lp for lp in (*nest.outer, nest.vector) if lp is not None and not lp.reduced]
    if nest.mode == "column":
        return [_columns(nest, name, title, options)]
    main = _rows(nest, name, title, options) if nest.mode == "row" and parallel else _flat(nest, name, title)
    if not totals:
        return [main]
    main.setup.append(f"{name}_shares = {main.grid}")
    main.grid = f"{name}_shares"
    for expr in totals:
        place = parts_name(expr)
        main.setup.append(f"{place} = torch.empty(({name}_shares,), dtype=torch.{lane_type(expr)}, device={{device}})")
    return [main, _finish(nest, name, title, totals)]


def fits_whole(nest: Nest) -> bool:
    """True where a whole row (or a few whole columns) fits into the registers of a block, in every variant.

    Threads have as many registers as the longest variant needs, and their number suits the timed one.
    """
    length, timed = 1, 1
    for loop in nest.inner:
        length *= max(loop.extent.values)
        timed *= loop.extent.timed
    if nest.mode == "column":
        return length <= MOST_KEPT_COLUMN
    return length <= MOST_KEPT and (length <= MOST_KEPT_SHARE or length <= 4 * timed)


def keeps_values(nest: Nest) -> bool:
    """True where a value may stay in registers from one pass over a row or column to the next."""
    parallel = [lp for lp in (*nest.outer, nest.vector) if lp is not None and not lp.reduced]
    passes = max(e.stage for e in nest.order) > 0 and any(is_element(nest, e) and e.stage > 0 for e in nest.order)
    return nest.mode != "pointwise" and bool(parallel) and passes and fits_whole(nest)


class _FlatWriter(PassWriter):
    """Every thread takes ITEMS times VECTOR neighbours. Totals are shared by block."""

    def all_lines(self) -> None:
        """All statements."""
        nest, variants = self.nest, self.nest.variants
        loops = [lp for lp in (*nest.outer, *nest.inner) if lp is not self.lane_loop]
        stores = [s for s in nest.stores if not s[1].final]
        self.arguments_first([*nest.loads(), *(v for v, _, _ in stores)])
        self.measure()
        cols = self.sizes.name(self.lane_loop.extent, "cols")
        packs = self.vectors(cols, "per_row")
        if loops:
            rows = self.sizes.expr(product([lp.extent for lp in loops], variants), "rows")
            self.emit(f"const {self.index} packs = {rows} * per_row;")
            packs = "packs"

        def opened() -> None:
            self.emit("#pragma unroll")
            self.open("for (int item = 0; item < ITEMS; ++item)")
            self.emit(f"const {self.index} pack = ({self.block_number()} * ITEMS + item) * BLOCK + threadIdx.x;")
            self.open(f"if (pack < {packs})")
            if loops:
                self.emit(f"const {self.index} row = pack / per_row;")
                self.decode("row", loops)
            self.place("pack % per_row" if loops else "pack", cols)

        reduces = [e for e in nest.order if e.kind == "reduce"]
        self.run(reduces, stores, opened, 2)
        for expr in reduces:
            self.share(expr, self.texts[expr])


class _RowWriter(PassWriter):
    """LANES threads share a row, BLOCK / LANES rows a block."""

    def all_lines(self) -> None:
        """All statements."""
        nest, variants = self.nest, self.nest.variants
        stores = [s for s in nest.stores if not s[1].final]
        self.arguments_first([*nest.loads(), *(v for v, _, _ in stores)])
        self.measure()
        rows = self.sizes.expr(product([lp.extent for lp in nest.outer], variants), "rows")
        cols = self.sizes.name(self.lane_loop.extent, "cols")
        self.groups = [lp for lp in nest.inner if lp is not self.lane_loop]
        number = f"{self.block_number()} * (BLOCK / LANES) + threadIdx.x / LANES"
        self.emit(f"const {self.index} first = {number};")
        self.emit(f"const bool inside = first < {rows};")
        self.emit(f"const {self.index} row = inside ? first : {rows} - 1;")
        self.emit("const int lane = threadIdx.x % LANES;")
        self.decode("row", nest.outer)
        per_group = "per_group" if self.groups else "packs"
        self.vectors(cols, per_group)
        if self.groups:
            count = self.sizes.expr(product([lp.extent for lp in self.groups], variants), "groups")
            self.emit(f"const {self.index} packs = {count} * per_group;")
        self.guard, self.first_lane = "inside", "lane == 0"
        if self.whole:
            self.items(self._most_packs(), "LANES")
        self.passes(stores, self._opened, 2 if self.whole else 1)
        for value, expr, position in stores:
            if not is_element(nest, expr):
                self.store_alone(value, expr, position, "inside && lane == 0")

    def _most_packs(self) -> str:
        most = max(self.lane_loop.extent.values)
        groups = max(product([lp.extent for lp in self.groups], self.nest.variants).values)
        vectors = f"({most} + VECTOR - 1) / VECTOR"
        return f"{groups} * ({vectors})" if self.groups else vectors

    def _opened(self) -> None:
        if self.whole:
            self.emit("#pragma unroll")
            self.open("for (int item = 0; item < ITEMS; ++item)")
            self.emit(f"const {self.index} pack = item * LANES + lane;")
            self.open("if (pack < packs)")
        else:
            self.open(f"for ({self.index} pack = lane; pack < packs; pack += LANES)")
        if self.groups:
            self.emit(f"const {self.index} group = pack / per_group;")
            self.decode("group", self.groups)
        self.place("pack % per_group" if self.groups else "pack", self.sizes.expr(self.lane_loop.extent))

    def position_in_row(self) -> str:
        """The index along the reduced loops."""
        return f"group * {self.sizes.expr(self.lane_loop.extent)} + j" if self.groups else "j"


class _ColumnWriter(PassWriter):
    """A thread has VECTOR columns, and every so many of their elements. COLUMNS threads lie side by side."""

    columns = True

    def all_lines(self) -> None:
        """All statements."""
        nest, variants = self.nest, self.nest.variants
        self.arguments_first([*nest.loads(), *(v for v, _, _ in nest.stores)])
        self.measure()
        width = self.sizes.name(self.lane_loop.extent, "cols")
        self.steps = self.sizes.expr(product([lp.extent for lp in nest.inner], variants), "steps")
        packs = self.vectors(width, "per_row")
        if nest.outer:
            rows = self.sizes.expr(product([lp.extent for lp in nest.outer], variants), "rows")
            self.emit(f"const {self.index} packs = {rows} * per_row;")
            packs = "packs"
        self.emit(f"const {self.index} first = {self.block_number()} * COLUMNS + threadIdx.x % COLUMNS;")
        self.emit(f"const bool inside = first < {packs};")
        self.emit(f"const {self.index} pack = inside ? first : {packs} - 1;")
        if nest.outer:
            self.emit(f"const {self.index} row = pack / per_row;")
            self.decode("row", nest.outer)
        self.place("pack % per_row" if nest.outer else "pack", width)
        self.guard = "inside"
        if self.whole:
            most = max(product([lp.extent for lp in nest.inner], variants).values)
            self.items(str(most), "(BLOCK / COLUMNS)")
        self.passes(nest.stores, self._opened, 2 if self.whole else 1)
        for value, expr, position in nest.stores:
            if not is_element(nest, expr):
                self.store_alone(value, expr, position, "inside && threadIdx.x < COLUMNS")

    def _opened(self) -> None:
        if self.whole:
            self.emit("#pragma unroll")
            self.open("for (int item = 0; item < ITEMS; ++item)")
            self.emit(f"const {self.index} step = item * (BLOCK / COLUMNS) + threadIdx.x / COLUMNS;")
            self.open(f"if (step < {self.steps})")
        else:
            start, by = "threadIdx.x / COLUMNS", "BLOCK / COLUMNS"
            self.open(f"for ({self.index} step = {start}; step < {self.steps}; step += {by})")
        self.decode("step", self.nest.inner)

    def position_in_row(self) -> str:
        """The index along the reduced loops."""
        return "step"


def _flat(nest: Nest, name: str, title: str) -> Kernel:
    """Pointwise values, or totals of everything."""
    writer = _FlatWriter(nest)
    writer.all_lines()
    pointwise = nest.mode == "pointwise"
    threads, items = ("BLOCK", "ITEMS") if pointwise else ("REDUCE_BLOCK", "(4 * ROW_ITEMS)")
    loops = [lp for lp in (*nest.outer, *nest.inner) if lp is not writer.lane_loop]
    packs = "-(-{cols} // VECTOR)" + (" * {rows}" if loops else "")
    grid = f"-(-({packs}) // ({threads} * {items}))"
    sizes = {"cols": writer.lane_loop.extent, "rows": product([lp.extent for lp in loops], nest.variants)}
    meta = {"BLOCK": threads, "VECTOR": "VECTOR", "ITEMS": items}
    return Kernel(name, writer.function(name, title, ["BLOCK"]), writer.arguments(), grid, meta, sizes)


def _rows(nest: Nest, name: str, title: str, options: Mapping[str, Any]) -> Kernel:
    writer = _RowWriter(nest, whole=options.get("rows", "whole") == "whole" and keeps_values(nest))
    writer.all_lines()
    length = product([lp.extent for lp in nest.inner], nest.variants).timed
    lanes = f"min(REDUCE_BLOCK, 1 << ({length - 1} // (VECTOR * ROW_ITEMS)).bit_length())"
    sizes = {"count": product([lp.extent for lp in nest.outer], nest.variants)}
    constant = f"{name.upper()}_LANES"
    meta = {"BLOCK": "REDUCE_BLOCK", "VECTOR": "VECTOR", "LANES": constant}
    grid = f"-(-{{count}} // (REDUCE_BLOCK // {constant}))"
    text = writer.function(name, title, ["BLOCK"])
    return Kernel(name, text, writer.arguments(), grid, meta | {"": f"{constant} = {lanes}"}, sizes)


def _columns(nest: Nest, name: str, title: str, options: Mapping[str, Any]) -> Kernel:
    writer = _ColumnWriter(nest, whole=options.get("rows", "whole") == "whole" and keeps_values(nest))
    writer.all_lines()
    packs = "-(-{cols} // VECTOR)" + (" * {rows}" if nest.outer else "")
    sizes = {"cols": writer.lane_loop.extent, "rows": product([lp.extent for lp in nest.outer], nest.variants)}
    meta = {"BLOCK": "REDUCE_BLOCK", "VECTOR": "VECTOR", "COLUMNS": "COLUMNS"}
    text = writer.function(name, title, ["BLOCK"])
    return Kernel(name, text, writer.arguments(), f"-(-({packs}) // COLUMNS)", meta, sizes)


def _finish(nest: Nest, name: str, title: str, totals: Sequence[Expr]) -> Kernel:
    """The kernel whose single block combines the shares of all other blocks."""
    own = f"{name}_finish"
    stores: list[tuple[Value, Expr, Affine]] = [s for s in nest.stores if s[1].final]
    writer = _Finish(nest)
    writer.all_lines(totals, stores)
    arguments = [*writer.arguments(), Argument("local", "shares", f"{name}_shares")]
    writer.types["shares"] = "int"
    text = writer.function(own, f"{title}: the totals", ["BLOCK"], arguments)
    return Kernel(own, text, arguments, "1", {"BLOCK": _FINISH_THREADS}, {})


class _Finish(PassWriter):
    def all_lines(self, totals: Sequence[Expr], stores: Sequence[tuple[Value, Expr, Affine]]) -> None:
        """Combine the shares of each total, and write the results."""
        self.arguments_first(v for v, _, _ in stores)
        self.use_scratch()
        for expr in totals:
            kind, op = LANE_TYPES[lane_type(expr)], operator_of(expr)
            place = self.local(parts_name(expr), f"const {kind}* __restrict__")
            name = self.accumulator(expr)
            taken = accumulated(expr, name, f"{place}[at]")
            self.emit(f"for (int at = threadIdx.x; at < shares; at += BLOCK) {taken}")
            self.named_result(expr, f"kw_combine<BLOCK, {op}>({name}, scratch)")
        for value, expr, position in stores:
            self.store_alone(value, expr, position, "threadIdx.x == 0")
