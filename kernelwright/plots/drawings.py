"""Drawings that are part of a page. All colours come from the page's style sheet, by classes."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import NamedTuple

from kernelwright.plots.elements import Axis, element, line, path, powers_within, ticks_within, words

WIDTH, HEIGHT = 640, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 14, 36
_BINS, _ROW = 40, 74
_BOX, _GAP, _GENERATION = 130, 16, 64


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


def histogram(series: Sequence[Series], label: str, title: str, *, log: bool = False, mark: float | None = None) -> str:
    """How values are distributed, one row of bars for each series, on one axis. Empty where no value can be drawn.

    Args:
        log: the axis is logarithmic, and values that are not above zero are left out.
        mark: a value with a line of its own.
    """
    drawn = [[value for value in one.values if math.isfinite(value) and (value > 0 or not log)] for one in series]
    if not any(drawn):
        return ""
    mark = None if mark is None or (log and mark <= 0) else mark
    every = [*(value for values in drawn for value in values), *([] if mark is None else [mark])]
    height = _TOP + _ROW * len(series) + _BOTTOM
    x = _widened(min(every), max(every), log)
    parts = []
    for number, (one, values) in enumerate(zip(series, drawn, strict=True)):
        base = _TOP + _ROW * (number + 1)
        parts += _row_of_bars(x, values, base, number)
        parts.append(line(_LEFT, base, WIDTH - _RIGHT, base, class_="axis"))
        parts.append(_label(_LEFT, base - _ROW + 14, f"{one.name} ({len(one.values)})"))
    parts += _across(x, ticks_within(x), height - _BOTTOM, label)
    if mark is not None:
        parts.append(line(x.at(mark), _TOP, x.at(mark), height - _BOTTOM, class_="mark"))
    return _drawing(parts, height, title)


def roofline(intensity: float, gflop_s: float, ceiling: Ceiling, title: str) -> str:
    """Where a kernel lies under a machine's roof (Williams, Waterman and Patterson, CACM 52(4), 2009).

    Args:
        intensity: operations for each byte moved.
        gflop_s: operations that it does in a second, in 10^9.
    """
    if min(intensity, gflop_s, ceiling.gflop_s, ceiling.gb_s) <= 0:
        return ""
    ridge = ceiling.gflop_s / ceiling.gb_s
    low, high = min(intensity, ridge) / 4, max(intensity, ridge) * 4
    x = Axis(low, high, _LEFT, WIDTH - _RIGHT, log=True)
    y = Axis(min(gflop_s, ceiling.gb_s * low) / 2, ceiling.gflop_s * 2, HEIGHT - _BOTTOM, _TOP, log=True)
    roof = [(low, ceiling.gb_s * low), (ridge, ceiling.gflop_s), (high, ceiling.gflop_s)]
    at, reached, limit = x.at(intensity), y.at(gflop_s), y.at(min(ceiling.gflop_s, ceiling.gb_s * intensity))
    hint = element("title", f"{gflop_s:.3g} GFLOP/s")
    parts = [
        *_across(x, powers_within(x, 10.0), HEIGHT - _BOTTOM, "operations per byte"),
        *_levels(y, "GFLOP/s"),
        element("polyline", class_="ceiling", points=path([(x.at(a), y.at(b)) for a, b in roof])),
        _label(x.at(ridge) + 6, y.at(ceiling.gflop_s) - 5, f"{ceiling.gflop_s:.0f} GFLOP/s"),
        _label(_LEFT + 14, y.at(ceiling.gb_s * low) + 2, f"{ceiling.gb_s:.1f} GB/s"),
        line(at, reached, at, limit, class_="mark"),
        element("circle", hint, class_="point", cx=at, cy=reached, r=5),
        _label(at + 9, reached + 4, f"{gflop_s:.3g} GFLOP/s"),
    ]
    return _drawing(parts, HEIGHT, title)


def lineage(generations: Sequence[Sequence[Node]], edges: Sequence[tuple[str, str]], title: str) -> str:
    """Kernels from the oldest ancestors to the youngest descendants, a row for each generation, with arrows."""
    if not generations:
        return ""
    width = max(WIDTH, _LEFT + max(len(row) for row in generations) * (_BOX + _GAP))
    places: dict[str, tuple[float, float]] = {}
    for depth, row in enumerate(generations):
        left = (width - len(row) * (_BOX + _GAP) + _GAP) / 2
        places |= {node.key: (left + n * (_BOX + _GAP), 10.0 + depth * _GENERATION) for n, node in enumerate(row)}
    parts = [_edge(places[parent], places[child]) for parent, child in edges if parent in places and child in places]
    parts += [_box(node, *places[node.key]) for row in generations for node in row]
    return _drawing(parts, 10 + _GENERATION * len(generations), title, width, role="group")


def _widened(low: float, high: float, log: bool) -> Axis:
    """An axis that reaches a little beyond its values on both sides."""
    if log:
        margin = (high / low) ** 0.03 if high > low else 1.05
        return Axis(low / margin, min(high * margin, sys.float_info.max), _LEFT, WIDTH - _RIGHT, log=True)
    reach = (high - low) * 0.03 or abs(low) * 0.05 or 0.05
    return Axis(low - reach, high + reach, _LEFT, WIDTH - _RIGHT)


def _row_of_bars(axis: Axis, values: Sequence[float], base: int, number: int) -> list[str]:
    width, counts = (WIDTH - _LEFT - _RIGHT) / _BINS, [0] * _BINS
    for value in values:
        counts[min(_BINS - 1, int((axis.at(value) - _LEFT) / width))] += 1
    most = max(counts) or 1
    parts = []
    for place, count in enumerate(counts):
        if count:
            tall = (_ROW - 22) * count / most
            size = {"x": _LEFT + place * width, "y": base - tall, "width": max(width - 1, 1.0), "height": tall}
            parts.append(element("rect", element("title", str(count)), class_=f"bar series-{number % 8}", **size))
    return parts


def _edge(parent: tuple[float, float], child: tuple[float, float]) -> str:
    (x1, y1), (x2, y2) = parent, child
    start, end = x1 + _BOX / 2, x2 + _BOX / 2
    bent = f"M{start:.1f},{y1 + 36:.1f} C{start:.1f},{y1 + 52:.1f} {end:.1f},{y2 - 14:.1f} {end:.1f},{y2:.1f}"
    return element("path", class_="edge", d=bent)


def _box(node: Node, x: float, y: float) -> str:
    kind, middle = "node node-current" if node.current else "node", x + _BOX / 2
    inside = element("rect", class_=kind, x=x, y=y, width=_BOX, height=36, rx=6)
    inside += _label(middle, y + 15, node.label, "middle") + _label(middle, y + 29, node.note, "middle")
    return element("a", inside, href=node.href) if node.href else inside


def _across(axis: Axis, ticks: Sequence[float], y: float, label: str) -> list[str]:
    parts = [line(_LEFT, y, WIDTH - _RIGHT, y, class_="axis")]
    for value in ticks:
        x = axis.at(value)
        parts += [line(x, _TOP, x, y, class_="grid"), _label(x, y + 14, f"{value:.4g}", "middle")]
    return [*parts, _label((_LEFT + WIDTH - _RIGHT) / 2, y + 30, label, "middle")]


def _levels(axis: Axis, label: str) -> list[str]:
    parts = []
    for power in powers_within(axis, 10.0):
        y = axis.at(power)
        parts += [line(_LEFT, y, WIDTH - _RIGHT, y, class_="grid"), _label(_LEFT - 6, y + 4, f"{power:g}", "end")]
    return [*parts, _label(4, _TOP - 2, label)]


def _label(x: float, y: float, text: str, anchor: str = "start") -> str:
    return words(text, x, y, anchor, class_="label")


def _drawing(parts: Sequence[str], height: float, title: str, width: float = WIDTH, role: str = "img") -> str:
    wide = {"class_": "wide", "width": f"{width:.0f}"} if width > WIDTH else {}
    box = f"0 0 {width:.0f} {height:.0f}"
    return element("svg", "".join(parts), viewBox=box, **wide, role=role, aria_label=title)
