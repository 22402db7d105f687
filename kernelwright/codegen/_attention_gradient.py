"""Finds the backward pass of attention in a lowered program that computes the weights again from their logarithm.

Two products and pointwise work on both give tiles over queries and keys. Further products sum these over the keys, for
the gradient of the queries, or over the queries, for those of keys and values. Each of the two directions becomes one
value, ``attention``, so that nothing over queries and keys needs memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kernelwright.codegen._attention import (
    LARGEST_HEAD,
    Attention,
    Finder,
    become,
    grid_of,
    in_order,
    natural,
    runs_along,
    views_of,
)
from kernelwright.codegen._domain import NotFusible
from kernelwright.codegen._ir import POINTWISE, Index, Program, Value, root
from kernelwright.codegen._nest import Expr, analyse_over
from kernelwright.codegen._products import access
from kernelwright.codegen._size import Affine, Loop, delinearise, linearise

QUERY, KEYS, VALUES, SLOPES = range(4)  # places in an attention's reads; the last is the gradient of its result


@dataclass
class Sum:
    """A product of the backward pass: a tile over queries and keys, times a tile that is read.

    Attributes:
        value: where the result goes, in the layout that the next step takes.
        operand: the tile's value before views, and its index.
        read: the place of the other factor in ``reads``.
        over: the loop that is summed over.
        feature: the loop over the features of the result.
        scales: numbers that the other factor is multiplied by, or divided.
    """

    value: Value
    position: Affine
    operand: tuple[Value, Index]
    read: int
    over: Loop
    feature: Loop
    scales: list[tuple[str, Any]]


@dataclass
class AttentionGradient(Attention):
    """How one direction of a backward pass reads its operands, and what it computes from tiles.

    Attributes:
        reads: also the gradient of the result, after the values.
        scores: the nest over ``batch``, ``row`` and ``column`` of what the sums take.
        weights: the exponential of the scores less the logarithm of their sum.
        slopes: the second product, the gradients of the weights.
        sums: what is computed.
    """

    weights: Value = field(kw_only=True)
    slopes: Value = field(kw_only=True)
    sums: list[Sum] = field(kw_only=True)

    @property
    def features(self) -> int:
        """Features of a head over which something is summed for each score, in the timed variant."""
        return super().features + sum(one.feature.extent.timed for one in self.sums)

    @property
    def by_rows(self) -> bool:
        """Whether a block of queries is kept and the keys are walked along, and not the other way round."""
        return self.sums[0].over is self.column

    def exponential(self) -> Expr:
        """The weights among the expressions of ``scores``."""
        return next(e for e in self.scores.order if e.value is self.weights)


def fuse_gradients(program: Program) -> Program:
    """The program with both directions of each attention's backward pass as one value each."""
    finder = _GradientFinder(program)
    for value in program.values:
        if value.op == "exp":
            finder.fuse_gradient(value)
    return replace(program, values=in_order(program))


