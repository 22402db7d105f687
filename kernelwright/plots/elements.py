"""Elements of SVG as text, with everything escaped; axes, and where their ticks stand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple


def element(tag: str, *inside: str, **attributes: object) -> str:
    """One element around markup. In the name of an attribute, ``_`` stands for a hyphen, and at its end for nothing."""
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{_text(value)}"' for key, value in attributes.items())
    return f"<{tag}{given}>{''.join(inside)}</{tag}>" if inside else f"<{tag}{given}/>"


def words(text: str, x: float, y: float, anchor: str = "start", **attributes: object) -> str:
    """A text; ``anchor`` says which of its points lies at ``x``: ``start``, ``middle`` or ``end``."""
    return element("text", escape(text), x=x, y=y, text_anchor=anchor, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: object) -> str:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, **attributes)


def path(points: Sequence[tuple[float, float]]) -> str:
    """The ``points`` of a polyline."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _text(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else escape(str(value), quote=True)


class Axis(NamedTuple):
    """A linear or logarithmic axis.

    Attributes:
        low, high: the values at its ends; with ``log`` above zero.
        first, last: where on the page these are.
    """

    low: float
    high: float
    first: float
    last: float
    log: bool = False

    def at(self, value: float) -> float:
        """Where on the page a value is."""
        low, high, wanted = map(math.log, (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        return self.first + (wanted - low) / ((high - low) or 1.0) * (self.last - self.first)


def rounded(values: Sequence[float], first: float, last: float) -> tuple[Axis, list[float]]:
    """A linear axis whose ends are ticks, and its about six ticks."""
    low, high = min(values), max(values)
    step = _step(max(high - low, 1e-6 * max(abs(high), 1.0)), 6)
    begin = math.floor(low / step + 1e-9)
    end = max(math.ceil(high / step - 1e-9), begin + 1)
    ticks = [step * number for number in range(begin, end + 1)]
    return Axis(ticks[0], ticks[-1], first, last), ticks


def ticks_within(axis: Axis) -> list[float]:
    """Round values on an axis. On a logarithmic one these are 1, 1.5, 2, 3, 5 and 7 times powers of ten, if enough."""
    if axis.log:
        powers = range(math.floor(math.log10(axis.low)), math.floor(math.log10(axis.high)) + 1)
        steps = [mantissa * 10.0**power for power in powers for mantissa in (1, 1.5, 2, 3, 5, 7)]
        found = [step for step in steps if axis.low <= step <= axis.high]
        if len(found) >= 2:
            return found
    step = _step(axis.high - axis.low, 5)
    return [step * number for number in range(math.ceil(axis.low / step), math.floor(axis.high / step) + 1)]


def powers_within(axis: Axis, base: float) -> list[float]:
    """The powers of ``base`` on a logarithmic axis."""
    first, last = (math.log(value, base) for value in (axis.low, axis.high))
    return [base**power for power in range(math.ceil(first - 1e-9), math.floor(last + 1e-9) + 1)]


def _step(span: float, count: int) -> float:
    """The least of 1, 2 and 5 times a power of ten that cuts a span into at most ``count`` parts or so."""
    rough = span / count or 1.0
    unit = 10.0 ** math.floor(math.log10(rough))
    return next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * (1 - 1e-9))
