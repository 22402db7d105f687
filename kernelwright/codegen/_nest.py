"""Analysis of one fusible region: can its values be computed in one loop nest, and in which?

The search starts at the values that the region must store. It visits every operand at an index that is affine in the
loops, through views and broadcasts, down to memory. A reduction visits its operand over the reduced loops. So all
reductions of a region must run over the same loops, or be totals: over all loops, or over all that are not reduced. If
a value does not fit, the region has no nest, and the partitioner tries a smaller region.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from kernelwright.codegen._domain import Coarse, NotFusible, domain_of, loops_of
from kernelwright.codegen._ir import Index, Value, broadcast_index, root, through_view
from kernelwright.codegen._size import Affine, Loop, Shape, Size, contiguous_strides, delinearise, linearise, product

Mode = Literal["pointwise", "row", "column"]
LONG_ROW = 512
SHORT_ROW = 64
CHUNK = 4096  # elements per partial sum where everything is reduced


@dataclass(eq=False)
class Expr:
    """One value at one index.

    Attributes:
        kind: ``load`` (memory at ``position``), ``op`` (pointwise), ``reduce``, ``iota``, ``gather`` (memory at
            ``position`` plus the first argument times ``stride``), ``scatter`` (adds its second argument to memory at
            such a place), ``inside`` (whether ``position`` lies within ``bounds``), ``number``.
        scope: of a reduction: ``row`` (over the reduced loops), ``all`` (over all loops), ``outer`` (of row values over
            the outer loops).
        bounds: the least position, and the one behind the greatest; None where every position is on that side.
        guards: conditions without which memory is not read. The value is then not used.
    """

    kind: str
    value: Value
    args: list[Expr | Any] = field(default_factory=list)
    position: Affine | None = None
    stride: Size | None = None
    scope: str = ""
    loops: frozenset[Loop] = frozenset()
    final: bool = False  # depends on a total: known only after all loops
    stage: int = 0  # the first pass over the reduced loops in which it can be computed
    bounds: tuple[Size | None, Size | None] = (None, None)
    guards: tuple[Expr, ...] = ()

    @property
    def operands(self) -> list[Expr]:
        """The arguments that are expressions, and the guards."""
        return [a for a in (*self.args, *self.guards) if isinstance(a, Expr)]


@dataclass
class Nest:
    """A region's loops and what is computed in them.

    Attributes:
        outer: loops that run in parallel, in memory order.
        inner: loops of one row's work; for ``pointwise`` the vector loop alone.
        vector: the innermost loop of memory. In column mode it is one of the parallel loops.
        stores: value, its expression, and where it goes.
        order: all expressions, operands first.
    """

    mode: Mode
    outer: list[Loop]
    inner: list[Loop]
    vector: Loop | None
    stores: list[tuple[Value, Expr, Affine]]
    order: list[Expr]
    chunked: bool
    variants: int

    @property
    def has_total(self) -> bool:
        """True where something is reduced over all loops."""
        return any(e.scope in ("all", "outer") for e in self.order)

    def loads(self) -> list[Value]:
        """Memory that is read, in first-use order."""
        seen: dict[Value, None] = {}
        for expr in self.order:
            if expr.kind in ("load", "gather"):
                seen.setdefault(expr.value if expr.kind == "load" else expr.value.args[0])
        return list(seen)

    def volume(self) -> Size:
        """Iterations of the whole nest."""
        loops = {*self.outer, *self.inner, *([self.vector] if self.vector else [])}
        return product([lp.extent for lp in loops], self.variants)


def analyse(region: set[Value], outputs: Sequence[Value], variants: int, vector: Size | None = None) -> Nest:
    """Find the loop nest of a region.

    Args:
        region: fusible values, with the views between them.
        outputs: the values that must be stored, in execution order.
        vector: the extent that the innermost loop must have (the columns of a matrix tile); None for any.

    Raises:
        NotFusible: the region has no loop nest.
    """
    domain, reduced = domain_of(region, outputs)
    loops = loops_of(domain, reduced, region, variants)
    while True:
        visitor = _Visitor(region, loops, variants)
        try:
            stores = visitor.stores(outputs)
            break
        except Coarse as coarse:
            loops = coarse.cut(loops)
    if any(value.is_reduction and value not in visitor.reductions for value in region):
        raise NotFusible("a reduction of the region is not needed by its outputs")
    order = visitor.order
    if not loops:
        loops = [Loop("n", Size.const(1, variants))]
    loops, stores = _coalesce(loops, order, stores, _boundary(loops, vector, variants))
    if vector is not None and loops[-1].extent != vector:
        raise NotFusible("the columns are not one loop")
    return _arrange(loops, order, stores, variants)


def analyse_over(loops: list[Loop], targets: Sequence[tuple[Value, Index]], region: set[Value], variants: int) -> Nest:
    """The nest of pointwise values over given loops. The last loop is the vector loop, and no loops are merged.

    Raises:
        NotFusible: the region has a reduction, or an index that is not affine in the loops.
    """
    visitor = _Visitor(region, loops, variants)
    stores = [(v, visitor.visit(v, index), linearise(index, v.shape, variants)) for v, index in targets]
    if any(e.kind == "reduce" for e in visitor.order):
        raise NotFusible("a reduction inside of pointwise work")
    nest = Nest("pointwise", loops[:-1], loops[-1:], loops[-1], stores, visitor.order, False, variants)
    _place(nest)
    return nest


class _Visitor:
    """Builds the expressions of a region by demand."""

    def __init__(self, region: set[Value], loops: list[Loop], variants: int) -> None:
        self.region, self.loops, self.variants = region, loops, variants
        self.order: list[Expr] = []
        self.reductions: dict[Value, tuple[Index, Expr]] = {}
        self.guards: tuple[Expr, ...] = ()
        self._memo: dict[tuple[Value, Index, tuple[Expr, ...]], Expr] = {}
        self._within: dict[tuple[Affine, Size, Size], Loop] = {}
        self._meaning: dict[Loop, Affine] = {}  # positions in parts, in terms of the loops

    def stores(self, outputs: Sequence[Value]) -> list[tuple[Value, Expr, Affine]]:
        """What must be stored, and where."""
        out = []
        for value in outputs:
            if value.op == "scatter":
                out.append((value, *self.scatter(value)))
                continue
            index = self.natural_index(value)
            out.append((value, self.visit(value, index), linearise(index, value.shape, self.variants)))
        return out

    def natural_index(self, value: Value) -> Index:
        """The index of a stored value: row-major over all loops, over the parallel loops, or over no loop."""
        return self._natural(value, value.shape)

    def _natural(self, value: Value, shape: Shape) -> Index:
        volume = product(shape, self.variants)
        for loops in (self.loops, [lp for lp in self.loops if not lp.reduced], []):
            if product([lp.extent for lp in loops], self.variants) == volume:
                index = delinearise(self._position(loops), shape, self.variants)
                if index is not None:
                    return tuple(index)
        raise NotFusible(f"{value.name} has another iteration space")

    def _position(self, loops: Sequence[Loop]) -> Affine:
        return linearise([Affine.of(lp) for lp in loops], [lp.extent for lp in loops], self.variants)

    def visit(self, value: Value, index: Index) -> Expr:
        """The expression of a value at an index."""
        key = (value, index, self.guards)
        if key not in self._memo:
            self._memo[key] = self._listed(self._build(value, index))
        return self._memo[key]

    def _listed(self, expr: Expr) -> Expr:
        if expr not in self.order:
            self.order.append(expr)
        return expr

    def _build(self, value: Value, index: Index) -> Expr:
        if value.is_view:
            through = through_view(value, index, self.variants)
            if through is None:
                source: Value = value.args[0]
                if value.op == "reshape" and not source.is_view and source not in self.region:
                    return self._load(source, index, value.shape)  # elements lie in the same order
                self._ask_for_finer_loops(value, index)
                raise NotFusible(f"the index through {value.name} is not affine")
            return self.visit(value.args[0], through)
        if value not in self.region:
            return self._load(value, index)
        if value.op == "scatter":
            raise NotFusible(f"{value.name} is known only after all loops")
        if value.is_reduction:
            return self._reduction(value, index)
        if value.op == "iota":
            return Expr("iota", value, position=self._flat(index[value.attrs["dim"]]))
        if value.op == "gather":
            return self._gather(value, index)
        if value.op == "parts":
            return self._parts(value, index)
        args: list[Any] = []
        for arg in value.args:
            is_value = isinstance(arg, Value)
            args.append(self.visit(arg, broadcast_index(index, arg, value.shape, self.variants)) if is_value else arg)
        return Expr("op", value, args)

    def _ask_for_finer_loops(self, view: Value, index: Index) -> None:
        for step in contiguous_strides(view.args[0].shape, self.variants):
            for loop, factor in linearise(index, view.shape, self.variants).terms:
                inner = step // factor
                fits = factor * inner == step and inner.divides(loop.extent)
                if fits and loop in self.loops and not inner.equals(1) and inner != loop.extent:
                    raise Coarse(loop, inner)

    def _load(self, value: Value, index: Index, shape: Shape | None = None) -> Expr:
        """Read a value, or what a reshape to ``shape`` makes of it."""
        position = self._flat(linearise(index, value.shape if shape is None else shape, self.variants))
        for expr in self.order:
            if expr.kind == "load" and expr.value is value and expr.position == position and expr.guards == self.guards:
                return expr
        return Expr("load", value, position=position, guards=self.guards)

    def _flat(self, position: Affine) -> Affine:
        """A position in terms of the loops alone."""
        out = Affine(position.offset)
        for loop, size in position.terms:
            out = out.plus(self._meaning.get(loop, Affine.of(loop)).scaled(size))
        return out

    def _parts(self, value: Value, index: Index) -> Expr:
        """Tensors side by side: selections between them. A part is read only where it is selected."""
        dim, result = value.attrs["dim"], value.attrs["fill"]
        for part, start in reversed(list(zip(value.args, value.attrs["starts"], strict=True))):
            before, size = self.guards, part.shape[dim]
            found = self._inside(value, index[dim], start, start + size)
            self.guards = (*before, *found)
            own = list(index)
            own[dim] = self._from(index[dim], start, size)
            inner = self.visit(part, tuple(own))
            self.guards = before
            if result is None or not found:
                result = inner
            else:
                chosen = replace(value, op="where", args=())
                result = self._listed(Expr("op", chosen, [*found, inner, result]))
        assert isinstance(result, Expr)
        return result

    def _inside(self, value: Value, at: Affine, start: Size, end: Size) -> list[Expr]:
        """The condition that a position lies in a part; empty where it always does."""
        position = self._flat(at)
        first, last = position.range
        low = None if all(f >= s for f, s in zip(first.values, start.values, strict=True)) else start
        high = None if all(n < e for n, e in zip(last.values, end.values, strict=True)) else end
        if low is None and high is None:
            return []
        if not position.terms:
            raise NotFusible(f"{value.name} chooses a part for all of its elements")
        for expr in self.order:
            if expr.kind == "inside" and expr.position == position and expr.bounds == (low, high):
                return [expr]
        named = Value("inside", "inside", (), (), "bool", {}, value.origin, value.order)
        return [self._listed(Expr("inside", named, position=position, bounds=(low, high)))]

    def _from(self, at: Affine, start: Size, size: Size) -> Affine:
        """A position counted from the start of a part, as a loop of its own. It runs over the part alone."""
        if size.equals(1):
            return Affine.zero(self.variants)
        key = (at, start, size)
        if key not in self._within:
            self._within[key] = loop = Loop(f"p{len(self._within)}", size)
            self._meaning[loop] = self._flat(at.plus(Affine(start * -1)))
        return Affine.of(self._within[key])

    def scatter(self, value: Value) -> tuple[Expr, Affine]:
        """Sums at places that an index names, and where they lie for the index 0."""
        *begun, where, source = value.args
        over, dim = value.attrs["over"], value.attrs["dim"]
        if any(root(first) in self.region for first in begun):
            raise NotFusible(f"{value.name} begins with what the same loops compute")
        index = self._natural(value, over)
        rest = [Affine.zero(self.variants) if d == dim else a for d, a in enumerate(index)]
        at, term = (
            self.visit(x, broadcast_index(index, x, over, self.variants)) if isinstance(x, Value) else x
            for x in (where, source)
        )
        position = linearise(rest, value.shape, self.variants)
        stride = product(value.shape[dim + 1 :], self.variants)
        return self._listed(Expr("scatter", value, [at, term], position, stride)), position

    def _gather(self, value: Value, index: Index) -> Expr:
        source, where = value.args
        if source.is_view or source in self.region:
            raise NotFusible("gather from something that is not in memory")
        dim, lead, shape = value.attrs["dim"], value.attrs["lead"], value.attrs.get("seen_as", source.shape)
        if lead is None:  # torch.gather: same rank, the index runs along dim
            rest = [Affine.zero(self.variants) if d == dim else a for d, a in enumerate(index)]
            at = self.visit(where, index)
        elif lead < 0:  # elements of planes: the index has all dims that are left
            rest = [*index[:dim], Affine.zero(self.variants)]
            at = self.visit(where, broadcast_index(index, where, value.shape, self.variants))
        else:  # embedding: rows picked by a leading index
            rest = [Affine.zero(self.variants), *index[lead:]]
            at = self.visit(where, (*index[:lead], Affine.zero(self.variants)))
        stride = product(shape[dim + 1 :], self.variants)
        position = self._flat(linearise(rest, shape, self.variants))
        return Expr("gather", value, [at], position, stride, guards=self.guards)

    def _reduction(self, value: Value, index: Index) -> Expr:
        if self.guards:
            raise NotFusible(f"{value.name} is needed in some places alone")
        if value in self.reductions:
            known, expr = self.reductions[value]
            if known != index:
                raise NotFusible(f"{value.name} is needed at two indices")
            return expr
        operand: Value = value.args[0]
        dims = value.attrs["dims"]
        scope, loops = self._scope(value, [operand.shape[d] for d in dims], index)
        if scope != "row" and value.op in ("argmax", "argmin"):
            raise NotFusible("a position among row values")
        inner = delinearise(self._position(loops), [operand.shape[d] for d in dims], self.variants)
        if inner is None:
            raise NotFusible(f"the loops do not fit {value.name}")
        kept = iter([a for d, a in enumerate(index) if d not in dims] if value.attrs["keepdim"] else index)
        running = iter(inner)
        full = tuple(next(running) if d in dims else next(kept) for d in range(len(operand.shape)))
        expr = Expr("reduce", value, [self.visit(operand, full)], scope=scope)
        self.reductions[value] = (index, expr)
        return expr

    def _scope(self, value: Value, extents: Sequence[Size], index: Index) -> tuple[str, list[Loop]]:
        reduced = [lp for lp in self.loops if lp.reduced]
        outer = [lp for lp in self.loops if not lp.reduced]
        used = frozenset().union(*(a.loops for a in index)) if index else frozenset()
        total = product(extents, self.variants)
        if total == product([lp.extent for lp in reduced], self.variants):
            if used == frozenset(outer):
                return "row", reduced
        elif used:
            pass
        elif total == product([lp.extent for lp in self.loops], self.variants):
            return "all", self.loops
        elif total == product([lp.extent for lp in outer], self.variants):
            return "outer", outer
        raise NotFusible(f"{value.name} reduces over other loops")


def _boundary(loops: list[Loop], vector: Size | None, variants: int) -> Loop | None:
    """The first of the loops that form the vector dim. It must not merge with the loops before it."""
    if vector is None:
        return None
    inner = Size.const(1, variants)
    for loop in reversed(loops):
        inner = inner * loop.extent
        if inner == vector:
            return loop
    raise NotFusible("the loops do not split at the columns")


def _coalesce(
    loops: list[Loop], order: list[Expr], stores: list[tuple[Value, Expr, Affine]], boundary: Loop | None
) -> tuple[list[Loop], list[tuple[Value, Expr, Affine]]]:
    """Merge neighbouring loops wherever every access walks them as one."""
    position = 0
    while position + 1 < len(loops):
        first, second = loops[position], loops[position + 1]
        accesses = [e.position for e in order if e.position is not None] + [p for _, _, p in stores]
        joined = all(a.coefficient(first) == a.coefficient(second) * second.extent for a in accesses)
        if not joined or first.reduced != second.reduced or second is boundary:
            position += 1
            continue
        merged = Loop(first.name, first.extent * second.extent, first.reduced)
        boundary = merged if first is boundary else boundary
        swap = {first: merged, second: merged}
        for expr in order:
            if expr.position is not None:
                expr.position = _replace(expr.position, second, merged, swap)
        stores = [(v, e, _replace(p, second, merged, swap)) for v, e, p in stores]
        loops = [*loops[:position], merged, *loops[position + 2 :]]
        position = max(position - 1, 0)
    return loops, stores


def _replace(position: Affine, second: Loop, merged: Loop, swap: dict[Loop, Loop]) -> Affine:
    coefficient = position.coefficient(second)
    rest = tuple((lp, s) for lp, s in position.terms if lp not in swap)
    if not any(coefficient.values):
        return replace(position, terms=rest)
    return replace(position, terms=tuple(sorted((*rest, (merged, coefficient)), key=lambda t: t[0].name)))


def _arrange(loops: list[Loop], order: list[Expr], stores: list[tuple[Value, Expr, Affine]], variants: int) -> Nest:
    """Choose the mode, and place each expression."""
    reduces = [e for e in order if e.kind == "reduce"]
    parallel = [lp for lp in loops if not lp.reduced]
    chunked = False
    if not reduces:
        mode: Mode = "pointwise"
        outer, inner, vector = loops[:-1], [loops[-1]], loops[-1]
    elif not parallel:  # everything is reduced: the leading loops run in parallel, or one loop is cut into chunks
        mode = "row"
        outer, inner, vector = loops[:-1], [loops[-1]], loops[-1]
        chunked = len(loops) == 1
        if any(e.value.op in ("argmax", "argmin") for e in reduces):
            raise NotFusible("argmax over everything")
        for expr in reduces:
            expr.scope = "all"
    elif loops[-1].reduced:
        mode, vector = "row", loops[-1]
        outer, inner = parallel, [lp for lp in loops if lp.reduced]
    else:
        mode, vector = "column", loops[-1]
        outer, inner = parallel[:-1], [lp for lp in loops if lp.reduced]
    nest = Nest(mode, list(outer), list(inner), vector, stores, order, chunked, variants)
    _place(nest)
    if mode == "column" and nest.has_total:
        raise NotFusible("a total over columns")
    return nest


def _place(nest: Nest) -> None:
    """Set the loops that each expression depends on, whether it needs a total, and the pass in which it is known."""
    for expr in nest.order:
        found: frozenset[Loop] = expr.position.loops if expr.position is not None else frozenset()
        for operand in expr.operands:
            found |= operand.loops
        if expr.kind == "scatter" and nest.mode != "pointwise":
            raise NotFusible("sums by index beside reductions")
        expr.final = any(o.final for o in expr.operands)
        expr.stage = max((o.stage for o in expr.operands), default=0)
        if expr.kind == "reduce":
            expr.final = expr.final or expr.scope in ("all", "outer")
            found = frozenset(nest.outer) if expr.scope == "row" else frozenset()
            if expr.scope == "row":
                expr.stage += 1
                if nest.mode == "column" and nest.vector is not None:
                    found |= {nest.vector}
        expr.loops = found
        if expr.final and expr.loops:
            raise NotFusible("an element depends on a total")
        if any(o.final for o in expr.operands) and expr.kind == "reduce":
            raise NotFusible("a reduction of totals")


def is_element(nest: Nest, expr: Expr) -> bool:
    """True where the expression has one value per element of a row (rather than one per row)."""
    return bool(expr.loops & frozenset(nest.inner))


def has_long_rows(nest: Nest) -> bool:
    """True where rows are long enough for sums in several independent stripes."""
    reduces = any(e.kind == "reduce" for e in nest.order)
    return nest.mode == "row" and reduces and nest.vector is not None and nest.vector.extent.timed >= LONG_ROW


def has_uneven_rows(nest: Nest) -> bool:
    """True where rows are so short that the remainder after whole vectors matters, and masks can cover it.

    g++ computes the remainder one by one, which costs more than the vectors before it: a softmax over 30 numbers takes
    three times as long as over 32. Masks are used only for loops over contiguous floats, since g++ vectorises those.
    """
    vector = nest.vector
    if nest.mode == "column" or nest.chunked or vector is None or not nest.outer or any(e.guards for e in nest.order):
        return False
    if vector.extent.timed >= SHORT_ROW or vector.extent.timed % 16 == 0:
        return False
    inside = [e for e in nest.order if vector in e.loops]
    places = [e.position for e in inside if e.kind == "load"] + [p for _, e, p in nest.stores if vector in e.loops]
    return (
        all(e.kind in ("load", "op") and e.value.dtype in ("float32", "bool") for e in inside)
        and all(e.value.dtype == "float32" for e in inside if e.kind == "load")
        and all(value.dtype == "float32" for value, e, _ in nest.stores if vector in e.loops)
        and all(place is not None and place.coefficient(vector).equals(1) for place in places)
    )
