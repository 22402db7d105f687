"""Plots: well-formed, escaped, within the page, and true to the values."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import pytest

from kernelwright.plots import Ceiling, Node, Series, bars_svg, curves_svg, dots_svg, histogram, lineage, roofline
from kernelwright.plots.elements import Axis, powers_within, rounded, ticks_within

HOSTILE = '"><script>alert(1)</script>&lt;'


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def texts(root: ElementTree.Element) -> list[str]:
    return [found.text for found in root.iter() if found.text and found.text.strip()]


def points_of(line: ElementTree.Element) -> list[tuple[float, float]]:
    return [tuple(map(float, point.split(","))) for point in line.get("points").split()]


def named(root: ElementTree.Element, tag: str) -> list[ElementTree.Element]:
    return [found for found in root.iter() if found.tag.rpartition("}")[2] == tag]


@pytest.mark.parametrize(
    "text",
    [
        curves_svg({HOSTILE: [(1, 1.0)], "b & c": [(1, 0.4), (2, 30.0)]}, across=HOSTILE, up=HOSTILE, log2=True),
        dots_svg({HOSTILE: 2.0, "p": 0.5}, HOSTILE),
        bars_svg({HOSTILE: 3, "PASSED": 0}, HOSTILE),
        histogram([Series(HOSTILE, [1.0, 2.0])], HOSTILE, HOSTILE, mark=1.5),
        roofline(1.0, 2.0, Ceiling(10.0, 5.0), HOSTILE),
        lineage(
            [[Node("a", HOSTILE, f"/?x={HOSTILE}", HOSTILE)], [Node("b", "b", "", "", True)]], [("a", "b")], HOSTILE
        ),
    ],
    ids=["curves", "dots", "bars", "histogram", "roofline", "lineage"],
)
def test_every_plot_is_well_formed_escaped_and_within_its_page(text):
    root = parsed(text)
    assert root.get("aria-label") == HOSTILE
    assert not named(root, "script")
    width, height = map(float, root.get("viewBox").split()[2:])
    for found in root.iter():
        for across in ("x", "x1", "x2", "cx"):
            assert 0 <= float(found.get(across, 0)) <= width
        for up in ("y", "y1", "y2", "cy"):
            assert 0 <= float(found.get(up, 0)) <= height
        if found.get("points"):
            assert all(0 <= x <= width and 0 <= y <= height for x, y in points_of(found))


def test_a_curve_goes_where_its_points_are():
    root = parsed(curves_svg({"a": [(0, 0.0), (5, 1.0), (10, 0.5)]}, across="n", up="share"))
    ((x0, y0), (x1, y1), (x2, y2)) = points_of(named(root, "polyline")[0])
    assert (x1 - x0) == pytest.approx(x2 - x1, abs=0.2)
    assert y0 > y2 > y1, "up is less on a page"
    assert (y0 - y2) == pytest.approx(y2 - y1, abs=0.2)


def test_steps_hold_their_value_until_the_next_one():
    root = parsed(
        curves_svg({"a": [(1, 1.0), (2, 3.0)], "b": [(1, 1.0), (8, 1.5)]}, across="n", up="x", log2=True, steps=True)
    )
    first, second = map(points_of, named(root, "polyline"))
    assert [y for _, y in first] == [first[0][1], first[0][1], first[2][1], first[2][1]]
    assert first[-1][0] == second[-1][0], "to the end of the axis"
    assert {"1", "2", "4", "8"} <= set(texts(root))


def test_a_mark_and_a_reach_are_on_the_axis():
    root = parsed(curves_svg({"a": [(1, 2.0), (2, 3.0)]}, across="n", up="speedup", unit="x", mark=1.0, reach=(5.0,)))
    assert {"1x", "5x"} <= set(texts(root))
    (dashed,) = [found for found in named(root, "line") if found.get("stroke-dasharray")]
    (one,) = [found for found in named(root, "text") if found.text == "1x"]
    assert float(dashed.get("y1")) == pytest.approx(float(one.get("y")) - 4, abs=0.2)


def test_a_curve_without_points_is_refused():
    for lines in ({}, {"a": []}):
        with pytest.raises(ValueError, match="needs a point"):
            curves_svg(lines, across="n", up="x")


def test_dots_stand_in_ascending_order_and_say_their_names():
    root = parsed(dots_svg({"slow": 0.5, "fast": 4.0, "same": 1.0}, "t"))
    circles = named(root, "circle")
    assert [named(circle, "title")[0].text for circle in circles] == ["slow: 0.50x", "same: 1.00x", "fast: 4.00x"]
    heights = [float(circle.get("cy")) for circle in circles]
    assert heights[0] - heights[1] == pytest.approx((heights[1] - heights[2]) / 2, abs=0.2), "a logarithmic axis"
    assert "3 problems with a time, slowest first" in texts(root)


def test_bars_are_as_long_as_their_counts():
    root = parsed(bars_svg({"PASSED": 4, "TIMEOUT": 2, "BUILD": 0}, "t"))
    passed, timeout, build = named(root, "rect")[1:]
    assert float(passed.get("width")) == pytest.approx(2 * float(timeout.get("width")), abs=0.2)
    assert float(build.get("width")) == 1.0
    assert passed.get("fill") != timeout.get("fill")


def test_a_histogram_counts_each_value_once():
    values = [1.0] * 5 + [2.0] * 3 + [4.0, math.inf, math.nan]
    root = parsed(histogram([Series("a", values), Series("b", [3.0])], "ms", "t", log=True))
    counts = [int(named(bar, "title")[0].text) for bar in named(root, "rect")]
    assert sorted(counts) == [1, 1, 3, 5]
    assert {"a (11)", "b (1)"} <= set(texts(root))


def test_what_cannot_be_drawn_is_an_empty_text():
    assert histogram([Series("a", [math.nan])], "ms", "t") == ""
    assert histogram([Series("a", [-1.0])], "ms", "t", log=True) == ""
    assert histogram([], "ms", "t") == ""
    assert roofline(0.0, 1.0, Ceiling(1.0, 1.0), "t") == ""
    assert lineage([], [], "t") == ""


def test_a_kernel_lies_under_its_roof():
    root = parsed(roofline(2.0, 8.0, Ceiling(100.0, 10.0), "t"))
    roof = points_of(named(root, "polyline")[0])
    (point,) = named(root, "circle")
    assert roof[0][1] > roof[1][1] == roof[2][1]
    assert roof[0][0] < float(point.get("cx")) < roof[1][0]
    (limit,) = [found for found in named(root, "line") if found.get("class") == "mark"]
    assert float(limit.get("y2")) < float(limit.get("y1")) == float(point.get("cy"))


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.0, 17.0), (0.001, 0.0012), (5.0, 5.0), (1e6, 3e9)])
def test_rounded_axes_hold_their_values_between_ticks(low, high):
    axis, ticks = rounded([low, high], 0, 100)
    assert axis.low <= low <= high <= axis.high
    assert 2 <= len(ticks) <= 9
    assert (axis.at(axis.low), axis.at(axis.high)) == (0, 100)
    assert ticks == sorted(ticks)


def test_ticks_of_a_logarithmic_axis_are_round():
    axis = Axis(0.9, 12.0, 0, 100, log=True)
    assert ticks_within(axis) == [1, 1.5, 2, 3, 5, 7, 10]
    assert powers_within(axis, 2.0) == [1, 2, 4, 8]
    narrow = Axis(1.01, 1.04, 0, 100, log=True)
    assert len(ticks_within(narrow)) >= 3
    assert all(1.01 <= tick <= 1.04 for tick in ticks_within(narrow))
