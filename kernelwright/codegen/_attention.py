"""Finds attention in a lowered program: a product, pointwise work on its scores, a softmax, and a second product.

What is found becomes one value, ``attention``, so that no scores need memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from kernelwright.codegen._attention_range import visible_keys
from kernelwright.codegen._domain import Coarse, NotFusible
from kernelwright.codegen._ir import POINTWISE, Index, Program, Value, reachable, through_view
from kernelwright.codegen._nest import Nest, analyse_over
from kernelwright.codegen._products import access
from kernelwright.codegen._size import Affine, Loop, Size, delinearise, linearise, product, refine

_CHEAP = 16  # flops up to which what is the same for all heads is computed again for each
LARGEST_HEAD = 256
ATTENTION = "scaled_dot_product_attention"
_Kind = TypeVar("_Kind", bound="Attention")


@dataclass
class Attention:
    """How one attention reads its operands, and what it does with its scores.

    Attributes:
        batch: loops over everything that the two products have in common. The others: queries, keys, the features of
            a query, and those of a value.
        reads: memory of queries, keys and values, each with its position.
        scores: the nest over ``batch``, ``row`` and ``column`` from the first product to what the softmax takes.
        product: the first product, which ``scores`` loads.
        scales: numbers that the first product is multiplied by, or divided, each with ``mul`` or ``div``.
        position: where a result goes.
        safe: a query that sees no key gives 0, and not NaN.
        total: where the logarithm of the sum of a row's exponentials goes; None if it is not wanted.
    """

    batch: list[Loop]
    row: Loop
    column: Loop
    depth: Loop
    out: Loop
    reads: list[tuple[Value, Affine]]
    scores: Nest
    product: Value
    scales: list[tuple[str, Any]]
    position: Affine
    safe: bool
    total: Affine | None = None

    @property
    def features(self) -> int:
        """Features of a head over which something is summed for each score, in the timed variant."""
        return self.depth.extent.timed + self.out.extent.timed


@dataclass
class _Softmax:
    """A softmax: its input, the value that it gives, and the values between.

    Attributes:
        total: the logarithm of the sum of exponentials, if the program returns it for a backward pass.
    """

    scores: Value
    result: Value
    inside: set[Value]
    safe: bool
    total: Value | None = None


def fuse_attention(program: Program, *, library: bool = False) -> Program:
    """The program with each attention as one value. Its other values are unchanged.

    Args:
        library: call ``scaled_dot_product_attention`` where it gives the same. Other attention stays as it is.
    """
    finder = Finder(program)
    for value in program.values:
        if value.op == "matmul":
            finder.fuse(value, library=library)
    return replace(program, values=in_order(program))


def in_order(program: Program) -> list[Value]:
    """The values that outputs need, each after its operands."""
    done: dict[Value, None] = {}

    def place(value: Value) -> None:
        for operand in value.inputs if value not in done else ():
            place(operand)
        done[value] = None

    for value in reachable(program.values, program.outputs):
        place(value)
    return list(done)


class Finder:
    def __init__(self, program: Program) -> None:
        self.program, self.variants = program, program.variants
        self.results = set(program.outputs)
        self.users: dict[Value, list[Value]] = {v: [] for v in program.values}
        for value in program.values:
            for operand in value.inputs:
                self.users[operand].append(value)

    def fuse(self, value: Value, *, library: bool) -> None:
        """Turn the second product of an attention into the whole of it. Any other product stays as it is."""
        softmax = self._softmax(value.args[0])
        if softmax is None:
            return
        self._find_total(softmax)
        if not self._only_used_by(softmax.inside - {softmax.total}, {*softmax.inside, value}):
            return
        region = self._region(softmax.scores)
        factors = [v for v in region if v.op == "matmul"]
        for factor in factors:
            try:
                found = self._attention(value, softmax, factor, region - {*factors})
            except NotFusible:
                continue
            if found is not None and library and softmax.total is None:
                _call(value, softmax, found)
            elif found is not None:
                self._replace(value, found, softmax.total)
            if found is not None:
                return

    def _only_used_by(self, values: Collection[Value], users: Collection[Value]) -> bool:
        return all(v not in self.results and all(u in users for u in self.users[v]) for v in values)

    # ------------------------------------------------------------------------------------------ the softmax

    def _softmax(self, weights: Value) -> _Softmax | None:
        """The softmax over the last dim that gives these weights, through views and casts; else None."""
        inside: set[Value] = set()
        top = weights
        while top.is_view or top.op in ("cast", "copy"):
            inside.add(top)
            top = top.args[0]
        result, safe = top, False
        extreme = None
        if top.op == "where" and top.args[1] == 0 and isinstance(top.args[2], Value):
            extreme, safe = _is_lowest(top.args[0]), True
            inside |= {top, top.args[0]}
            top = top.args[2]
        scores = self._normalised(top, inside)
        if scores is None or (safe and extreme is not scores[1]):
            return None
        return _Softmax(scores[0], result, inside, safe)

    def _normalised(self, top: Value, inside: set[Value]) -> tuple[Value, Value] | None:
        """The input of a softmax and its largest value, where ``top`` is ``exp(x - max(x)) / sum(exp(x - max(x)))``."""
        if top.op not in ("mul", "div") or not all(isinstance(a, Value) for a in top.args):
            return None
        inside.add(top)
        for weights, total in (top.args, top.args[::-1])[: 2 if top.op == "mul" else 1]:
            weights, steps = _without_casts(weights)
            if top.op == "mul":
                if total.op != "reciprocal" or not isinstance(total.args[0], Value):
                    continue
                steps |= {total}
                total = total.args[0]
            summed = _over_last(total, "sum", weights, steps)
            shifted = weights.args[0] if weights.op == "exp" else None
            if summed is None or not isinstance(shifted, Value) or shifted.op != "sub":
                continue
            scores, offset = shifted.args
            extreme = None
            if isinstance(scores, Value) and isinstance(offset, Value):
                extreme = _over_last(offset, "amax", scores, steps)
            if extreme is not None:
                inside |= {*steps, weights, shifted}
                return scores, extreme
        return None

    def _find_total(self, softmax: _Softmax) -> None:
        """Note the logarithm of the sum of exponentials if it is returned, and the values from which it is computed."""
        for value in self.program.outputs:
            if value.attrs.get("logsumexp_dims") != (len(value.shape) - 1,) or not value.shape[-1].equals(1):
                continue
            source: Value = value.attrs["logsumexp_of"]
            steps = {value}
            while source is not softmax.scores and source.op == "cast":
                steps.add(source)
                source = source.args[0]
            if source is not softmax.scores:
                continue
            softmax.total = value
            softmax.inside |= steps
            stack = [value]
            while stack:
                between = [v for v in stack.pop().inputs if v is not source and v not in softmax.inside]
                softmax.inside |= {*between}
                stack += between

    # ------------------------------------------------------------------------------------------ the scores

    def _region(self, scores: Value) -> set[Value]:
        """The pointwise values and views from which scores are computed, with the products that they begin with."""
        found: set[Value] = set()
        stack = [scores]
        while stack:
            value = stack.pop()
            if value in found:
                continue
            if value.op == "matmul":
                found.add(value)
            elif value.is_view or value.op in ("full", "iota") or (value.op in POINTWISE and not self._is_dear(value)):
                found.add(value)
                stack.extend(value.inputs)
        return found

    def _is_dear(self, value: Value) -> bool:
        """True where it pays to compute a value once for all heads: it depends on no product and costs much."""
        seen: set[Value] = set()
        stack = [value]
        while stack:
            one = stack.pop()
            if one in seen:
                continue
            seen.add(one)
            if one.op == "matmul":
                return False
            if one.is_view or one.op in POINTWISE:
                stack.extend(one.inputs)
        reads = any(v.op not in ("full", "iota") and not v.is_view and v.op not in POINTWISE for v in seen)
        return reads and len(value.shape) > 1 and sum(v.cost for v in seen) > _CHEAP

    def _attention(self, value: Value, softmax: _Softmax, first: Value, region: set[Value]) -> Attention | None:
        changing = _depending(softmax.scores, first)
        if not self._only_used_by({first, *changing}, {*changing, *softmax.inside}):
            return None
        depth, out = first.args[0].shape[-1], value.shape[-1]
        if max(*depth.values, *out.values) > LARGEST_HEAD or first.dtype != value.dtype:
            return None
        ends = [v for end in (*value.args, *first.args) for v in views_of(end)]
        grid = grid_of(value.shape[:-2], [value, first, *region, *self._layouts(value), *ends], self.variants)
        return self._fewest_copies(grid, ends, lambda batch: self._over(batch, value, softmax, first, region))

    def _fewest_copies(
        self, grid: list[Size], ends: list[Value], attempt: Callable[[list[Loop]], _Kind | None]
    ) -> _Kind | None:
        """What is found over those batch loops with which the fewest operands are copied."""
        best: tuple[int, _Kind] | None = None
        for pieces in (grid, *_finer(grid, ends)):
            found = self._with_finer(pieces, attempt)
            copies = sum(read.is_view for read, _ in found.reads) if found is not None else 0
            if found is not None and (best is None or copies < best[0]):
                best = (copies, found)
            if best is None or best[0] == 0:
                break
        return best[1] if best is not None else None

    def _with_finer(self, pieces: Sequence[Size], attempt: Callable[[list[Loop]], _Kind | None]) -> _Kind | None:
        """What is found over these batch loops, cut where an index through a view asks for finer ones.

        Raises:
            NotFusible: the scores have no nest over any such loops.
        """
        while True:
            loops = [Loop(f"b{n}", size) for n, size in enumerate(pieces)]
            try:
                return attempt(loops)
            except Coarse as coarse:
                if coarse.loop not in loops:
                    raise
                pieces = [loop.extent for loop in coarse.cut(loops)]

    def _over(
        self, batch: list[Loop], value: Value, softmax: _Softmax, first: Value, region: set[Value]
    ) -> Attention | None:
        """The attention over these batch loops; None if it is none."""
        variants = self.variants
        row, column = Loop("row", value.args[0].shape[-2]), Loop("column", value.args[0].shape[-1])
        loops = [*batch, row, column]
        at = natural(loops, variants)
        index = delinearise(at, value.args[0].shape, variants)
        weights: Value = value.args[0]
        while weights is not softmax.result and index is not None:
            moved = through_view(weights, tuple(index), variants) if weights.is_view else tuple(index)
            index, weights = None if moved is None else list(moved), weights.args[0]
        whole = delinearise(at, first.shape, variants)
        if index is None or whole is None or not runs_along(index[-1], column):
            return None
        nest = analyse_over(loops, [(softmax.scores, tuple(index))], region, variants)
        spots = {e.position for e in nest.order if e.kind == "load" and e.value is first}
        if spots != {linearise(whole, first.shape, variants)}:
            return None
        found = self._operands(value, first, loops, nest, softmax.safe)
        if found is not None and softmax.total is not None:
            place = (*index[:-1], Affine.zero(variants))
            found.total = linearise(place, softmax.total.shape, variants)
        return found

    def _operands(self, value: Value, first: Value, loops: list[Loop], nest: Nest, safe: bool) -> Attention | None:
        variants, (row, column) = self.variants, loops[-2:]
        batch, depth, out = loops[:-2], Loop("depth", first.args[0].shape[-1]), Loop("out", value.shape[-1])
        scores = delinearise(natural(loops, variants), first.shape, variants)
        result = delinearise(natural([*batch, row, out], variants), value.shape, variants)
        if scores is None or result is None or not runs_along(scores[-1], column) or not runs_along(result[-1], out):
            return None
        scales: list[tuple[str, Any]] = []
        reads = [self._unscaled(first.args[0], (*scores[:-1], Affine.of(depth)), scales)]
        for factor, lead, across in ((first, scores, (depth, column)), (value, result, (column, out))):
            right = factor.args[1]
            ends = tuple(Affine.of(lp) for lp in (across[::-1] if factor.attrs["transposed"] else across))
            index = (*(lead[:-2] if len(right.shape) > 2 else ()), *ends)
            keys = factor is first
            reads.append(self._unscaled(right, index, scales) if keys else access(right, index, variants, copies=True))
        found = [r for r in reads if r is not None]
        position = linearise(result, value.shape, variants)
        return Attention(batch, row, column, depth, out, found, nest, first, scales, position, safe)

    def _unscaled(self, operand: Value, index: Index, scales: list[tuple[str, Any]]) -> tuple[Value, Affine] | None:
        """The memory of queries or keys. If they are a multiple of it, the factor is added to ``scales``."""
        place: Index = index
        seen: list[tuple[str, Any]] = []
        for shown in views_of(operand):
            if not shown.is_view and not _is_multiple(shown):
                scales += seen
                return shown, linearise(place, shown.shape, self.variants)
            moved = through_view(shown, place, self.variants) if shown.is_view else place
            if moved is None:
                break
            seen += [] if shown.is_view else [(shown.op, shown.args[1])]
            place = moved
        return access(operand, index, self.variants, copies=True)

    # ------------------------------------------------------------------------------------------ the result

    def _layouts(self, value: Value) -> Iterator[Value]:
        """The views of a result that its only user takes, one of the other."""
        while value not in self.results and len(self.users[value]) == 1:
            value = self.users[value][0]
            if value.op not in ("permute", "reshape"):
                return
            yield value

    def _laid_out(self, value: Value, position: Affine) -> tuple[Value, Affine]:
        """The layout in which a result's user takes it, if it is one, and where an element goes there."""
        index: Index = tuple(delinearise(position, value.shape, self.variants) or ())
        stored = value
        for view in self._layouts(value):
            if view.op == "permute":
                index = tuple(index[d] for d in view.attrs["dims"])
            else:
                split = delinearise(linearise(index, stored.shape, self.variants), view.shape, self.variants)
                if split is None:
                    break
                index = tuple(split)
            stored = view
        return stored, linearise(index, stored.shape, self.variants)

    def _replace(self, value: Value, found: Attention, total: Value | None) -> None:
        """Make the value, or the layout in which its user takes it, the whole attention."""
        stored, found.position = self._laid_out(value, found.position)
        memory = [v for v, _ in found.reads] + [v for v in found.scores.loads() if v is not found.product]
        become([stored, *([total] if total is not None else [])], found, memory, (value.origin[0], ATTENTION))


