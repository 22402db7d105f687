"""Attention as one Triton kernel: the softmax is carried along blocks of keys, so that no scores are stored.

The running maximum and sum follow Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018). The loop
over blocks of keys follows Dao et al., "FlashAttention" (2022).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kernelwright.codegen._attention import Attention
from kernelwright.codegen._attention_range import Visible, visible_keys
from kernelwright.codegen._ir import HALVES, Value
from kernelwright.codegen._nest import Expr
from kernelwright.codegen._size import Affine, Loop, Size, product
from kernelwright.codegen._triton_nest import power_of_two
from kernelwright.codegen._triton_tiles import Axis, Kernel, TileWriter, is_large, program_number

_LOCALS_TEXT = """
program tile tiles batch depth depth_inside feature feature_inside key first_row last_row first last furthest
seen query keys values product scores weights largest higher base decay total
"""
_LOCALS = frozenset(_LOCALS_TEXT.split())
LOG2_E = 1.4426950408889634
SIGNS = {"mul": "*", "div": "/"}
_LOWEST = 'float("-inf")'
_NARROW = {
    "add",
    "sub",
    "neg",
    "abs",
    "maximum",
    "minimum",
    "lt",
    "le",
    "gt",
    "ge",
    "eq",
    "ne",
    "cast",
    "where",
    "full",
}
_SMALL = 1 << 30  # numbers below it may be added to a position in 32 bits


def attention_kernel(values: Sequence[Value], name: str, title: str, options: Mapping[str, Any]) -> Kernel:
    """The kernel of an attention with these results. A program computes ``ATTENTION_M`` rows of one head."""
    writer = AttentionWriter(values, values[0].attrs["attention"], options)
    writer.write()
    return kernel_of(writer, name, title, "rows", "ATTENTION")


def kernel_of(writer: AttentionWriter, name: str, title: str, side: str, knobs: str) -> Kernel:
    """The kernel that was written.

    Args:
        side: what the programs share: ``rows`` or ``columns``.
        knobs: how the names of its choices begin.
    """
    attention, variants = writer.attention, writer.nest.variants
    loop, block = (attention.row, "M") if side == "rows" else (attention.column, "N")
    sizes = {side: loop.extent, "batches": product([lp.extent for lp in attention.batch], variants)}
    meta = {"ATTENTION_M": f"{knobs}_M", "ATTENTION_N": f"{knobs}_N"}
    for constant, loop in writer.heads.items():
        sizes[constant.lower()] = loop.extent
        text = power_of_two(loop.extent, constant.lower())
        meta[constant] = str(max(16, int(text))) if text.isdigit() else f"max(16, {text})"  # tl.dot takes 16 at least
    text = writer.function(name, title, list(meta))
    grid = f"triton.cdiv({{{side}}}, {knobs}_{block})"
    grid = f"{{batches}} * {grid}" if attention.batch else grid
    meta |= {"num_warps": f"{knobs}_WARPS", "num_stages": f"{knobs}_STAGES"}
    return Kernel(name, text, writer.arguments(), grid, meta, sizes)


class AttentionWriter(TileWriter):
    """Writes the loop over the keys. The tile of scores has queries along its rows and keys along its columns."""

    def __init__(self, values: Sequence[Value], attention: Attention, options: Mapping[str, Any]) -> None:
        axes = [Axis("row", [attention.row], "[:, None]"), Axis("column", [attention.column], "[None, :]")]
        super().__init__(attention.scores, axes, given={attention.product: "product"}, fill=True)
        self.results, self.attention, self.moving = values, attention, attention.column
        self.names_taken |= _LOCALS
        self.half = attention.product.dtype in HALVES
        precision = options.get("precision", "ieee")
        self.precision = "" if self.half else f', input_precision="{precision}"'
        self.heads: dict[str, Loop] = {"HEAD": attention.depth}
        if attention.out.extent != attention.depth.extent:
            self.heads["HEAD_OUT"] = attention.out
        memory = [*values[0].args, *values]
        self.wide = is_large(product(v.shape, self.nest.variants) for v in memory)
        self.narrow = not self.wide and all(_is_narrow(e) for e in self.nest.order)

    def write(self) -> None:
        """All statements."""
        a = self.attention
        self.arguments_first([*(v for v, _ in a.reads), *(v for v in self.nest.loads() if v is not a.product)])
        for value, shown in zip(self.results, ("out", "totals"), strict=False):
            self.tensors.setdefault(value, self.fresh(shown))
        visible = visible_keys(self.nest, a.product, a.row, a.column)
        self._rows(reverse=bool(visible.upper or visible.conditions))
        self._begin()
        self._hoist()
        self._limits(visible)
        self.open("for start in range(first, last, ATTENTION_N):")
        self._block(visible)
        self.close()
        shown = "acc / tl.where(total == 0.0, 1.0, total)" if a.safe else "acc / total"
        place = self._place(self.results[0], a.position, {a.row: "row", a.out: "feature[None, :]"})
        self.emit(f"tl.store({place}, {shown}, mask={self._masks('row_inside', a.out, 'feature', '[None, :]')})")
        if a.total is not None:
            place = self._place(self.results[1], a.total, {a.row: "row"})
            self.emit(
                f"tl.store({place}, tl.where(largest == {_LOWEST}, 0.0, largest) + tl.log(total), mask=row_inside)"
            )
        self._drop_unused()

    def _drop_unused(self) -> None:
        """Leave out the positions of heads that nothing reads."""
        a, text = self.attention, "\n".join(self.lines)
        names = [self.variables.get(loop, "") for loop in a.batch if loop in self.variables]
        unused = {name for name in names if len(re.findall(rf"\b{name}\b", text)) == 1}
        self.lines = [line for line in self.lines if line.split(" = ")[0].strip() not in unused]

    # ------------------------------------------------------------------------------------------ before the loop

    def _rows(self, *, reverse: bool) -> None:
        """Which rows this program computes. Where later rows see more keys, they come first, as they take longest."""
        a = self.attention
        rows = self.sizes.expr(a.row.extent, "rows")
        self.emit(f"program = {program_number(self.wide)}")
        self.emit(f"tiles = tl.cdiv({rows}, ATTENTION_M)")
        if a.batch:
            self.emit("batch = program // tiles")
            self.decode("batch", a.batch)
        tile = "program % tiles" if a.batch else "program"
        self.emit(f"tile = {f'tiles - 1 - {tile}' if reverse else tile}")
        self.emit("first_row = tile * ATTENTION_M")
        self._some_rows("first_row")

    def _some_rows(self, first: str) -> None:
        """The positions of one block of queries."""
        self.emit(f"row = {first} + tl.arange(0, ATTENTION_M)[:, None]")
        self.emit(f"row_inside = row < {self.sizes.expr(self.attention.row.extent, 'rows')}")
        self.decode("row", [self.attention.row])

    def _features(self) -> None:
        """The positions of a head's features."""
        a = self.attention
        feature = "HEAD_OUT" if "HEAD_OUT" in self.heads else "HEAD"
        for index, loop, count in (("depth", a.depth, "HEAD"), ("feature", a.out, feature)):
            self.emit(f"{index} = tl.arange(0, {count})")
            if not _fills(loop):
                self.emit(f"{index}_inside = {index} < {self.sizes.expr(loop.extent, 'head')}")

    def _begin(self) -> None:
        """The queries, and the state that the loop carries."""
        a = self.attention
        self._features()
        feature = "HEAD_OUT" if "HEAD_OUT" in self.heads else "HEAD"
        self._tile("query", 0, {a.row: "row", a.depth: "depth[None, :]"}, "row_inside", "[None, :]")
        self.emit(f"largest = tl.full([ATTENTION_M, 1], {_LOWEST}, tl.float32)")
        self.emit("total = tl.zeros([ATTENTION_M, 1], tl.float32)")
        self.emit(f"acc = tl.zeros([ATTENTION_M, {feature}], tl.float32)")

    def _limits(self, visible: Visible) -> None:
        """The first block of keys that a row of this program sees, and the end of the keys that it sees."""
        columns = self.sizes.expr(self.attention.column.extent, "cols")
        first, last = "0", columns
        if visible.lower or visible.upper:
            rows = self.sizes.expr(self.attention.row.extent, "rows")
            self.emit(f"last_row = tl.minimum(first_row + ATTENTION_M, {rows}) - 1")
        for bound in visible.lower:
            first = f"tl.maximum({first}, {self._at_end(bound, furthest=False)})"
        for bound in visible.upper:
            last = f"tl.minimum({last}, {self._at_end(bound, furthest=True)} + 1)"
        self.emit(f"first = {f'{first} // ATTENTION_N * ATTENTION_N' if visible.lower else first}")
        self.emit(f"last = {last}")
        if visible.conditions:
            self._look(visible.conditions)

    def _look(self, conditions: list[tuple[Expr, bool]]) -> None:
        """Look through the masks for the end of the keys that any row of this program sees.

        The first of them is not looked for. If a reduction gave the first key of the loop, Triton 3.7 would not know
        what is contiguous, and would not load halves ahead.
        """
        rows = "ATTENTION_M" if any(self.attention.row in e.loops for e, _ in conditions) else "1"
        self.emit(f"furthest = tl.zeros([{rows}, ATTENTION_N], tl.int32)")
        taken, known = set(self.names_taken), dict(self.texts)
        self.open("for start in range(first, last, ATTENTION_N):")
        self._keys()
        texts = [self.named(expr) if truth else f"(~{self.named(expr)})" for expr, truth in conditions]
        masks = [*(["row_inside"] if rows != "1" else []), "column_inside", *texts]
        self.emit(f"seen = {' & '.join(masks)}")
        self.emit("furthest = tl.maximum(furthest, tl.where(seen, column + 1, 0).to(tl.int32))")
        self.close()
        named = (*self.tensors.values(), *self.sizes.arguments.values(), *self.numbers.values())
        self.names_taken, self.texts = taken | set(named), known
        self.emit("last = tl.max(furthest)")

    def _at_end(self, bound: Affine, *, furthest: bool) -> str:
        """A bound at that end of this program's rows where it is largest, or smallest."""
        rising = bound.coefficient(self.attention.row).timed > 0
        end = "last_row" if rising == furthest else "first_row"
        return self.sizes.affine(bound, {self.attention.row: end}, offset=True) or "0"

    # ------------------------------------------------------------------------------------------ the loop

    def _keys(self, first: str = "start") -> str:
        """The positions of one block of keys."""
        columns = self.sizes.expr(self.attention.column.extent, "cols")
        self.emit(f"key = {first} + {self.lanes('ATTENTION_N')}")
        self.emit("column = key[None, :]")
        self.emit(f"column_inside = column < {columns}")
        self.decode("column", [self.attention.column])
        return columns

    def _block(self, visible: Visible) -> None:
        """One block of keys."""
        a = self.attention
        columns = self._keys()
        self._tile("keys", 1, {a.column: "column", a.depth: "depth[:, None]"}, "column_inside", "[:, None]")
        scales = "".join(f" {SIGNS[op]} {self._number(number, 'float32')}" for op, number in a.scales)
        self.emit(f"product = tl.dot(query, keys{self.precision}){scales}")
        self.emit(f"scores = {self.value(self.nest.stores[0][1])}")
        self._end(visible.upper)
        self.emit("higher = tl.maximum(largest, tl.max(scores, 1, keep_dims=True))")
        self.emit(f"base = tl.where(higher == {_LOWEST}, 0.0, higher)")
        if self.half:
            self.emit(f"base *= {LOG2_E}")
        self.emit(f"weights = {self._power('scores')}")
        self.emit(f"decay = {self._power('largest')}")
        self.emit("total = total * decay + tl.sum(weights, 1, keep_dims=True)")
        inside = f"(key[:, None] < {columns})"
        self._tile("values", 2, {a.column: "key[:, None]", a.out: "feature[None, :]"}, inside, "[None, :]")
        weights = "weights.to(values.dtype)" if self.half else "weights"
        self.emit(f"acc = tl.dot({weights}, values, acc * decay{self.precision})")
        self.emit("largest = higher")

    def _power(self, text: str) -> str:
        """The exponential of a score less the largest one.

        The power of two is exact enough: it is of no more than 0, so that an error that grows with the distance meets a
        weight that shrinks faster. For halves, one multiplication and addition gives its argument.
        """
        return f"tl.exp2({text} * {LOG2_E} - base)" if self.half else f"tl.exp2(({text} - base) * {LOG2_E})"

    def _end(self, upper: list[Affine]) -> None:
        """Hide what lies behind the last key, unless no query sees so far, or blocks end there."""
        extent = self.attention.column.extent
        if any(all(n < e for n, e in zip(b.range[1].values, extent.values, strict=True)) for b in upper):
            return
        hidden = f"scores = tl.where(column_inside, scores, {_LOWEST})"
        if extent.is_const:
            self.open(f"if {extent.timed} % ATTENTION_N != 0:")
            self.emit(hidden)
            self.close()
        else:
            self.emit(hidden)

    def _hoist(self) -> None:
        """Write what is the same in all turns before the loop."""
        changing: set[Expr] = set()
        for expr in self.nest.order:  # operands come first
            if expr.value in self.given or self.moving in expr.loops:
                changing.add(expr)
            changing |= {expr} if changing & set(expr.operands) else set()
        for expr in self.nest.order:
            for operand in expr.operands if expr in changing else ():
                if operand not in changing and operand.value.op != "full":
                    self.named(operand)

    # ------------------------------------------------------------------------------------------ texts

    def _place(self, value: Value, position: Affine, more: Mapping[Loop, str]) -> str:
        """The pointer to a position, some of whose loops run along a tile as ``more`` says."""
        kept, self.variables = self.variables, {**self.variables, **more}
        walks, self.walks = self.walks, [w for w in self.walks if not set(more) & set(w[1])]
        parts = [self.tensor(value), self.position(position)]
        self.variables, self.walks = kept, walks
        parts += [f"0 * {text}" for loop, text in more.items() if loop not in position.loops]  # the shape of the tile
        return " + ".join(part for part in parts if part)

    def _tile(self, name: str, place: int, more: Mapping[Loop, str], mask: str, subscript: str) -> None:
        """Load a tile of queries, keys or values. Lanes outside of a mask are 0."""
        memory, position = self.attention.reads[place]
        loop, index = (self.attention.out, "feature") if place >= 2 else (self.attention.depth, "depth")
        mask = self._masks(mask, loop, index, subscript)
        self.emit(f"{name} = tl.load({self._place(memory, position, more)}, mask={mask}, other=0)")

    def _masks(self, mask: str, loop: Loop, index: str, subscript: str) -> str:
        """A mask joined with the mask over a head's features."""
        return mask if _fills(loop) else f"{mask} & {index}_inside{subscript}"

    def _compose(self, expr: Expr) -> str:
        text = super()._compose(expr)
        return text.removesuffix(".to(tl.int64)") if expr.kind == "iota" and self.narrow else text


def _fills(loop: Loop) -> bool:
    """True where a head's features fill their tile, which is a power of two, and need no mask."""
    size = loop.extent
    return size.is_const and size.timed >= 16 and size.timed & (size.timed - 1) == 0


def _is_narrow(expr: Expr) -> bool:
    """True where positions that this computes with stay right in 32 bits."""
    numbers = [a for a in expr.args if not isinstance(a, Expr)]
    large = any(abs(n) >= _SMALL for a in numbers for n in (a.values if isinstance(a, Size) else ()))
    large = large or any(isinstance(a, int) and abs(a) >= _SMALL for a in numbers)
    ints = [e for e in (expr, *expr.operands) if e.value.dtype == "int64"]
    return not ints or expr.kind != "op" or (expr.value.op in _NARROW and not large)
