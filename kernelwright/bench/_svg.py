"""Plots of a bench as SVG text: fast_p curves, speedups of all problems, how samples ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 34, 46
_COLOURS = ("#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626", "#475569")
_BAR, _GAP = 18, 8
_FEWEST_OCTAVES = 1.0  # that an axis of speedups spans on either side of 1

Curve = Sequence[tuple[float, float]]


def fast_p_svg(curves: Mapping[str, Curve], title: str) -> str:
    """Share of problems that are correct and more than p times as fast as a baseline, over p, a line for each.

    Args:
        curves: by baseline: ascending pairs of p and share, as :attr:`Summary.curve` has them.
    """
    speedups = [p for curve in curves.values() for p, _ in curve if p > 0]
    low, high = _octaves(speedups)
    across, up = _scale(low, high, _LEFT, WIDTH - _RIGHT), _scale(0, 1, HEIGHT - _BOTTOM, _TOP)
    parts = [*_frame(title, across, up, low, high, "speedup p over the baseline", "fast_p")]
    for number, (name, curve) in enumerate(curves.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        points = [(low, curve[0][1] if curve else 0.0)]
        for p, share in curve:
            if p > 0:
                points += [(math.log2(p), points[-1][1]), (math.log2(p), share)]
        points.append((high, points[-1][1]))
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(_text(WIDTH - _RIGHT - 4, _TOP + 14 + 16 * number, f"against {name}", "end", colour))
    return _svg(parts, HEIGHT, title)


def speedups_svg(speedups: Mapping[str, float], title: str) -> str:
    """Speedups of problems in ascending order, a dot for each; its name shows under the pointer."""
    ordered = sorted(speedups.items(), key=lambda item: item[1])
    low, high = _octaves(list(speedups.values()))
    across = _scale(0, max(len(ordered) - 1, 1), _LEFT + 8, WIDTH - _RIGHT - 8)
    up = _scale(low, high, HEIGHT - _BOTTOM, _TOP)
    parts = [_text(WIDTH / 2, 20, title, "middle", weight="600")]
    for octave in range(math.ceil(low), math.floor(high) + 1):
        y = up(octave)
        parts.append(_line(_LEFT, y, WIDTH - _RIGHT, y, "#0f172a" if octave == 0 else "#cbd5e1"))
        parts.append(_text(_LEFT - 6, y + 4, f"{2.0**octave:g}x", "end"))
    for number, (name, speedup) in enumerate(ordered):
        colour = _COLOURS[0] if speedup >= 1 else _COLOURS[1]
        label = escape(f"{name}: {speedup:.2f}x")
        place = f'cx="{across(number):.1f}" cy="{up(math.log2(speedup)):.1f}"'
        parts.append(f'<circle {place} r="3.5" fill="{colour}"><title>{label}</title></circle>')
    parts.append(_text(WIDTH / 2, HEIGHT - 12, f"{len(ordered)} problems with a time, slowest first", "middle"))
    return _svg(parts, HEIGHT, title)


def bars_svg(counts: Mapping[str, int], title: str) -> str:
    """A bar for each name, as long as its count."""
    height = _TOP + (_BAR + _GAP) * max(len(counts), 1) + 12
    most = max(counts.values(), default=1)
    left = 190
    across = _scale(0, most, left, WIDTH - 60)
    parts = [_text(WIDTH / 2, 20, title, "middle", weight="600")]
    for number, (name, count) in enumerate(counts.items()):
        y = _TOP + number * (_BAR + _GAP)
        colour = _COLOURS[2] if name == "PASSED" else _COLOURS[1]
        size = f'width="{max(across(count) - left, 1):.1f}" height="{_BAR}"'
        parts.append(f'<rect x="{left}" y="{y}" {size} fill="{colour}" rx="2"/>')
        parts.append(_text(left - 8, y + 13, name, "end"))
        parts.append(_text(across(count) + 6, y + 13, str(count), "start"))
    return _svg(parts, height, title)


def _frame(
    title: str,
    across: Callable[[float], float],
    up: Callable[[float], float],
    low: float,
    high: float,
    below: str,
    beside: str,
) -> list[str]:
    parts = [_text(WIDTH / 2, 20, title, "middle", weight="600")]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(_line(_LEFT, up(share), WIDTH - _RIGHT, up(share), "#cbd5e1"))
        parts.append(_text(_LEFT - 6, up(share) + 4, f"{share:g}", "end"))
    for octave in range(math.ceil(low), math.floor(high) + 1):
        colour = "#0f172a" if octave == 0 else "#cbd5e1"
        parts.append(_line(across(octave), up(0), across(octave), up(1), colour))
        parts.append(_text(across(octave), HEIGHT - _BOTTOM + 16, f"{2.0**octave:g}", "middle"))
    parts.append(_text(WIDTH / 2, HEIGHT - 8, below, "middle"))
    middle = (up(0) + up(1)) / 2
    parts.append(
        f'<text x="14" y="{middle:.1f}" text-anchor="middle" transform="rotate(-90 14 {middle:.1f})">{beside}</text>'
    )
    return parts


def _octaves(speedups: Sequence[float]) -> tuple[float, float]:
    """Bounds of an axis of speedups, as powers of two."""
    logs = [math.log2(speedup) for speedup in speedups if speedup > 0]
    return min([-_FEWEST_OCTAVES, *logs]) - 0.1, max([_FEWEST_OCTAVES, *logs]) + 0.1


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: start + (value - low) / (high - low) * (end - start)


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#334155", weight: str = "400") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text {place} fill="{colour}">{escape(text)}</text>'


def _svg(parts: Sequence[str], height: float, title: str) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="12">'
    )
    return "\n".join([head, f'<rect width="{WIDTH}" height="{height:.0f}" fill="white"/>', *parts, "</svg>"])
