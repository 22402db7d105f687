"""Search over kernels: elites of measured kinds on islands, places that are lost only in races, operators that pay."""

from __future__ import annotations

from kernelwright.evolution._archive import Admission, Archive
from kernelwright.evolution._axes import AXES, DEFAULT_AXES, Axis, Cell, Grid, Value, axes_named, describe
from kernelwright.evolution._bandit import Arm, Bandit, Tally
from kernelwright.evolution._book import Book, Measure, Member, pooled
from kernelwright.evolution._cost_model import (
    CostModel,
    Example,
    Learned,
    features_of,
    learn,
    rank_correlation,
    static_metrics,
)
from kernelwright.evolution._knob_operator import Ranks
from kernelwright.evolution._knobs import SAMPLERS, KnobSearch, KnobSpace, Rank, Sampler, Setting
from kernelwright.evolution._library import Library, MeasuredMove, MovePlace, Near
from kernelwright.evolution._plan import USUAL_WEIGHTS, IslandPlan, SearchPlan
from kernelwright.evolution._search import Moves, Search
from kernelwright.evolution._selection import SELECTORS, Choice, contrast, selector
from kernelwright.evolution._similarity import closeness, similarity
from kernelwright.evolution._strategy import Evolution
from kernelwright.evolution._tuning import Tried, Tuning, in_words

__all__ = [
    "AXES",
    "DEFAULT_AXES",
    "SAMPLERS",
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
    "CostModel",
    "Evolution",
    "Example",
    "Grid",
    "IslandPlan",
    "KnobSearch",
    "KnobSpace",
    "Learned",
    "Library",
    "Measure",
    "MeasuredMove",
    "Member",
    "MovePlace",
    "Moves",
    "Near",
    "Rank",
    "Ranks",
    "Sampler",
    "Search",
    "SearchPlan",
    "Setting",
    "Tally",
    "Tried",
    "Tuning",
    "Value",
    "axes_named",
    "closeness",
    "contrast",
    "describe",
    "features_of",
    "in_words",
    "learn",
    "pooled",
    "rank_correlation",
    "selector",
    "similarity",
    "static_metrics",
]
