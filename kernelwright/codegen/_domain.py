"""The loops that a fusible region runs over."""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.codegen._ir import Value
from kernelwright.codegen._size import Loop, Shape, Size, product, refine


class NotFusible(Exception):
    """These values don't fit into one loop nest; the message says why (for the report)."""


class Coarse(NotFusible):
    """The index through a view is affine only if ``loop`` is cut, into a loop and an inner one of ``inner`` steps."""

    def __init__(self, loop: Loop, inner: Size) -> None:
        super().__init__("the index through a view is affine only in finer loops")
        self.loop, self.inner = loop, inner

    def cut(self, loops: Sequence[Loop]) -> list[Loop]:
        """The loops with this one cut."""
        pieces = [(lp.extent, lp.reduced) for lp in loops]
        at = next(n for n, lp in enumerate(loops) if lp is self.loop)
        extent, reduced = pieces[at]
        pieces[at : at + 1] = [(extent // self.inner, reduced), (self.inner, reduced)]
        return [Loop(f"i{n}", size, flag) for n, (size, flag) in enumerate(pieces)]


def domain_of(region: set[Value], outputs: Sequence[Value]) -> tuple[Shape, tuple[int, ...]]:
    """The shape that the loops run over, and which of its dims are reduced."""
    reductions = sorted((v for v in region if v.is_reduction), key=lambda v: v.order)
    if reductions:
        operand = max(reductions, key=lambda v: (_volume(v.args[0].shape), -len(v.args[0].shape)))
        return operand.args[0].shape, operand.attrs["dims"]
    return max((v.attrs.get("over", v.shape) for v in outputs), key=_volume), ()


def _volume(shape: Shape) -> int:
    total = 1
    for size in shape:
        total *= size.timed
    return total


def loops_of(domain: Shape, reduced: tuple[int, ...], region: set[Value], variants: int) -> list[Loop]:
    """One loop per dim, cut where another shape of the region has a finer grid."""
    pieces = [(size, d in reduced) for d, size in enumerate(domain) if not size.equals(1)]
    total = product(domain, variants)
    shapes = {v.shape for v in region} | {v.args[0].shape for v in region if v.is_view or v.is_reduction}
    for shape in sorted(shapes, key=lambda s: [x.values for x in s]):
        if product(shape, variants) != total:
            continue
        finer = refine([size for size, _ in pieces], shape)
        if finer is not None:
            pieces = _with_flags(pieces, finer, variants)
    return [Loop(f"i{n}", size, flag) for n, (size, flag) in enumerate(pieces)]


def _with_flags(pieces: list[tuple[Size, bool]], finer: list[Size], variants: int) -> list[tuple[Size, bool]]:
    out: list[tuple[Size, bool]] = []
    position = 0
    for size, flag in pieces:
        covered = Size.const(1, variants)
        while covered != size:
            covered = covered * finer[position]
            out.append((finer[position], flag))
            position += 1
    return out
