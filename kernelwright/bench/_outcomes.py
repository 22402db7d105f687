"""The input of metrics: the outcome of one sample of one problem, by any judge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Outcome(NamedTuple):
    """One sample.

    Attributes:
        problem: its name; the same for all samples of a problem.
        level: level of the problem. ``category``: category of the problem.
        sample: number of the sample, from 0.
        compiled: whether it was built. ``correct``: whether it is right.
        speedups: time of a baseline over its time, by the baseline's name, for known times.
        own_share: share of its time that it spends in kernels of its own, 0 to 1; None if unknown.
        sol: its SOL score, 0 to 1; None if unknown.
        status: the judge's status for it.
    """

    problem: str
    level: int
    category: str
    sample: int
    compiled: bool
    correct: bool
    speedups: Mapping[str, float]
    own_share: float | None = None
    sol: float | None = None
    status: str = ""
