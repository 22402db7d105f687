"""Curves as an SVG file, drawn here: no plotting library is needed where the command line runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 44, 52  # margins
_COLOURS = ("#1f6feb", "#d9730d")
_TICKS = 5  # on the axis of values, about so many


class Line(NamedTuple):
    """Values at 1, 2, 3... with a name for the legend."""

    name: str
    values: Sequence[float]


def curves_svg(lines: Sequence[Line], *, across: str, up: str) -> str:
    """Steps over a logarithmic axis of numbers from 1; a dashed line marks 1.

    Args:
        across, up: what the axes are called.

    Raises:
        ValueError: a line has no values.
    """
    if not lines or not all(line.values for line in lines):
        raise ValueError("every line needs a value")
    frame = _Frame(max(len(line.values) for line in lines), [value for line in lines for value in line.values])
    parts = [*_grid(frame), *_labels(across, up)]
    for number, line in enumerate(lines):
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(f'<path d="{_steps(frame, line.values)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += _legend(number, line.name, colour)
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'font-family="sans-serif" font-size="12" fill="#222222">\n'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


class _Frame:
    """Where numbers and values lie on the page."""

    def __init__(self, most: int, values: Sequence[float]) -> None:
        self.most = most
        self.ticks = _ticks(min(*values, 1.0), max(*values, 1.0))
        self._low, self._high = self.ticks[0], self.ticks[-1]

    def x(self, number: float) -> float:
        share = math.log2(number) / math.log2(self.most) if self.most > 1 else 0.0
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - (value - self._low) / (self._high - self._low) * (_HEIGHT - _TOP - _BOTTOM)


def _ticks(low: float, high: float) -> list[float]:
    """Round values that span a range."""
    rough = max(high - low, 0.1) / _TICKS
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * number for number in range(first, max(last, first + 1) + 1)]


def _grid(frame: _Frame) -> list[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    for value in frame.ticks:
        y = frame.y(value)
        parts.append(f'<line x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}x</text>')
    for power in range(frame.most.bit_length()):
        x = frame.x(2**power)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}" stroke="#888888"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{2**power}</text>')
    one = frame.y(1.0)
    parts.append(
        f'<line x1="{_LEFT}" x2="{right}" y1="{one:.1f}" y2="{one:.1f}" stroke="#888888" stroke-dasharray="4 3"/>'
    )
    return parts


def _labels(across: str, up: str) -> list[str]:
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    height = (_TOP + _HEIGHT - _BOTTOM) / 2
    return [
        f'<text x="{middle:.1f}" y="{_HEIGHT - 12}" text-anchor="middle">{escape(across)}</text>',
        f'<text transform="translate(16 {height:.1f}) rotate(-90)" text-anchor="middle">{escape(up)}</text>',
    ]


def _steps(frame: _Frame, values: Sequence[float]) -> str:
    """A path that keeps each value until the next number."""
    path = [f"M{frame.x(1):.1f} {frame.y(values[0]):.1f}"]
    for number, value in enumerate(values[1:], start=2):
        path.append(f"H{frame.x(number):.1f}V{frame.y(value):.1f}")
    return "".join([*path, f"H{frame.x(frame.most):.1f}"])


def _legend(number: int, name: str, colour: str) -> list[str]:
    x = _LEFT + number * (_WIDTH - _LEFT - _RIGHT) / 2
    return [
        f'<line x1="{x:.1f}" x2="{x + 24:.1f}" y1="22" y2="22" stroke="{colour}" stroke-width="2"/>',
        f'<text x="{x + 30:.1f}" y="26">{escape(name)}</text>',
    ]