def become(values: Sequence[Value], found: Attention, memory: Iterable[Value], origin: tuple[str, str]) -> None:
    """Make the first of these values an attention that reads some memory, and the others its further results."""
    first = values[0]
    first.op, first.args, first.origin = "attention", tuple(dict.fromkeys(memory)), origin
    first.attrs = {"attention": found, "epilogue": found.scores}
    for index, other in enumerate(values[1:], start=1):
        other.op, other.args, other.origin, other.attrs = "second", (first,), origin, {"index": index}


def _call(value: Value, softmax: _Softmax, found: Attention) -> None:
    """Make the value a call of the library if that can express it: with the causal mask or none."""
    first, scores = found.product, softmax.scores
    visible = visible_keys(found.scores, first, found.row, found.column)
    causal = scores.op == "where"
    if causal:
        bounds = [Affine.of(found.row)]
        if visible.conditions or visible.lower or visible.upper != bounds:
            return
        scores = next((a for a in scores.args[1:] if isinstance(a, Value) and a.op != "full"), scores)
    scale = scores.args[1] if scores.op == "mul" and _is_multiple(scores) else 1.0
    scores = scores if scores is first else scores.args[0]
    plain = scores is first and first.attrs["transposed"] and not value.attrs["transposed"] and not found.safe
    operands = (*first.args, value.args[1])
    if plain and len({len(operand.shape) for operand in operands}) == 1:
        reason = "left to the library by choice"
        value.op, value.args = "extern", (*operands, None, 0.0, causal)
        value.origin = (value.origin[0], "scaled_dot_product_attention.default")
        value.attrs = {"aten": "scaled_dot_product_attention.default", "kwargs": {"scale": scale}, "reason": reason}


