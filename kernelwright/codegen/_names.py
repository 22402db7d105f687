"""How sizes and numbers are written: in C++ as literals or kernel arguments, in Python as expressions over shapes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from kernelwright.codegen._graph import Scalar
from kernelwright.codegen._size import Affine, Loop, Size

_ATOM = re.compile(r"-?[\w.]+(\[[^\[\]]*\])?$")


def atom(text: str) -> str:
    """``text`` in parentheses, unless it already binds tighter than any operator."""
    return text if _ATOM.match(text) or _enclosed(text) else f"({text})"


def _enclosed(text: str) -> bool:
    """True for ``(...)`` and ``name(...)`` whose first bracket closes at the very end."""
    head = re.match(r"[\w:]*\(", text)
    if head is None or not text.endswith(")"):
        return False
    depth = 0
    for position, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0 and char == ")":
            return position == len(text) - 1
    return False


def literal(value: float | int | bool, dtype: str) -> str:
    """A C++ literal of a dtype."""
    if dtype == "bool" or isinstance(value, bool):
        return "true" if value else "false"
    if "float" in dtype:
        number = float(value)
        if math.isnan(number):
            return "NAN"
        if math.isinf(number):
            return "INFINITY" if number > 0 else "-INFINITY"
        text = repr(number)
        if dtype == "float64":
            return text
        short = f"{number:.9g}"
        text = short if len(short) < len(text) else text
        return (text if any(c in text for c in ".e") else text + ".0") + "f"
    return str(int(value))


class KernelSizes:
    """Sizes of one C++ function: constants are literals, the others become ``int64_t`` arguments."""

    def __init__(self) -> None:
        self.arguments: dict[Size, str] = {}
        self.derived: dict[Size, str] = {}

    def name(self, size: Size, preferred: str) -> str:
        """The expression of a size. If it must be an argument, the argument is named after ``preferred``."""
        if size.is_const:
            return str(size.timed)
        if size not in self.arguments and size not in self.derived:
            taken = {*self.arguments.values(), *self.derived.values()}
            unique, n = preferred, 2
            while unique in taken:
                unique, n = f"{preferred}{n}", n + 1
            self.arguments[size] = unique
        return self.arguments.get(size) or self.derived[size]

    def expr(self, size: Size, preferred: str = "stride") -> str:
        """The expression of a size, composed from known ones where that is possible."""
        if size.is_const or size in self.arguments or size in self.derived:
            return self.name(size, preferred)
        known = {**self.arguments, **self.derived}
        for base, text in known.items():
            if base.divides(size):
                factor = size // base
                if factor.is_const:
                    return f"({text} * {factor.timed})"
                if factor in known:
                    return f"({text} * {known[factor]})"
            if (size - base).is_const:
                delta = (size - base).timed
                return f"({text} {'+' if delta >= 0 else '-'} {abs(delta)})"
        return self.name(size, preferred)

    def affine(self, position: Affine, variables: dict[Loop, str], *, offset: bool) -> str:
        """The part of an index that runs over ``variables``, as text; empty if no term does."""
        parts = []
        for loop, coefficient in position.terms:
            if loop in variables:
                factor = self.expr(coefficient)
                parts.append(variables[loop] if factor == "1" else f"{variables[loop]} * {factor}")
        if offset and any(position.offset.values):
            parts.append(self.expr(position.offset, "offset"))
        return " + ".join(parts)


class ForwardSizes:
    """Sizes in the generated ``forward``: read from the shapes of its tensors, or looked up by variant."""

    def __init__(self, atoms: Iterable[tuple[str, Size]], variants: int) -> None:
        self.variants = variants
        self.atoms: dict[Size, str] = {}
        for text, size in atoms:
            if not size.is_const:
                self.atoms.setdefault(size, text)
        self.used_variant = False

    def expr(self, size: Size) -> str:
        """A Python expression for a size."""
        if size.is_const:
            return str(size.timed)
        if size in self.atoms:
            return self.atoms[size]
        return self._composed(size) or self._looked_up(size.values)

    def _composed(self, size: Size) -> str | None:
        """A product or quotient of known sizes. Constant multiples come last, since they may be coincidence."""
        return self._as_product(size, 3) or self._as_quotient(size) or self._with_constant(size)

    def _as_product(self, size: Size, depth: int) -> str | None:
        if size in self.atoms:
            return self.atoms[size]
        for base, text in self.atoms.items():
            if depth > 1 and base.divides(size) and not (size // base).is_const:
                rest = self._as_product(size // base, depth - 1)
                if rest is not None:
                    return f"{text} * {rest}"
        return None

    def _as_quotient(self, size: Size) -> str | None:
        for base, text in self.atoms.items():
            if size.divides(base):
                divisor = base // size
                if divisor in self.atoms:
                    return f"{text} // {self.atoms[divisor]}"
        return None

    def _with_constant(self, size: Size) -> str | None:
        for base, text in self.atoms.items():
            if base.divides(size) and (size // base).is_const:
                return f"{text} * {(size // base).timed}"
            if size.divides(base) and (base // size).is_const:
                return f"{text} // {(base // size).timed}"
            if (size - base).is_const:
                delta = (size - base).timed
                return f"({text} {'+' if delta >= 0 else '-'} {abs(delta)})"
        for first, left in self.atoms.items():
            for second, right in self.atoms.items():
                whole = first * second
                if whole.divides(size) and (size // whole).is_const:
                    return f"{left} * {right} * {(size // whole).timed}"
        return None

    def _looked_up(self, values: tuple[float, ...] | tuple[int, ...]) -> str:
        self.used_variant = True
        return f"({', '.join(repr(v) for v in values)})[variant]"

    def number(self, value: float | int | bool | Scalar | Size) -> str:
        """A Python expression for a number."""
        if isinstance(value, Size):
            return f"float({self.expr(value)})"
        if isinstance(value, Scalar):
            return self._scalar(value)
        number = float(value)
        return repr(number) if math.isfinite(number) else f'float("{number}")'

    def _scalar(self, scalar: Scalar) -> str:
        if len(set(scalar.values)) == 1 or all(math.isnan(v) for v in scalar.values):
            return self.number(scalar.values[0])
        pairs = [(a * b, f"{s} * {t}") for a, s in self.atoms.items() for b, t in self.atoms.items() if s <= t]
        triples = [(a * b, f"{s} * {t}") for a, s in self.atoms.items() for b, t in pairs]
        for power, pattern in ((-1.0, "{c} / ({n})"), (-0.5, "{c} / math.sqrt({n})"), (0.5, "{c} * math.sqrt({n})")):
            singles = [
                (size + d, f"{text}{f' - {-d}' if d else ''}") for size, text in self.atoms.items() for d in (0, -1)
            ]
            for size, text in (*singles, *pairs, *triples):
                ratios = [v / float(n) ** power for v, n in zip(scalar.values, size.values, strict=True) if n > 0]
                exact = len(ratios) == self.variants and all(math.isclose(r, ratios[0], rel_tol=1e-14) for r in ratios)
                if exact:
                    constant = (
                        round(ratios[0], 12)
                        if math.isclose(ratios[0], round(ratios[0], 12), rel_tol=1e-14)
                        else ratios[0]
                    )
                    return pattern.format(c=repr(constant), n=text)
        return self._looked_up(scalar.values)
