"""The backward pass of attention as Triton kernels: one walks along keys, the other along queries.

Both compute the weights again, as in Dao et al., "FlashAttention" (2022), and each program alone writes its sums. So
there are no atomics, and results have the same bits every time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kernelwright.codegen._attention_gradient import KEYS, QUERY, SLOPES, VALUES, AttentionGradient, Sum
from kernelwright.codegen._attention_range import Visible, visible_keys
from kernelwright.codegen._ir import HALVES, Value
from kernelwright.codegen._nest import Expr
from kernelwright.codegen._size import Affine
from kernelwright.codegen._triton_attention import LOG2_E, SIGNS, AttentionWriter, kernel_of
from kernelwright.codegen._triton_tiles import Kernel, atom, program_number

_LOCALS = {"slopes", "changes", "first_key", *(f"sum{n}" for n in range(8))}
_TILES = {QUERY: "query", KEYS: "keys", VALUES: "values", SLOPES: "slopes"}


def gradient_kernel(values: Sequence[Value], name: str, title: str, options: Mapping[str, Any]) -> Kernel:
    """The kernel of one direction of a backward pass: a program computes a block of queries, or of keys and values."""
    writer = _GradientWriter(values, values[0].attrs["attention"], options)
    writer.write()
    return kernel_of(writer, name, title, "rows" if writer.attention.by_rows else "columns", "GRADIENT")


class _GradientWriter(AttentionWriter):
    attention: AttentionGradient

    def __init__(self, values: Sequence[Value], attention: AttentionGradient, options: Mapping[str, Any]) -> None:
        super().__init__(values, attention, options)
        self.given[attention.slopes] = "changes"
        self.moving = attention.column if attention.by_rows else attention.row
        self.names_taken |= _LOCALS
        self.needs_slopes = any(e.value is attention.slopes for e in self.nest.order)

    def write(self) -> None:
        """All statements."""
        a = self.attention
        self.arguments_first(
            [*(v for v, _ in a.reads), *(v for v in self.nest.loads() if v not in (a.product, a.slopes))]
        )
        for one in a.sums:
            self.tensors.setdefault(one.value, self.fresh(f"{one.value.name}_out"))
        shifted = a.exponential().args[0]
        scores = replace(self.nest, stores=[(a.product, shifted.args[0], Affine.zero(self.nest.variants))])
        visible = visible_keys(scores, a.product, a.row, a.column)
        if a.by_rows:
            self._rows(reverse=bool(visible.upper or visible.conditions))
        else:
            self._columns()
        self._features()
        self._load(QUERY if a.by_rows else KEYS)
        self._load(SLOPES if a.by_rows else VALUES)
        for n, one in enumerate(a.sums):
            self.emit(f"sum{n} = tl.zeros([ATTENTION_{'M' if a.by_rows else 'N'}, {self._width(one)}], tl.float32)")
        self._hoist()
        self._limits(visible) if a.by_rows else self._queries(visible)
        self.open(f"for start in range(first, last, ATTENTION_{'N' if a.by_rows else 'M'}):")
        self._turn()
        self.close()
        for n, one in enumerate(a.sums):
            self._store(n, one)
        self._drop_unused()

    # ------------------------------------------------------------------------------------------ before the loop

    def _columns(self) -> None:
        """Which keys this program computes."""
        a = self.attention
        self.emit(f"program = {program_number(self.wide)}")
        self.emit(f"tiles = tl.cdiv({self.sizes.expr(a.column.extent, 'cols')}, ATTENTION_N)")
        if a.batch:
            self.emit("batch = program // tiles")
            self.decode("batch", a.batch)
        self.emit(f"first_key = {'program % tiles' if a.batch else 'program'} * ATTENTION_N")
        self._keys("first_key")

    def _queries(self, visible: Visible) -> None:
        """The first block of queries that see a key of this program, and the end of these queries."""
        first, last = "0", self.sizes.expr(self.attention.row.extent, "rows")
        for bound in visible.upper:
            if bound.coefficient(self.attention.row).equals(1):
                first = f"tl.maximum({first}, first_key - ({self._offset(bound)}))"
        for bound in visible.lower:
            if bound.coefficient(self.attention.row).equals(1):
                last = f"tl.minimum({last}, first_key + ATTENTION_N - ({self._offset(bound)}))"
        self.emit(f"first = {f'{first} // ATTENTION_M * ATTENTION_M' if first != '0' else first}")
        self.emit(f"last = {last}")

    def _offset(self, bound: Affine) -> str:
        return self.sizes.affine(Affine(bound.offset), {}, offset=True) or "0"

    # ------------------------------------------------------------------------------------------ the loop

    def _turn(self) -> None:
        """One block of keys, or of queries."""
        a = self.attention
        if a.by_rows:
            self._keys()
        else:
            self._some_rows("start")
        self._load(KEYS if a.by_rows else QUERY)
        self._load(VALUES if a.by_rows else SLOPES)
        scales = "".join(f" {SIGNS[op]} {self._number(number, 'float32')}" for op, number in a.scales)
        self.emit(f"product = tl.dot(query, tl.trans(keys){self.precision}){scales}")
        if self.needs_slopes:
            self.emit(f"changes = tl.dot(slopes, tl.trans(values){self.precision})")
        exponential = a.exponential()
        shifted = exponential.args[0]
        scores, total = (atom(self.value(arg)) for arg in shifted.args)
        self.emit(f"weights = tl.exp2(({scores} - {total}) * {LOG2_E})")
        inside, extent = ("column_inside", a.column.extent) if a.by_rows else ("row_inside", a.row.extent)
        block = "ATTENTION_N" if a.by_rows else "ATTENTION_M"
        hidden = f"weights = tl.where({inside}, weights, 0.0)"
        if extent.is_const:
            self.open(f"if {extent.timed} % {block} != 0:")
            self.emit(hidden)
            self.close()
        else:
            self.emit(hidden)
        self.texts[exponential] = "weights"
        for n, (one, (_, expr, _)) in enumerate(zip(a.sums, self.nest.stores, strict=True)):
            tile, other = self.named(expr), _TILES[one.read]
            tile = f"{tile}.to({other}.dtype)" if self.half else tile
            tile = tile if a.by_rows else f"tl.trans({tile})"
            self.emit(f"sum{n} = tl.dot({tile}, {other}, sum{n}{self.precision})")

    def _load(self, read: int) -> None:
        """The tile of queries, keys, values or gradients, with a head's features along its rows."""
        a = self.attention
        if read in (VALUES, SLOPES) and not self.needs_slopes and all(one.read != read for one in a.sums):
            return
        loop, at = (a.depth, "depth[None, :]") if read in (QUERY, KEYS) else (a.out, "feature[None, :]")
        by_rows = read in (QUERY, SLOPES)
        more = {a.row: "row", loop: at} if by_rows else {a.column: "key[:, None]", loop: at}
        self._tile(_TILES[read], read, more, self._side(by_rows), "[None, :]")

    def _side(self, by_rows: bool) -> str:
        """The mask of rows, or of keys along the rows of a tile."""
        return "row_inside" if by_rows else f"(key[:, None] < {self.sizes.expr(self.attention.column.extent, 'cols')})"

    def _width(self, one: Sum) -> str:
        return "HEAD_OUT" if one.feature is self.attention.out and "HEAD_OUT" in self.heads else "HEAD"

    def _store(self, n: int, one: Sum) -> None:
        a = self.attention
        index = "feature" if one.feature is a.out else "depth"
        more = {a.row: "row"} if a.by_rows else {a.column: "key[:, None]"}
        place = self._place(one.value, one.position, {**more, one.feature: f"{index}[None, :]"})
        scales = "".join(f" {SIGNS[op]} {self._number(number, 'float32')}" for op, number in one.scales)
        mask = self._masks(self._side(a.by_rows), one.feature, index, "[None, :]")
        self.emit(f"tl.store({place}, sum{n}{scales}, mask={mask})")

    def _cast(self, expr: Expr) -> str:
        """A cast. Tiles stay in float32 until a product takes them."""
        return self.value(expr.args[0]) if expr.value.dtype in HALVES else super()._cast(expr)
