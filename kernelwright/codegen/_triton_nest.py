"""Writes the Triton kernels of one loop nest: pointwise, reductions along rows or columns, and totals in two steps.

Where rows (or columns) are few and long, several programs share each of them. Each program reduces a part, and the
kernel of the next pass combines the parts in a fixed order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2, prod
from typing import Any

from kernelwright.codegen._cost import size_bytes
from kernelwright.codegen._ir import Value
from kernelwright.codegen._kernel import Argument
from kernelwright.codegen._nest import Expr, Nest, is_element
from kernelwright.codegen._size import Affine, Loop, Size
from kernelwright.codegen._triton_reductions import ReductionWriter, identity, is_position, lane_type, parts_name
from kernelwright.codegen._triton_tiles import Axis, Kernel

WHOLE_ROW = 8192  # elements of the longest row that is kept in registers
WHOLE_COLUMN = 256
_FINISH_BLOCK = "1024"
PROGRAMS = 4 * 132  # of four warps, that ask an H100's memory for all that it can give; fewer get their share of it
_NARROW, _WIDE = 16, 64  # columns of a program: where columns are few, and where several programs share them
_FEWEST = 1024  # elements of a part
_PART_BYTES = 4  # of one result of a part, as a rule
_BYTES_A_US, _LAUNCH_US = 2.8e6, 3.0  # of an H100: its memory's rate, and what one more launch costs


def nest_kernels(nest: Nest, name: str, title: str, options: Mapping[str, Any]) -> list[Kernel]:
    """The kernels of a nest, in the order in which they are launched."""
    totals = [e for e in nest.order if e.kind == "reduce" and e.scope in ("all", "outer")]
    if nest.mode == "pointwise":
        return [_pointwise(nest, name, title)]
    parts = parts_of(nest, options)
    if parts > 1:
        return _in_parts(nest, name, title, options, parts)
    main = _reduction(nest, name, title, options) if kept_loops(nest) else _total(nest, name, title)
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
    return _launched(writer, name, title)


def _launched(writer: _RowWriter, name: str, title: str) -> Kernel:
    """The kernel that a writer wrote."""
    nest, lanes = writer.nest, writer.across
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
    text = writer.function(name, title, meta)
    grid = f"triton.cdiv({{count}}, {meta[lanes]})"
    return Kernel(name, text, writer.arguments(), grid, {**meta, "num_warps": "REDUCE_WARPS"}, sizes, setup)


def _shared(writer: _PartWriter, name: str, title: str, parts: int) -> Kernel:
    """The kernel of a pass in parts. Each part has at least one block, in the timed shape."""
    nest = writer.nest
    sizes = {"count": writer.kept.extent(nest.variants), "length": writer.reduced.extent(nest.variants)}
    block, grid, meta = power_of_two(sizes["length"], "length", parts), f"{parts} * {{count}}", {}
    if nest.mode == "row":
        setup = [f"block = min(TILE, {block})"]
    else:
        setup = [f"block = min(max(1, TILE // COLUMNS), {block})"]
        grid, meta = f"{parts} * triton.cdiv({{count}}, COLUMNS)", {"COLUMNS": "COLUMNS"}
    meta |= {"BLOCK": "block", "PARTS": str(parts)}
    text = writer.function(name, title, meta)
    return Kernel(name, text, writer.arguments(), grid, {**meta, "num_warps": "REDUCE_WARPS"}, sizes, setup)


def _in_parts(nest: Nest, name: str, title: str, options: Mapping[str, Any], parts: int) -> list[Kernel]:
    """A kernel for each pass, for so many programs a tile. If the last pass reduces, one more combines its parts."""
    passes = [p for p in _passes(nest) if p.reduces or p.stores]
    kernels = []
    for n, one in enumerate(passes, 1):
        writer = _PartWriter(nest, options)
        last = one is passes[-1] and not one.reduces
        writer.write_pass(one, last)
        own = name if last else f"{name}_pass{n}"
        kernels.append(_shared(writer, own, f"{title}: pass {n}, in parts", parts))
        kernels[-1].setup += [
            f"{parts_name(e)} = torch.empty(({parts}, {{count}}), dtype=torch.{lane_type(e)}, device={{device}})"
            for e in one.reduces
        ]
    if passes[-1].reduces:
        writer = _PartWriter(nest, options)
        writer.write_rest()
        text = writer.function(name, f"{title}: the parts together", [writer.across, "PARTS"])
        lanes = str(max(16, 1024 // parts))
        meta = {writer.across: lanes, "PARTS": str(parts)}
        sizes = {"count": writer.kept.extent(nest.variants)}
        kernels.append(Kernel(name, text, writer.arguments(), f"triton.cdiv({{count}}, {lanes})", meta, sizes))
    return kernels


@dataclass
class _Pass:
    """What one pass over rows (or columns) computes: reductions, and values of elements that it stores."""

    stage: int
    reduces: list[Expr]
    stores: list[tuple[Value, Expr, Affine]]


def _passes(nest: Nest) -> list[_Pass]:
    found = []
    for stage in range(max(e.stage for e in nest.order) + 1):
        reduces = [e for e in nest.order if e.scope in ("row", "all") and e.args[0].stage == stage]
        stores = [s for s in nest.stores if _fills(nest, s) and s[1].stage == stage]
        found.append(_Pass(stage, reduces, stores))
    return found


def _fills(nest: Nest, store: tuple[Value, Expr, Affine]) -> bool:
    """True where a store writes every element of a row, also if all of them are the same."""
    return is_element(nest, store[1]) or bool(store[2].loops & frozenset(nest.inner))


def kept_loops(nest: Nest) -> list[Loop]:
    """The loops over rows (or columns)."""
    return [lp for lp in (*nest.outer, *([nest.vector] if nest.vector else [])) if not lp.reduced]


def parts_of(nest: Nest, options: Mapping[str, Any]) -> int:
    """How many programs share each row (or column) by the choice ``split``; 1 where that is of no use."""
    if options.get("split", 1) == 1 or useful_parts(nest) == 1:
        return 1
    return min(int(options["split"]), _most_parts(nest))


def useful_parts(nest: Nest) -> int:
    """How many programs should share each row (or column): a power of two, 1 where more would not be faster.

    The estimate is that of the timed shape: memory moves its bytes at the full rate only if ``PROGRAMS`` ask for them.
    """
    apart = any(e.kind == "reduce" and (e.scope != "row" or is_position(e)) for e in nest.order)
    products = any(
        e.kind == "load" and not is_element(nest, e) and e.value.op in ("matmul", "conv") for e in nest.order
    )
    if nest.mode == "pointwise" or not kept_loops(nest) or fits_whole(nest) or apart or products:
        return 1  # a product may be overwritten, and all parts read it
    count = prod(loop.extent.timed for loop in kept_loops(nest))
    now, tiles = (count, count) if nest.mode == "row" else (-(-count // _NARROW), -(-count // _WIDE))
    parts = min(1 << max(round(log2(2 * PROGRAMS / tiles)), 0), _most_parts(nest))
    passes = [p for p in _passes(nest) if p.reduces or p.stores]
    us = len(passes) * sum(size_bytes(value) for value in nest.loads()) / _BYTES_A_US
    before, after = (us / min(1.0, programs / PROGRAMS) for programs in (now, tiles * parts))
    launches = len(passes) - (not passes[-1].reduces)
    return parts if before > after + launches * _LAUNCH_US else 1


def _most_parts(nest: Nest) -> int:
    """The power of two up to which parts keep a useful length, and all parts of a tile fit into registers."""
    beside = 1 if nest.mode == "row" else min(_WIDE, prod(loop.extent.timed for loop in kept_loops(nest)))
    length = prod(loop.extent.timed for loop in nest.inner) * beside
    return min(1 << int(log2(max(length // _FEWEST, 1))), 256 if nest.mode == "row" else 128)


def bytes_again(nest: Nest, kernels: Sequence[Kernel], options: Mapping[str, Any]) -> int:
    """Bytes that passes in parts move beyond those of one kernel: memory that several read, and the parts."""
    parts = parts_of(nest, options)
    if parts == 1:
        return 0
    used = [argument for kernel in kernels for argument in kernel.arguments]
    moved = [argument.value for argument in used if argument.kind == "tensor"]
    place = parts * prod(loop.extent.timed for loop in kept_loops(nest)) * _PART_BYTES
    again = sum(map(size_bytes, moved)) - sum(map(size_bytes, set(moved)))
    return again + place * sum(argument.kind == "local" for argument in used)


def power_of_two(size: Size, name: str, parts: int = 1) -> str:
    """The smallest power of two that is not below a size: a number, or a template over ``name``.

    Args:
        parts: that the size is cut into. The power is then not above the size of a part, unless that is below 1.
    """
    if parts > 1:
        short = -(-size.timed // (2 * parts))
        return (
            str(_next_power(short))
            if size.is_const
            else f"triton.next_power_of_2(triton.cdiv({{{name}}}, {2 * parts}))"
        )
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
        self.shape = f"[{self.across}, BLOCK]" if row else f"[BLOCK, {self.across}]"
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
        for one in _passes(self.nest):
            self._pass(one)
            for expr in self.nest.order:
                if expr.scope == "outer" and expr.args[0].stage == one.stage:
                    self._reduce(expr)
        for value, expr, position in stores:
            if not _fills(self.nest, (value, expr, position)):
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

    def _pass(self, one: _Pass) -> None:
        """Write one pass along the rows, with its reductions and stores."""
        if not one.reduces and not one.stores:
            return
        self._hoist([*(e.args[0] for e in one.reduces), *(e for _, e, _ in one.stores)])
        names = {expr: self.declare_lanes(expr, self.shape) for expr in one.reduces}
        scope, known = set(self.names_taken), dict(self.texts)
        extent = self.sizes.expr(self.reduced.extent(self.nest.variants), "cols")
        self.open(f"for start in {self.blocks(extent)}:")
        self.declare(self.reduced, "start", "BLOCK", "cols")
        for expr, name in names.items():
            self.update_lanes(expr, name, self.reduced.inside)
        for value, expr, position in one.stores:
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

    def blocks(self, extent: str) -> str:
        """Where the blocks of a pass start."""
        return f"range(0, {extent}, BLOCK)"

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


class _PartWriter(_RowWriter):
    """One pass over rows (or columns) that several programs share. The parts of earlier passes are in memory."""

    def __init__(self, nest: Nest, options: Mapping[str, Any]) -> None:
        super().__init__(nest, options)
        self.names_taken |= {"part", *(parts_name(e) for e in nest.order if e.kind == "reduce")}

    def write_pass(self, one: _Pass, last: bool) -> None:
        """A pass. The last one also stores the values of rows. A program has one row, or several columns."""
        rest = self._rest() if last else []
        self._name([*(e.args[0] for e in one.reduces), *(e for _, e, _ in (*one.stores, *rest))], [*one.stores, *rest])
        program = self.program()
        self.emit(f"part = {program} % PARTS")
        if self.nest.mode == "row":
            self._one_row(f"{program} // PARTS")
        else:
            self.declare(self.kept, f"{program} // PARTS * {self.across}", self.across, "rows")
        self._pass(one)
        for expr in one.reduces:
            place = parts_name(expr)
            self.locals.append(place)
            at = f"{place} + part * {self._rows()} + {self.kept.name}"
            self.emit(f"tl.store({at}, {self.texts[expr]}, mask={self.kept.inside})")
        if rest:
            self.emit(f"{self.kept.inside} = {self.kept.inside} & (part == 0)")
        for value, expr, position in rest:
            self.store(value, expr, position)

    def _one_row(self, row: str) -> None:
        """Make the row a number, and tiles one-dimensional: values of the row need no layout then."""
        self.kept.subscript = self.reduced.subscript = self.keep = ""
        self.along, self.shape = 0, "[BLOCK]"
        self.emit(f"{self.kept.name} = {row}")
        self.emit(f"{self.kept.inside} = {self.kept.name} < {self._rows()}")
        self.decode(self.kept.name, self.kept.loops)

    def write_rest(self) -> None:
        """The values of rows, where no pass over elements is left."""
        rest = self._rest()
        self._name([e for _, e, _ in rest], rest)
        self.declare(self.kept, f"{self.program()} * {self.across}", self.across, "rows")
        for value, expr, position in rest:
            self.store(value, expr, position)

    def blocks(self, extent: str) -> str:
        """Programs take blocks in turn."""
        return f"range(part * BLOCK, {extent}, PARTS * BLOCK)"

    def _rest(self) -> list[tuple[Value, Expr, Affine]]:
        return [s for s in self.nest.stores if not _fills(self.nest, s)]

    def _rows(self) -> str:
        return self.sizes.expr(self.kept.extent(self.nest.variants), "rows")

    def _name(self, roots: list[Expr], stores: list[tuple[Value, Expr, Affine]]) -> None:
        """Name the memory that a kernel reads and writes. Earlier reductions are read as their parts."""
        seen: set[Expr] = set()
        stack = list(roots)
        while stack:
            expr = stack.pop()
            if expr not in seen:
                seen.add(expr)
                stack += [] if expr.kind == "reduce" else expr.operands
        memory = [e.value if e.kind == "load" else e.value.args[0] for e in self.nest.order
                  if e in seen and e.kind in ("load", "gather")]  # fmt: skip
        self.arguments_first([*memory, *(value for value, _, _ in stores)])

    def _compose(self, expr: Expr) -> str:
        if expr.kind != "reduce":
            return super()._compose(expr)
        place, lanes = parts_name(expr), self.fresh(f"{parts_name(expr)}_lanes")
        self.locals.append(place)
        at = f"{place} + {self.lanes('PARTS')}{self.reduced.subscript} * {self._rows()} + {self.kept.name}"
        self.emit(f"{lanes} = tl.load({at}, mask={self.kept.inside}, other={identity(expr)})")
        self._finish(expr, lanes)
        return self.texts[expr]


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
