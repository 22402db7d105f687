"""The curve of a training as an SVG file, drawn here: no plotting library is needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 720, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 24, 48, 56
_COLOURS: Final = ("#1f6feb", "#d9730d", "#2da44e", "#8250df", "#cf222e")
_TICKS: Final = 6

Points = Sequence[tuple[float, float]]


def curve_svg(lines: Mapping[str, Points], *, across: str = "verdicts", up: str = "mean reward") -> str:
    """Lines by their names, over linear axes.

    Args:
        across, up: what the axes are called.

    Raises:
        ValueError: a line has no points.
    """
    if not lines or not all(lines.values()):
        raise ValueError("every line needs a point")
    x = _Axis.over([point[0] for points in lines.values() for point in points], _LEFT, _WIDTH - _RIGHT)
    y = _Axis.over([point[1] for points in lines.values() for point in points], _HEIGHT - _BOTTOM, _TOP)
    parts = [*_across(x, across), *_up(y, up)]
    for number, (name, points) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = "M" + "L".join(f"{x.at(a):.1f} {y.at(b):.1f}" for a, b in points)
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"/>')
        parts += _legend(number, len(lines), name, colour)
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'font-family="sans-serif" font-size="12" fill="#222222">\n'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


class _Axis(NamedTuple):
    """Round values from one end of the page to the other."""

    ticks: tuple[float, ...]
    first: float
    last: float

    @classmethod
    def over(cls, values: Sequence[float], first: float, last: float) -> _Axis:
        low, high = min(values), max(values)
        rough = max(high - low, 1e-6 * max(abs(high), 1.0)) / _TICKS
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * (1 - 1e-9))
        begin, end = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        return cls(tuple(step * number for number in range(begin, max(end, begin + 1) + 1)), first, last)

    def at(self, value: float) -> float:
        share = (value - self.ticks[0]) / (self.ticks[-1] - self.ticks[0])
        return self.first + share * (self.last - self.first)


def _across(axis: _Axis, name: str) -> list[str]:
    bottom = _HEIGHT - _BOTTOM
    parts = [f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{bottom}" y2="{bottom}" stroke="#888888"/>']
    for value in axis.ticks:
        x = axis.at(value)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}" stroke="#888888"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{value:g}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    return [*parts, f'<text x="{middle:.1f}" y="{_HEIGHT - 14}" text-anchor="middle">{escape(name)}</text>']


def _up(axis: _Axis, name: str) -> list[str]:
    parts = []
    for value in axis.ticks:
        y = axis.at(value)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    turned = f'transform="translate(18 {middle:.1f}) rotate(-90)"'
    return [*parts, f'<text {turned} text-anchor="middle">{escape(name)}</text>']


def _legend(number: int, count: int, name: str, colour: str) -> list[str]:
    x = _LEFT + number * (_WIDTH - _LEFT - _RIGHT) / count
    return [
        f'<line x1="{x:.1f}" x2="{x + 24:.1f}" y1="24" y2="24" stroke="{colour}" stroke-width="2"/>',
        f'<text x="{x + 30:.1f}" y="28">{escape(name)}</text>',
    ]