class _GradientFinder(Finder):
    def fuse_gradient(self, weights: Value) -> None:
        """Turn the products of a backward pass into attention if these are its weights."""
        shifted = weights.args[0]
        if shifted.op != "sub" or not all(isinstance(a, Value) for a in shifted.args):
            return
        scores, total = shifted.args
        if root(total).op != "leaf" or not total.shape or not total.shape[-1].equals(1):
            return
        for first in [v for v in self._region(scores) if v.op == "matmul"]:
            try:
                found = self._pass(weights, scores, first)
            except NotFusible:
                continue
            if found is not None:
                self._become(found)
                return

    def _pass(self, weights: Value, scores: Value, first: Value) -> AttentionGradient | None:
        inside = self._following({first})
        products = [v for v in self.program.values if v.op == "matmul" and v is not first and not inside & {*v.args}]
        seconds = [v for v in products if inside & self._following({v})]
        if len(seconds) != 1:
            return None
        second = seconds[0]
        inside = self._following({first, second})
        sinks = [v for v in self.program.values if v.op == "matmul" and inside & {*v.args}]
        if not sinks or not self._only_used_by({first, second, *inside}, {*inside, *sinks}):
            return None
        products = [first, second, *sinks]
        large = any(max(p.args[0].shape[-1].values) > LARGEST_HEAD for p in (first, second))
        if (
            large
            or second in self._region(scores)
            or first.shape[-2:] != second.shape[-2:]
            or len({p.dtype for p in products}) > 1
        ):
            return None
        region = {v for sink in sinks for a in sink.args if a in inside for v in self._region(a)}
        region -= {v for v in region if v.op == "matmul"}
        ends = [v for p in products for a in p.args for v in views_of(a)]
        layouts = [v for sink in sinks for v in self._layouts(sink)]
        grid = grid_of(first.shape[:-2], [*products, *region, *layouts, *ends], self.variants)

        def attempt(batch: list[Loop]) -> AttentionGradient | None:
            return self._read(batch, weights, first, second, sinks, region)

        return self._fewest_copies(grid, ends, attempt)

    def _following(self, products: set[Value]) -> set[Value]:
        """The views and pointwise values that are computed from products."""
        found: set[Value] = set()
        for value in self.program.values:
            if (value.is_view or value.op in POINTWISE) and (products | found) & {*value.inputs}:
                found.add(value)
        return found

    def _read(
        self,
        batch: list[Loop],
        weights: Value,
        first: Value,
        second: Value,
        sinks: Sequence[Value],
        region: set[Value],
    ) -> AttentionGradient | None:
        """The backward pass over these batch loops; None if it is none."""
        variants = self.variants
        row, column = Loop("row", first.shape[-2]), Loop("column", first.shape[-1])
        depth, out = Loop("depth", first.args[0].shape[-1]), Loop("out", second.args[0].shape[-1])
        loops = [*batch, row, column]
        spots: dict[Value, Affine] = {}
        scales: list[tuple[str, Any]] = []
        reads = []
        for product, feature in ((first, depth), (second, out)):
            whole = delinearise(natural(loops, variants), product.shape, variants)
            if whole is None or not runs_along(whole[-1], column):
                return None
            spots[product] = linearise(whole, product.shape, variants)
            left, right = product.args
            if any(a.shape[:-2] != product.shape[:-2] for a in product.args):
                return None
            ends = (column, feature) if product.attrs["transposed"] else (feature, column)
            places = (*whole[:-1], Affine.of(feature)), (*whole[:-2], *map(Affine.of, ends))
            if product is first:
                reads += [self._unscaled(left, places[0], scales), self._unscaled(right, places[1], scales)]
            else:
                reads += [
                    access(v, place, variants, copies=True) for v, place in ((right, places[1]), (left, places[0]))
                ]
        known = [read for read in reads if read is not None]
        nest = analyse_over(loops, [(first, tuple(whole or ()))], set(), variants)  # until the sums are known
        made = AttentionGradient(
            batch, row, column, depth, out, known, nest, first, scales, Affine.zero(variants),
            safe=False, weights=weights, slopes=second, sums=[],
        )  # fmt: skip
        found = [self._sum(sink, made, spots, region) for sink in sinks]
        made.sums = [one for one in found if one is not None]
        return made if len(made.sums) == len(sinks) else None

    def _sum(self, sink: Value, made: AttentionGradient, spots: dict[Value, Affine], region: set[Value]) -> Sum | None:
        """How a product of the backward pass sums tiles; None if it is of another form."""
        variants, (row, column) = self.variants, (made.row, made.column)
        tiles = [n for n, a in enumerate(sink.args) if a in region]
        lead = delinearise(natural(made.batch, variants), sink.shape[:-2], variants)
        if len(tiles) != 1 or lead is None or any(a.shape[:-2] != sink.shape[:-2] for a in sink.args):
            return None
        place = tiles[0]
        operand, other = sink.args[place], sink.args[1 - place]

        def placed(side: int, along: Loop, over: Loop) -> Index:
            """The index of one side of the product: its rows or columns, and what is summed over."""
            ends = (along, over) if side == 0 or sink.attrs["transposed"] else (over, along)
            return (*lead, *(Affine.of(lp) for lp in ends))

        for over, kept in ((row, column), (column, row)):
            index = placed(place, kept, over)
            if not self._is_tile(operand, index, made, spots, region):
                continue
            choices = [(QUERY, made.depth), (SLOPES, made.out)] if over is row else [(KEYS, made.depth)]
            for read, feature in choices:
                scales: list[tuple[str, Any]] = []
                side = placed(1 - place, feature, over)
                fits = [lp.extent for lp in _loops_of(side)] == [*other.shape[-2:]]
                if not fits or self._unscaled(other, side, scales) != made.reads[read]:
                    continue
                ends = (kept, feature) if place == 0 else (feature, kept)
                position = linearise((*lead, *(Affine.of(lp) for lp in ends)), sink.shape, variants)
                return Sum(sink, position, (operand, index), read, over, feature, scales)
        return None

    def _is_tile(
        self, operand: Value, index: Index, made: AttentionGradient, spots: dict[Value, Affine], region: set[Value]
    ) -> bool:
        """True where an operand is computed from the weights, and reads both products as they lie."""
        if [lp.extent for lp in _loops_of(index)] != [*operand.shape[-2:]]:
            return False
        try:
            nest = analyse_over([*made.batch, made.row, made.column], [(operand, index)], region, self.variants)
        except NotFusible:
            return False
        straight = all(e.position == spots[e.value] for e in nest.order if e.kind == "load" and e.value in spots)
        return straight and any(e.value is made.weights for e in nest.order)

    def _become(self, found: AttentionGradient) -> None:
        """Make the products of each direction one attention."""
        loops = [*found.batch, found.row, found.column]
        region = {v for one in found.sums for v in self._region(one.operand[0])} - {found.product, found.slopes}
        for over in (found.row, found.column):
            sums = [one for one in found.sums if one.over is over]
            if not sums:
                continue
            nest = analyse_over(loops, [one.operand for one in sums], region, self.variants)
            origin = (sums[0].value.origin[0], "scaled_dot_product_attention_backward")
            for one in sums:
                one.value, one.position = self._laid_out(one.value, one.position)
            memory = [v for v, _ in found.reads]
            memory += [v for v in nest.loads() if v not in (found.product, found.slopes)]
            become([one.value for one in sums], replace(found, scores=nest, sums=sums), memory, origin)


def _loops_of(index: Index) -> list[Loop]:
    """The loops along the last two dims of an index."""
    return [next(iter(entry.loops)) for entry in index[-2:]]