def _is_lowest(condition: Value) -> Value | None:
    """The value that is compared with minus infinity; else None."""
    if condition.op != "eq" or condition.args[1] != float("-inf"):
        return None
    found: Value = condition.args[0]
    return found


def _without_casts(value: Value) -> tuple[Value, set[Value]]:
    """A value before casts, and the casts."""
    steps: set[Value] = set()
    while value.op == "cast":
        steps.add(value)
        value = value.args[0]
    return value, steps


def _over_last(value: Value, op: str, operand: Value, steps: set[Value]) -> Value | None:
    """The reduction of ``operand`` over its last dim that ``value`` is, with that dim kept as 1; else None.

    Adds the values on the way to ``steps``.
    """
    if len(value.shape) != len(operand.shape) or not value.shape[-1].equals(1):
        return None
    while value.op in ("reshape", "cast"):
        steps.add(value)
        value = value.args[0]
    if value.op != op or value.attrs["dims"] != (len(operand.shape) - 1,):
        return None
    steps.add(value)
    if value.args[0] is operand:
        return value
    summed, casts = _without_casts(value.args[0])
    steps |= casts
    return value if summed is operand else None


def _depending(value: Value, first: Value) -> set[Value]:
    """The values on the ways from ``first`` to ``value``, without ``first``."""
    known: dict[Value, bool] = {first: True}

    def depends(one: Value) -> bool:
        if one not in known:
            operands = one.inputs if one.is_view or one.op in POINTWISE else ()
            found = [depends(operand) for operand in operands]  # all of them, since each is noted
            known[one] = True in found
        return known[one]

    depends(value)
    return {v for v, yes in known.items() if yes and v is not first}


