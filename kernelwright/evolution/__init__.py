"""Evolutionary search over kernels: islands of elites in measured cells, races for places, a bandit on operators."""

from __future__ import annotations

from kernelwright.evolution._axes import Value, axes_named
from kernelwright.evolution._cost_model import Example, Learned, features_of, learn, static_metrics
from kernelwright.evolution._knob_operator import Ranks
from kernelwright.evolution._knobs import Rank, Sampler
from kernelwright.evolution._library import Library, MeasuredMove, Near
from kernelwright.evolution._plan import IslandPlan, SearchPlan
from kernelwright.evolution._search import Moves, Search
from kernelwright.evolution._selection import Choice, contrast
from kernelwright.evolution._similarity import closeness
from kernelwright.evolution._strategy import Evolution
from kernelwright.evolution._tuning import Tuning, in_words

__all__ = [
    "Choice",
    "Evolution",
    "Example",
    "IslandPlan",
    "Learned",
    "Library",
    "MeasuredMove",
    "Moves",
    "Near",
    "Rank",
    "Ranks",
    "Sampler",
    "Search",
    "SearchPlan",
    "Tuning",
    "Value",
    "axes_named",
    "closeness",
    "contrast",
    "features_of",
    "in_words",
    "learn",
    "static_metrics",
]
