"""Plots as SVG text, drawn here: files that stand alone, and drawings that are part of a page."""

from __future__ import annotations

from kernelwright.plots.drawings import Ceiling, Node, Series, histogram, lineage, roofline
from kernelwright.plots.files import bars_svg, curves_svg, dots_svg, speedup_axis

__all__ = [
    "Ceiling",
    "Node",
    "Series",
    "bars_svg",
    "curves_svg",
    "dots_svg",
    "histogram",
    "lineage",
    "roofline",
    "speedup_axis",
]
