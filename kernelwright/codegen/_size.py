"""Sizes over several shape variants at once, and index expressions that are affine in loop variables.

A graph is captured once per declared variant. A number that is the same in all of them is a constant of the problem;
one that differs is carried as the vector of its values, and arithmetic on it is arithmetic on the vector. So no
symbolic algebra is needed: two sizes are equal where they are equal in every variant that the problem declares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Size:
    """A non-negative integer in each variant (intermediate offsets may be negative)."""

    values: tuple[int, ...]

    @classmethod
    def const(cls, value: int, variants: int) -> Size:
        """The same value in every variant."""
        return cls((value,) * variants)

    @property
    def is_const(self) -> bool:
        """True where all variants agree."""
        return len(set(self.values)) == 1

    def equals(self, value: int) -> bool:
        """True where the size is ``value`` in every variant."""
        return all(v == value for v in self.values)

    @property
    def timed(self) -> int:
        """The value in the first variant, which is the one that is timed."""
        return self.values[0]

    def _other(self, other: Size | int) -> tuple[int, ...]:
        return (other,) * len(self.values) if isinstance(other, int) else other.values

    def __mul__(self, other: Size | int) -> Size:
        return Size(tuple(a * b for a, b in zip(self.values, self._other(other), strict=True)))

    def __add__(self, other: Size | int) -> Size:
        return Size(tuple(a + b for a, b in zip(self.values, self._other(other), strict=True)))

    def __sub__(self, other: Size | int) -> Size:
        return Size(tuple(a - b for a, b in zip(self.values, self._other(other), strict=True)))

    def __floordiv__(self, other: Size | int) -> Size:
        return Size(tuple(a // b if b else 0 for a, b in zip(self.values, self._other(other), strict=True)))

    def divides(self, other: Size) -> bool:
        """True where ``other`` is a multiple of this size in every variant."""
        return all(a != 0 and b % a == 0 for a, b in zip(self.values, other.values, strict=True))


Shape = tuple[Size, ...]


def product(sizes: Iterable[Size], variants: int) -> Size:
    """The product of sizes; 1 for none."""
    result = Size.const(1, variants)
    for size in sizes:
        result = result * size
    return result


def contiguous_strides(shape: Sequence[Size], variants: int) -> tuple[Size, ...]:
    """Row-major strides, in elements."""
    strides: list[Size] = []
    step = Size.const(1, variants)
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))


def refine(left: Sequence[Size], right: Sequence[Size]) -> list[Size] | None:
    """The coarsest shape that both row-major shapes of equal volume can be cut into, or None if they do not align."""
    a, b = [s for s in left if not s.equals(1)], [s for s in right if not s.equals(1)]
    out: list[Size] = []
    while a and b:
        x, y = a[0], b[0]
        if x == y:
            out.append(x)
            a, b = a[1:], b[1:]
        elif x.divides(y) and not x.equals(1):
            out.append(x)
            a, b = a[1:], [y // x, *b[1:]]
        elif y.divides(x):
            out.append(y)
            a, b = [x // y, *a[1:]], b[1:]
        else:
            return None
    return out if not a and not b else None


@dataclass(frozen=True, eq=False)
class Loop:
    """One loop of a nest. ``reduced`` marks a loop over which the region reduces."""

    name: str
    extent: Size
    reduced: bool = False


@dataclass(frozen=True)
class Affine:
    """``offset + sum(coefficient * loop)``, hashable, so that equal indices are recognised."""

    offset: Size
    terms: tuple[tuple[Loop, Size], ...] = field(default=())

    @classmethod
    def of(cls, loop: Loop) -> Affine:
        """The loop variable itself."""
        n = len(loop.extent.values)
        return cls(Size.const(0, n), ((loop, Size.const(1, n)),))

    @classmethod
    def zero(cls, variants: int) -> Affine:
        """The index 0."""
        return cls(Size.const(0, variants))

    def coefficient(self, loop: Loop) -> Size:
        """The factor of ``loop``; 0 if it does not occur."""
        for other, size in self.terms:
            if other is loop:
                return size
        return Size.const(0, len(self.offset.values))

    @property
    def loops(self) -> frozenset[Loop]:
        """The loops that the index depends on."""
        return frozenset(loop for loop, _ in self.terms)

    @property
    def range(self) -> tuple[Size, Size]:
        """The least and the greatest value."""
        first = last = self.offset
        for loop, size in self.terms:
            reach = (loop.extent - 1) * size
            first = first + Size(tuple(min(r, 0) for r in reach.values))
            last = last + Size(tuple(max(r, 0) for r in reach.values))
        return first, last

    def scaled(self, factor: Size) -> Affine:
        """The index times a size."""
        return _affine(self.offset * factor, {loop: size * factor for loop, size in self.terms})

    def plus(self, other: Affine) -> Affine:
        """The sum of two indices."""
        terms = dict(self.terms)
        for loop, size in other.terms:
            terms[loop] = terms[loop] + size if loop in terms else size
        return _affine(self.offset + other.offset, terms)


def _affine(offset: Size, terms: dict[Loop, Size]) -> Affine:
    kept = sorted(((lp, s) for lp, s in terms.items() if any(s.values)), key=lambda item: item[0].name)
    return Affine(offset, tuple(kept))


def linearise(index: Sequence[Affine], shape: Sequence[Size], variants: int) -> Affine:
    """Position of an element in a row-major tensor."""
    total = Affine.zero(variants)
    for entry, stride in zip(index, contiguous_strides(shape, variants), strict=True):
        total = total.plus(entry.scaled(stride))
    return total


def delinearise(position: Affine, shape: Sequence[Size], variants: int) -> list[Affine] | None:
    """The index of a row-major position, or None where it is not affine in the loops at hand."""
    index: list[Affine] = []
    rest = position
    for size in reversed(shape[1:]):
        split = _divmod(rest, size, variants)
        if split is None:
            return None
        rest, inner = split
        index.append(inner)
    if shape:
        index.append(rest)
    return index[::-1]


def _divmod(position: Affine, size: Size, variants: int) -> tuple[Affine, Affine] | None:
    if size.equals(1):
        return position, Affine.zero(variants)
    outer: dict[Loop, Size] = {}
    inner: dict[Loop, Size] = {}
    for loop, coefficient in position.terms:
        if size.divides(coefficient):
            outer[loop] = coefficient // size
        else:
            inner[loop] = coefficient
    high, low = position.offset // size, position.offset - (position.offset // size) * size
    first, last = _affine(low, inner).range
    if any(f < 0 or n >= s for f, n, s in zip(first.values, last.values, size.values, strict=True)):
        return None
    return _affine(high, outer), _affine(low, inner)
