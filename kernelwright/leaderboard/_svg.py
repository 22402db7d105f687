"""Plots as SVG that is part of a page. All colours come from the page's style sheet, by classes; texts are escaped."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import NamedTuple

from markupsafe import Markup

WIDTH, HEIGHT = 640, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 14, 36
_BINS = 40


class Series(NamedTuple):
    """Values with a name."""

    name: str
    values: Sequence[float]


class Node(NamedTuple):
    """A kernel in a lineage: its name, where it leads, what is said of it, and whether it is the one that is shown."""

    key: str
    label: str
    href: str
    note: str
    current: bool = False


class Ceiling(NamedTuple):
    """A roofline: what a machine does at most."""

    gflop_s: float
    gb_s: float
    name: str = "this machine"


def histogram(
    series: Sequence[Series], label: str, title: str, *, log: bool = False, mark: float | None = None
) -> Markup:
    """How values are distributed, one row of bars for each series, on one axis.

    Args:
        log: the axis is logarithmic. ``mark``: a value with a line of its own.
    """
    values = [value for one in series for value in one.values if math.isfinite(value) and (value > 0 or not log)]
    if not values:
        return Markup("")
    to = math.log if log else float
    low, high = min(map(to, values)), max(map(to, values))
    if mark is not None and (mark > 0 or not log):
        low, high = min(low, to(mark)), max(high, to(mark))
    margin = (high - low) * 0.03 or (abs(low) * 0.05 or 0.05)
    low, high = low - margin, high + margin
    row = 74
    height = _TOP + row * len(series) + _BOTTOM
    across = _scale(low, high, _LEFT, WIDTH - _RIGHT)
    parts = []
    for number, one in enumerate(series):
        base = _TOP + row * (number + 1)
        counts = [0] * _BINS
        for value in one.values:
            if math.isfinite(value) and (value > 0 or not log):
                counts[min(_BINS - 1, int((to(value) - low) / (high - low) * _BINS))] += 1
        most = max(counts) or 1
        width = (WIDTH - _LEFT - _RIGHT) / _BINS
        for place, count in enumerate(counts):
            if count:
                tall = (row - 22) * count / most
                parts.append(
                    f'<rect class="bar series-{number % 8}" x="{_LEFT + place * width:.1f}" y="{base - tall:.1f}" '
                    f'width="{max(width - 1, 1):.1f}" height="{tall:.1f}"><title>{count}</title></rect>'
                )
        parts.append(f'<line class="axis" x1="{_LEFT}" y1="{base}" x2="{WIDTH - _RIGHT}" y2="{base}"/>')
        parts.append(_text(_LEFT, base - row + 14, f"{one.name} ({len(one.values)})", "start"))
    parts += _ticks(low, high, across, height - _BOTTOM, label, _exp if log else None)
    if mark is not None:
        at = across(to(mark))
        parts.append(f'<line class="mark" x1="{at:.1f}" y1="{_TOP}" x2="{at:.1f}" y2="{height - _BOTTOM}"/>')
    return _svg(parts, height, title)


def roofline(intensity: float, gflop_s: float, ceiling: Ceiling, title: str) -> Markup:
    """Where a kernel lies under a machine's roof (Williams, Waterman and Patterson, CACM 52(4), 2009).

    Args:
        intensity: operations for each byte moved. ``gflop_s``: operations that it does in a second, in 10^9.
    """
    if min(intensity, gflop_s, ceiling.gflop_s, ceiling.gb_s) <= 0:
        return Markup("")
    ridge = ceiling.gflop_s / ceiling.gb_s
    low, high = math.log10(min(intensity, ridge) / 4), math.log10(max(intensity, ridge) * 4)
    top = math.log10(ceiling.gflop_s * 2)
    bottom = math.log10(min(gflop_s, ceiling.gb_s * 10**low) / 2)
    across, up = _scale(low, high, _LEFT, WIDTH - _RIGHT), _scale(bottom, top, HEIGHT - _BOTTOM, _TOP)
    roof = [(10**low, ceiling.gb_s * 10**low), (ridge, ceiling.gflop_s), (10**high, ceiling.gflop_s)]
    line = " ".join(f"{across(math.log10(x)):.1f},{up(math.log10(y)):.1f}" for x, y in roof)
    x, y = across(math.log10(intensity)), up(math.log10(gflop_s))
    limit = up(math.log10(min(ceiling.gflop_s, ceiling.gb_s * intensity)))
    parts = [
        *_ticks(low, high, across, HEIGHT - _BOTTOM, "operations per byte", lambda v: 10**v, decades=True),
        *_levels(bottom, top, up, "GFLOP/s"),
        f'<polyline class="ceiling" points="{line}"/>',
        _text(
            across(math.log10(ridge)) + 6,
            up(math.log10(ceiling.gflop_s)) - 5,
            f"{ceiling.gflop_s:.0f} GFLOP/s",
            "start",
        ),
        _text(_LEFT + 14, up(math.log10(ceiling.gb_s * 10**low)) + 2, f"{ceiling.gb_s:.1f} GB/s", "start"),
        f'<line class="mark" x1="{x:.1f}" y1="{y:.1f}" x2="{x:.1f}" y2="{limit:.1f}"/>',
        f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="5"><title>{gflop_s:.3g} GFLOP/s</title></circle>',
        _text(x + 9, y + 4, f"{gflop_s:.3g} GFLOP/s", "start"),
    ]
    return _svg(parts, HEIGHT, title)


def lineage(generations: Sequence[Sequence[Node]], edges: Sequence[tuple[str, str]], title: str) -> Markup:
    """Kernels from the oldest ancestors to the youngest descendants, a row for each generation, with arrows."""
    if not generations:
        return Markup("")
    wide = max(len(row) for row in generations)
    box, gap, tall = 130, 16, 64
    width = max(WIDTH, _LEFT + wide * (box + gap))
    places: dict[str, tuple[float, float]] = {}
    for depth, row in enumerate(generations):
        left = (width - len(row) * (box + gap) + gap) / 2
        for number, node in enumerate(row):
            places[node.key] = (left + number * (box + gap), 10 + depth * tall)
    parts = []
    for parent, child in edges:
        if parent in places and child in places:
            (x1, y1), (x2, y2) = places[parent], places[child]
            parts.append(
                f'<path class="edge" d="M{x1 + box / 2:.1f},{y1 + 36:.1f} C{x1 + box / 2:.1f},{y1 + 52:.1f} '
                f'{x2 + box / 2:.1f},{y2 - 14:.1f} {x2 + box / 2:.1f},{y2:.1f}"/>'
            )
    for row in generations:
        for node in row:
            x, y = places[node.key]
            kind = "node node-current" if node.current else "node"
            inside = (
                f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{box}" height="36" rx="6"/>'
                f"{_text(x + box / 2, y + 15, node.label, 'middle')}{_text(x + box / 2, y + 29, node.note, 'middle')}"
            )
            parts.append(f'<a href="{escape(node.href, quote=True)}">{inside}</a>' if node.href else inside)
    return _svg(parts, 10 + tall * len(generations), title, width, role="group")


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = (high - low) or 1.0
    return lambda value: start + (value - low) / span * (end - start)


def _exp(value: float) -> float:
    """The exponential; of what is beyond all floats, the greatest that there is."""
    return math.exp(min(value, 709.0))


def _ticks(
    low: float,
    high: float,
    across: Callable[[float], float],
    y: float,
    label: str,
    back: Callable[[float], float] | None,
    *,
    decades: bool = False,
) -> list[str]:
    values = _nice(low, high, decades=decades, back=back)
    parts = [f'<line class="axis" x1="{_LEFT}" y1="{y}" x2="{WIDTH - _RIGHT}" y2="{y}"/>']
    for place, value in values:
        x = across(place)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{y}"/>')
        parts.append(_text(x, y + 14, f"{value:.4g}", "middle"))
    parts.append(_text((_LEFT + WIDTH - _RIGHT) / 2, y + 30, label, "middle"))
    return parts


def _levels(low: float, high: float, up: Callable[[float], float], label: str) -> list[str]:
    parts = []
    for power in range(math.ceil(low), math.floor(high) + 1):
        y = up(power)
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}"/>')
        parts.append(_text(_LEFT - 6, y + 4, f"{10.0**power:g}", "end"))
    return [*parts, _text(4, _TOP - 2, label, "start")]


def _nice(
    low: float, high: float, *, decades: bool, back: Callable[[float], float] | None
) -> list[tuple[float, float]]:
    """Where ticks stand on the axis, and what they say."""
    if decades and high - low >= 1:
        return [(power, 10.0**power) for power in range(math.ceil(low), math.floor(high) + 1)]
    if back is not None and not decades:  # a logarithmic axis: round numbers between
        first, last = back(low), back(high)
        steps = [mantissa * 10.0**power for power in range(-9, 10) for mantissa in (1, 1.5, 2, 3, 5, 7)]
        found = [(math.log(step), step) for step in steps if first <= step <= last]
        if len(found) >= 2:
            return found
        low_, high_ = first, last
        return [(math.log(value), value) for value in _round_steps(low_, high_)]
    return [(value, back(value) if back else value) for value in _round_steps(low, high)]


def _round_steps(low: float, high: float) -> list[float]:
    step = 10.0 ** math.floor(math.log10((high - low) / 4)) if high > low else 1.0
    while (high - low) / step > 7:
        step *= 2 if round(step / 10.0 ** math.floor(math.log10(step))) != 2 else 2.5
    first = math.ceil(low / step)
    return [number * step for number in range(first, math.floor(high / step) + 1)]


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text class="label" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(parts: Sequence[str], height: float, title: str, width: float = WIDTH, role: str = "img") -> Markup:
    wide = f' class="wide" width="{width:.0f}"' if width > WIDTH else ""
    return Markup(
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}"{wide} role="{role}" aria-label="{escape(title, quote=True)}">'
        f"{''.join(parts)}</svg>"
    )


def by_role(samples: Mapping[str, Sequence[float]]) -> list[Series]:
    """Samples as series, the candidate's first."""
    return [Series(role, samples[role]) for role in sorted(samples, key=lambda role: (role != "candidate", role))]