def views_of(value: Value) -> Iterator[Value]:
    """A value, followed by the chain of values that it is a view or a multiple of."""
    yield value
    while value.is_view or _is_multiple(value):
        value = value.args[0]
        yield value


def _is_multiple(value: Value) -> bool:
    return value.op in ("mul", "div") and isinstance(value.args[0], Value) and not isinstance(value.args[1], Value)


def runs_along(index: Affine, loop: Loop) -> bool:
    """True where an index is the variable of a loop. A loop over one element has none."""
    return index == (Affine.zero(len(loop.extent.values)) if loop.extent.equals(1) else Affine.of(loop))


def natural(loops: list[Loop], variants: int) -> Affine:
    """The row-major position in loops. A loop over one element does not occur in it."""
    kept = [lp for lp in loops if not lp.extent.equals(1)]
    return linearise([Affine.of(lp) for lp in kept], [lp.extent for lp in kept], variants)


def grid_of(shape: tuple[Size, ...], views: list[Value], variants: int) -> list[Size]:
    """The extents of loops over leading dims, cut where a view has a finer grid, as grouped heads have."""
    pieces = [size for size in shape if not size.equals(1)]
    total = product(shape, variants)
    for view in views:
        for count in range(1, len(view.shape)):
            if product(view.shape[:count], variants) == total:
                pieces = refine(pieces, view.shape[:count]) or pieces
    return pieces


def _finer(grid: list[Size], views: list[Value]) -> Iterator[list[Size]]:
    """Grids with one piece cut in two, at a size that some view has. Heads may be merged with samples."""
    sizes = dict.fromkeys(size for view in views for size in view.shape if not size.equals(1))
    for n, piece in enumerate(grid):
        for size in sizes:
            if size.divides(piece) and size != piece:
                for pair in ([size, piece // size], [piece // size, size]):
                    yield [*grid[:n], *pair, *grid[n + 1 :]]
