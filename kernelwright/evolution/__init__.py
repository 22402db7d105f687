"""Search over kernels: elites of measured kinds on islands, places that are lost only in races, operators that pay."""

from __future__ import annotations

from kernelwright.evolution._archive import Admission, Archive
from kernelwright.evolution._axes import AXES, DEFAULT_AXES, Axis, Cell, Grid, Value, axes_named, describe
from kernelwright.evolution._bandit import Arm, Bandit, Tally
from kernelwright.evolution._book import Book, Measure, Member, pooled
from kernelwright.evolution._library import Library, MeasuredMove, MovePlace, Near
from kernelwright.evolution._plan import USUAL_WEIGHTS, IslandPlan, SearchPlan
from kernelwright.evolution._search import Moves, Search
from kernelwright.evolution._selection import SELECTORS, Choice, selector
from kernelwright.evolution._similarity import closeness, similarity
from kernelwright.evolution._strategy import Evolution

__all__ = [
    "AXES",
    "DEFAULT_AXES",
    "SELECTORS",
    "USUAL_WEIGHTS",
    "Admission",
    "Archive",
    "Arm",
    "Axis",
    "Bandit",
    "Book",
    "Cell",
    "Choice",
    "Evolution",
    "Grid",
    "IslandPlan",
    "Library",
    "Measure",
    "MeasuredMove",
    "Member",
    "MovePlace",
    "Moves",
    "Near",
    "Search",
    "SearchPlan",
    "Tally",
    "Value",
    "axes_named",
    "closeness",
    "describe",
    "pooled",
    "selector",
    "similarity",
]
