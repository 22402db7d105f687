"""What metrics are computed from: one sample of one problem, judged by whomever."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Outcome(NamedTuple):
    """One sample.

    Attributes:
        problem: its name; the same for all samples of a problem.
        level: of the problem. ``category``: of the problem.
        sample: number of the sample, from 0.
        compiled: it was built, and ran. ``correct``: and is right.
        speedups: time of a baseline over its time, by the baseline's name; those that are known.
        own_share: of the time that it spends in kernels of its own, 0 to 1; None where nobody knows.
        sol: its SOL score, 0 to 1; None where nobody knows.
        status: what the judge called it.
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
