"""Which keys a query can see, from the conditions under which a score is minus infinity."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kernelwright.codegen._graph import Scalar
from kernelwright.codegen._ir import Value
from kernelwright.codegen._nest import Expr, Nest
from kernelwright.codegen._size import Affine, Loop, Size

_NEGATED = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le"}


@dataclass
class Visible:
    """What holds for the keys that a query can see. A key for which some of it does not hold scores minus infinity.

    Attributes:
        lower: bounds of the keys, inclusive, each affine in the query's position.
        upper: the same from above.
        conditions: expressions without the scores, each with the truth value that it has. They depend on the key.
    """

    lower: list[Affine]
    upper: list[Affine]
    conditions: list[tuple[Expr, bool]]


def visible_keys(nest: Nest, product: Value, row: Loop, column: Loop) -> Visible:
    """What holds for the keys that a query can see, from the pointwise work on ``product``."""
    finder = _Finder(nest.variants, row, column)
    finder.scores(nest.stores[0][1])
    changing = {e for e in nest.order if e.value is product}
    for expr in nest.order:  # operands come first
        changing |= {expr} if changing & set(expr.operands) else set()
    kept = [(e, truth) for e, truth in finder.conditions if e not in changing and column in e.loops]
    return Visible(finder.lower, finder.upper, kept)


class _Finder:
    def __init__(self, variants: int, row: Loop, column: Loop) -> None:
        self.variants, self.row, self.column = variants, row, column
        self.lower: list[Affine] = []
        self.upper: list[Affine] = []
        self.conditions: list[tuple[Expr, bool]] = []

    def scores(self, arg: Any) -> None:
        """Follow a score through the operators that keep minus infinity."""
        if not isinstance(arg, Expr) or arg.kind != "op":
            return
        op, args = arg.value.op, arg.args
        if op == "where":
            for place, truth in ((1, False), (2, True)):
                if _number(args[place]) == float("-inf"):
                    self.holds(args[0], truth)
                    self.scores(args[3 - place])
        elif op == "add":
            self.scores(args[0])
            self.scores(args[1])
        elif op in ("cast", "copy"):
            self.scores(args[0])
        elif op in ("mul", "div"):
            for scaled, factor in (args, args[::-1])[: 2 if op == "mul" else 1]:
                if all(v > 0 for v in _values(factor)):
                    self.scores(scaled)

    def holds(self, condition: Any, truth: bool) -> None:
        """Note what follows for visible keys if a condition is true for them, or false."""
        if not isinstance(condition, Expr):
            return
        op, args = condition.value.op if condition.kind == "op" else condition.kind, condition.args
        if op == "not":
            self.holds(args[0], not truth)
        elif op == ("and" if truth else "or"):
            self.holds(args[0], truth)
            self.holds(args[1], truth)
        elif not (
            (op in _NEGATED and self._compare(op if truth else _NEGATED[op], args))
            or (op in ("eq", "ne") and self._chosen(args, truth == (op == "eq")))
            or (op in ("cast", "copy") and self._chosen([args[0], 0], not truth))
        ):
            self.conditions.append((condition, truth))

    def _chosen(self, args: list[Any], equal: bool) -> bool:
        """A comparison with a number of what is one of two numbers, as in ``torch.tril(torch.ones(n, n)) == 0``.

        Returns:
            Whether it is one.
        """
        for choice, other in (args, args[::-1]):
            while isinstance(choice, Expr) and choice.value.op in ("cast", "copy") and choice.kind == "op":
                choice = choice.args[0]
            number = _number(other)
            if not isinstance(choice, Expr) or choice.kind != "op" or number is None:
                continue
            if choice.value.dtype == "bool":
                self.holds(choice, (number != 0) == equal)
                return True
            if choice.value.op == "where":
                fits = [_number(one) == number for one in choice.args[1:]]
                if fits[0] != fits[1] and None not in map(_number, choice.args[1:]):
                    self.holds(choice.args[0], fits[0] == equal)
                    return True
        return False

    def _compare(self, op: str, args: list[Any]) -> bool:
        """Note a comparison of positions as a bound of the key.

        Returns:
            Whether it is one.
        """
        left, right = (self._affine(arg) for arg in args)
        if left is None or right is None:
            return False
        sign = Size.const(-1, self.variants)
        low, high = (left, right) if op in ("lt", "le") else (right, left)
        rest = low.plus(high.scaled(sign))  # rest <= 0, or rest < 0
        if op in ("lt", "gt"):
            rest = rest.plus(Affine(Size.const(1, self.variants)))
        step = rest.coefficient(self.column)
        others = tuple((lp, s) for lp, s in rest.terms if lp is not self.column)
        slopes = [s.values for lp, s in others if lp is self.row]
        if any(lp is not self.row for lp, _ in others) or any(len({v > 0 for v in slope}) > 1 for slope in slopes):
            return False
        bound = Affine(rest.offset, others)
        if step.equals(1):
            self.upper.append(bound.scaled(sign))
        elif step.equals(-1):
            self.lower.append(bound)
        return step.equals(1) or step.equals(-1)

    def _affine(self, arg: Any) -> Affine | None:
        """A position that is a sum of the row, the column and numbers; else None."""
        if isinstance(arg, Size) or (isinstance(arg, int) and not isinstance(arg, bool)):
            return Affine(arg if isinstance(arg, Size) else Size.const(arg, self.variants))
        if not isinstance(arg, Expr) or (arg.value.dtype not in ("int64", "int32")):
            return None
        if arg.kind == "iota":
            return arg.position
        op = arg.value.op
        if arg.kind != "op" or op not in ("add", "sub", "neg", "cast", "copy", "full"):
            return None
        parts = [self._affine(a) for a in arg.args[:2]]
        if any(p is None for p in parts):
            return None
        known = [p for p in parts if p is not None]
        if op in ("neg", "sub"):
            known[-1] = known[-1].scaled(Size.const(-1, self.variants))
        total = known[0]
        for part in known[1:]:
            total = total.plus(part)
        return total


def _number(arg: Any) -> float | None:
    """The number that an argument is in all variants, if it is one."""
    found = set(_values(arg))
    number = found.pop()
    return number if not found and not math.isnan(number) else None


def _values(arg: Any) -> Iterator[float]:
    """The numbers that an argument is in the variants; NaN where it is no number."""
    if isinstance(arg, Expr) and arg.kind == "op" and arg.value.op in ("full", "cast", "copy"):
        arg = arg.value.args[0] if arg.value.op == "full" else arg.args[0]
        yield from _values(arg)
    elif isinstance(arg, (Scalar, Size)):
        yield from (float(v) for v in arg.values)
    else:
        yield float(arg) if isinstance(arg, (int, float)) else float("nan")
