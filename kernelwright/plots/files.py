"""Plots that are files of their own: dark on white, with a title or a legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from kernelwright.plots.elements import Axis, element, line, path, powers_within, rounded, words

WIDTH, HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 44, 52  # margins
_COLOURS = ("#1f6feb", "#d9730d", "#2da44e", "#8250df", "#cf222e", "#475569")
_GRID, _AXIS = "#dddddd", "#888888"
_BAR, _GAP = 18, 8
_LEAST_SPAN = 2.0  # an axis of speedups reaches at least from 1/2 to 2

Points = Sequence[tuple[float, float]]


def curves_svg(
    lines: Mapping[str, Points],
    *,
    across: str,
    up: str,
    log2: bool = False,
    steps: bool = False,
    unit: str = "",
    mark: float | None = None,
    reach: Sequence[float] = (),
) -> str:
    """Lines by their names.

    Args:
        lines: points (x, y) of each, in ascending order of x.
        across, up: what the axes are called.
        log2: the axis across is logarithmic, with ticks at powers of two, and all x are above zero.
        steps: each y holds until the next x, and the last one to the end of the axis.
        unit: written behind each number of the axis that goes up.
        mark: a value on that axis with a dashed line of its own.
        reach: values that this axis has as well, whatever the lines reach.

    Raises:
        ValueError: no line, or one without points.
    """
    if not lines or not all(lines.values()):
        raise ValueError("every line needs a point")
    places = [point[0] for points in lines.values() for point in points]
    heights = [point[1] for points in lines.values() for point in points]
    y, levels = rounded([*heights, *reach, *([] if mark is None else [mark])], HEIGHT - _BOTTOM, _TOP)
    if log2:
        x = Axis(min(places), max(max(places), 1.01 * min(places)), _LEFT, WIDTH - _RIGHT, log=True)
        marks = powers_within(x, 2.0)
    else:
        x, marks = rounded(places, _LEFT, WIDTH - _RIGHT)
    parts = [*_levels(y, levels, unit, mark), *_marks(x, marks), *_names(across, up)]
    for number, (name, points) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        drawn = _held(points, x.high) if steps else points
        shown = path([(x.at(a), y.at(b)) for a, b in drawn])
        parts.append(element("polyline", points=shown, fill="none", stroke=colour, stroke_width=2))
        parts += _legend(number, len(lines), name, colour)
    return _file(parts, HEIGHT, up)


def dots_svg(speedups: Mapping[str, float], title: str) -> str:
    """Speedups in ascending order, a dot for each on a logarithmic axis; its name shows under the pointer."""
    ordered = sorted(speedups.items(), key=lambda item: item[1])
    y = speedup_axis(list(speedups.values()), HEIGHT - _BOTTOM, _TOP)
    x = Axis(0, max(len(ordered) - 1, 1), _LEFT + 8, WIDTH - _RIGHT - 8)
    parts = [_title(title)]
    for level in powers_within(y, 2.0):
        at = y.at(level)
        parts.append(line(_LEFT, at, WIDTH - _RIGHT, at, stroke=_AXIS if level == 1 else _GRID))
        parts.append(words(f"{level:g}x", _LEFT - 8, at + 4, "end"))
    for number, (name, speedup) in enumerate(ordered):
        hint = element("title", escape(f"{name}: {speedup:.2f}x"))
        colour = _COLOURS[0] if speedup >= 1 else _COLOURS[1]
        parts.append(element("circle", hint, cx=x.at(number), cy=y.at(speedup), r=3.5, fill=colour))
    counted = f"{len(ordered)} problem{'s' * (len(ordered) != 1)} with a time, slowest first"
    parts.append(words(counted, WIDTH / 2, HEIGHT - 12, "middle"))
    return _file(parts, HEIGHT, title)


def bars_svg(counts: Mapping[str, int], title: str) -> str:
    """A bar for each name, as long as its count; that of ``PASSED`` is green."""
    left, height = 190, _TOP + (_BAR + _GAP) * max(len(counts), 1) + 12
    x = Axis(0, max(counts.values(), default=1) or 1, left, WIDTH - 60)
    parts = [_title(title)]
    for number, (name, count) in enumerate(counts.items()):
        y, end = _TOP + number * (_BAR + _GAP), x.at(count)
        colour = _COLOURS[2] if name == "PASSED" else _COLOURS[1]
        parts.append(element("rect", x=left, y=y, width=max(end - left, 1.0), height=_BAR, fill=colour, rx=2))
        parts += [words(name, left - 8, y + 13, "end"), words(str(count), end + 6, y + 13)]
    return _file(parts, height, title)


def speedup_axis(speedups: Sequence[float], first: float, last: float) -> Axis:
    """A logarithmic axis of speedups, 1 among them, a little wider than they are."""
    found = [speedup for speedup in speedups if speedup > 0]
    return Axis(min([1 / _LEAST_SPAN, *found]) / 1.08, max([_LEAST_SPAN, *found]) * 1.08, first, last, log=True)


def _held(points: Points, end: float) -> list[tuple[float, float]]:
    """The corners of steps."""
    drawn = [points[0]]
    for x, y in points[1:]:
        drawn += [(x, drawn[-1][1]), (x, y)]
    return [*drawn, (end, drawn[-1][1])]


def _levels(axis: Axis, ticks: Sequence[float], unit: str, mark: float | None) -> list[str]:
    parts = []
    for value in ticks:
        y = axis.at(value)
        parts.append(line(_LEFT, y, WIDTH - _RIGHT, y, stroke=_GRID))
        parts.append(words(f"{value:.4g}{unit}", _LEFT - 8, y + 4, "end"))
    if mark is not None:
        y = axis.at(mark)
        parts.append(line(_LEFT, y, WIDTH - _RIGHT, y, stroke=_AXIS, stroke_dasharray="4 3"))
    return parts


def _marks(axis: Axis, ticks: Sequence[float]) -> list[str]:
    bottom = HEIGHT - _BOTTOM
    parts = [line(_LEFT, bottom, WIDTH - _RIGHT, bottom, stroke=_AXIS)]
    for value in ticks:
        x = axis.at(value)
        parts += [line(x, _TOP, x, bottom, stroke=_GRID), line(x, bottom, x, bottom + 4, stroke=_AXIS)]
        parts.append(words(f"{value:g}", x, bottom + 18, "middle"))
    return parts


def _names(across: str, up: str) -> list[str]:
    height = (_TOP + HEIGHT - _BOTTOM) / 2
    return [
        words(across, (_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 12, "middle"),
        words(up, 16, height, "middle", transform=f"rotate(-90 16 {height:.1f})"),
    ]


def _legend(number: int, count: int, name: str, colour: str) -> list[str]:
    x = _LEFT + number * (WIDTH - _LEFT - _RIGHT) / count
    return [line(x, 22, x + 24, 22, stroke=colour, stroke_width=2), words(name, x + 30, 26)]


def _title(text: str) -> str:
    return words(text, WIDTH / 2, 20, "middle", font_weight=600)


def _file(parts: Sequence[str], height: int, title: str) -> str:
    paper = element("rect", width=WIDTH, height=height, fill="#ffffff")
    return element(
        "svg",
        "\n".join(["", paper, *parts, ""]),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {height}",
        role="img",
        aria_label=title,
        font_family="system-ui, sans-serif",
        font_size=12,
        fill="#222222",
    )
