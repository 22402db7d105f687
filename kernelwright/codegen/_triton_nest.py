"""Writes the Triton kernels of one loop nest: pointwise, reductions along rows or columns, and totals in two steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelwright.codegen._ir import Value
from kernelwright.codegen._kernel import Argument
from kernelwright.codegen._nest import Expr, Nest, is_element
from kernelwright.codegen._size import Affine, Size
from kernelwright.codegen._triton_reductions import ReductionWriter, lane_type, parts_name
from kernelwright.codegen._triton_tiles import Axis, Kernel

WHOLE_ROW = 8192  # elements of the longest row that is kept in registers
WHOLE_COLUMN = 256
_FINISH_BLOCK = "1024"


def nest_kernels(nest: Nest, name: str, title: str, options: Mapping[str, Any]) -> list[Kernel]:
    """The kernels of a nest, in the order in which they are launched."""
    totals = [e for e in nest.order if e.kind == "reduce" and e.scope in ("all", "outer")]
    if nest.mode == "pointwise":
        return [_pointwise(nest, name, title)]
    parallel = [lp for lp in (*nest.outer, *([nest.vector] if nest.vector else [])) if not lp.reduced]
    main = _reduction(nest, name, title, options) if parallel else _total(nest, name, title)
    if not totals:
        return [main]
    main.setup.append(f"{name}_parts = {main.grid}")
    main.grid = f"{name}_parts"
    for expr in totals:
        place = parts_name(expr)
        main.setup.append(f"{place} = torch.empty(({name}_parts,), dtype=torch.{lane_type(expr)}, device={{device}})")
    return [main, _finish(nest, name, title, totals)]


def _pointwise(nest: Nest, name: str, title: str) -> Kernel:
    axis = Axis("at", [*nest.outer, *nest.inner])
    writer = ReductionWriter(nest, [axis])
    writer.arguments_first([*nest.loads(), *(v for v, _, _ in nest.stores)])
    writer.declare(axis, f"{writer.program()} * BLOCK", "BLOCK")
    for value, expr, position in nest.stores:
        writer.store(value, expr, position)
    return Kernel(
        name,
        writer.function(name, title, ["BLOCK"]),
        writer.arguments(),
        "triton.cdiv({n}, BLOCK)",
        {"BLOCK": "BLOCK", "num_warps": "WARPS"},
        {"n": nest.volume()},
    )


def _total(nest: Nest, name: str, title: str) -> Kernel:
    """Everything is reduced: one tile a program."""
    axis = Axis("at", [*nest.outer, *nest.inner])
    writer = ReductionWriter(nest, [axis], fill=True)
    stores = [s for s in nest.stores if not s[1].final]
    writer.arguments_first([*nest.loads(), *(v for v, _, _ in stores)])
    writer.declare(axis, f"{writer.program()} * TILE", "TILE")
    for expr in nest.order:
        if expr.kind == "reduce":
            writer.reduce_tile(expr, axis.inside)
            writer.share(expr, writer.texts[expr], "")
    for value, expr, position in stores:
        writer.store(value, expr, position)
    text = writer.function(name, title, ["TILE"])
    meta = {"TILE": "TILE", "num_warps": "REDUCE_WARPS"}
    return Kernel(name, text, writer.arguments(), "triton.cdiv({n}, TILE)", meta, {"n": nest.volume()})


def _reduction(nest: Nest, name: str, title: str, options: Mapping[str, Any]) -> Kernel:
    writer = _RowWriter(nest, options)
    writer.write()
    lanes = writer.across
    text = writer.function(name, title, [lanes, "BLOCK"])
    sizes = {"count": writer.kept.extent(nest.variants), "length": writer.reduced.extent(nest.variants)}
    block = power_of_two(sizes["length"], "length")
    if nest.mode == "row":
        setup = [f"block = {block if writer.whole else f'min(TILE, {block})'}", "tile_rows = max(1, TILE // block)"]
        meta = {"ROWS": "tile_rows", "BLOCK": "block"}
    elif writer.whole:
        setup = [f"block = {block}", "tile_columns = max(16, TILE // block)"]
        meta = {"COLUMNS": "tile_columns", "BLOCK": "block"}
    else:
        setup, meta = [], {"COLUMNS": "COLUMNS", "BLOCK": "max(1, TILE // COLUMNS)"}
    grid = f"triton.cdiv({{count}}, {meta[lanes]})"
    return Kernel(name, text, writer.arguments(), grid, {**meta, "num_warps": "REDUCE_WARPS"}, sizes, setup)


def power_of_two(size: Size, name: str) -> str:
    """The smallest power of two that is not below a size: a number, or a template over ``name``."""
    return str(_next_power(size.timed)) if size.is_const else f"triton.next_power_of_2({{{name}}})"


def _next_power(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()


def fits_whole(nest: Nest) -> bool:
    """True where a whole row (or a few whole columns) fits into the registers of a block, in every variant."""
    length = 1
    for loop in nest.inner:
        length *= max(loop.extent.values)
    return _next_power(length) <= (WHOLE_ROW if nest.mode == "row" else WHOLE_COLUMN)


class _RowWriter(ReductionWriter):
    """Rows (or columns) that are reduced side by side: whole ones in registers, longer ones block by block."""

    def __init__(self, nest: Nest, options: Mapping[str, Any]) -> None:
        row = nest.mode == "row"
        vector = [] if row or nest.vector is None else [nest.vector]
        self.across = "ROWS" if row else "COLUMNS"
        self.kept = Axis("row" if row else "column", [*nest.outer, *vector], "[:, None]" if row else "[None, :]")
        self.reduced = Axis("column" if row else "step", nest.inner, "[None, :]" if row else "[:, None]")
        super().__init__(nest, [self.kept, self.reduced], fill=True)
        self.along, self.keep = (1 if row else 0), ", keep_dims=True"
        self.whole = options.get("rows", "whole") == "whole" and fits_whole(nest)

    def write(self) -> None:
        """All statements."""
        stores = [s for s in self.nest.stores if not s[1].final]
        self.arguments_first([*self.nest.loads(), *(v for v, _, _ in stores)])
        self.declare(self.kept, f"{self.program()} * {self.across}", self.across, "rows")
        if self.whole:
            self.declare(self.reduced, "0", "BLOCK", "cols")
            for expr in self.nest.order:
                if expr.kind == "reduce":
                    self._reduce(expr)
            for value, expr, position in stores:
                self.store(value, expr, position)
            return
        for stage in range(max(e.stage for e in self.nest.order) + 1):
            self._pass(stage)
            for expr in self.nest.order:
                if expr.scope == "outer" and expr.args[0].stage == stage:
                    self._reduce(expr)
        for value, expr, position in stores:
            if not is_element(self.nest, expr):
                self.store(value, expr, position)

    def store(self, value: Value, expr: Expr, position: Affine) -> None:
        """Write a value to its place. A single element is written by one lane, since a reduction yields a tile."""
        if position.loops:
            super().store(value, expr, position)
            return
        text = self.value(expr)
        self.emit(
            f"tl.store({self._pointer(value, position, f'0 * {self.kept.name}')}, {text}, mask={self.kept.inside})"
        )

    def _reduce(self, expr: Expr) -> None:
        if expr.scope != "outer":
            self.reduce_tile(expr, self.reduced.inside)
        if expr.scope != "row":
            text = self.value(expr.args[0]) if expr.scope == "outer" else self.texts[expr]
            self.share(expr, text, self.kept.inside)

    def _pass(self, stage: int) -> None:
        """Write one pass along the rows, with its reductions and stores."""
        reduces = [e for e in self.nest.order if e.scope in ("row", "all") and e.args[0].stage == stage]
        stores = [s for s in self.nest.stores if is_element(self.nest, s[1]) and s[1].stage == stage]
        if not reduces and not stores:
            return
        self._hoist([*(e.args[0] for e in reduces), *(e for _, e, _ in stores)])
        shape = f"[{self.across}, BLOCK]" if self.nest.mode == "row" else f"[BLOCK, {self.across}]"
        names = {expr: self.declare_lanes(expr, shape) for expr in reduces}
        scope, known = set(self.names_taken), dict(self.texts)
        extent = self.sizes.expr(self.reduced.extent(self.nest.variants), "cols")
        self.open(f"for start in range(0, {extent}, BLOCK):")
        self.declare(self.reduced, "start", "BLOCK", "cols")
        for expr, name in names.items():
            self.update_lanes(expr, name, self.reduced.inside)
        for value, expr, position in stores:
            self.store(value, expr, position)
        self.close()
        arguments = (*self.sizes.arguments.values(), *self.numbers.values(), *self.tensors.values(), *self.locals)
        self.names_taken, self.texts = scope | {*arguments}, known
        for loop in self.reduced.loops:
            self.variables.pop(loop, None)
        for expr, name in names.items():
            self.finish_lanes(expr, name)
            if expr.scope == "all":
                self.share(expr, self.texts[expr], self.kept.inside)

    def _hoist(self, roots: list[Expr]) -> None:
        """Before the loop of a pass, write the values that it needs and does not change."""
        seen: set[Expr] = set()

        def visit(expr: Expr) -> None:
            if expr in seen:
                return
            seen.add(expr)
            if is_element(self.nest, expr):
                for operand in expr.operands:
                    visit(operand)
            elif expr.value.op != "full":
                self.named(expr)

        for root in roots:
            visit(root)


def _finish(nest: Nest, name: str, title: str, totals: list[Expr]) -> Kernel:
    """The kernel whose single program combines the shares of all other programs."""
    writer = ReductionWriter(nest, [])
    stores = [s for s in nest.stores if s[1].final]
    places = [parts_name(expr) for expr in totals]
    writer.names_taken |= {*places, "at"}
    writer.arguments_first(v for v, _, _ in stores)
    writer.emit("at = tl.arange(0, BLOCK)")
    names = {expr: writer.declare_lanes(expr, "[BLOCK]") for expr in totals}
    writer.open("for start in range(0, parts, BLOCK):")
    writer.emit("inside = start + at < parts")
    for (expr, lanes), place in zip(names.items(), places, strict=True):
        writer.take_share(expr, lanes, place)
    writer.close()
    for expr, lanes in names.items():
        writer.finish_lanes(expr, lanes)
    for value, expr, position in stores:
        writer.store(value, expr, position)
    writer.locals += places
    arguments = [*writer.arguments(), Argument("local", "parts", f"{name}_parts")]
    own = f"{name}_finish"
    text = writer.function(own, f"{title}: the totals", ["BLOCK"], arguments)
    return Kernel(own, text, arguments, "1", {"BLOCK": _FINISH_BLOCK}, {})
