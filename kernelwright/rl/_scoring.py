"""The interface to scorers of kernels: requests and results are plain records, so that they travel as JSON.

A scorer is local (:class:`kernelwright.rl.LocalScorer`, with the referee in this process) or remote
(:class:`kernelwright.rl.RemoteScorer`). Trainers use nothing else of either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from pydantic import Field, field_validator

from kernelwright.records import Backend, Record, Status

MOST_SOURCE_CHARACTERS = 1_000_000
MOST_FEEDBACK_CHARACTERS = 20_000
MOST_REWARD = 1e6  # in magnitude; a larger value was not measured


class ScoreRequest(Record):
    """A kernel to be scored.

    Attributes:
        problem: the problem's id, as ``kernelwright problems list`` shows it, sizes included.
        source: the candidate file.
        author: name of the author in the store.
        note: the author's rationale, cut to the limit of the store.
    """

    problem: str = Field(min_length=1, max_length=300)
    source: str = Field(max_length=MOST_SOURCE_CHARACTERS)
    backend: Backend = "cpp"
    author: str = Field(default="policy", max_length=120)
    note: str = Field(default="", max_length=4_000)


class Scored(Record):
    """The score of a kernel.

    Attributes:
        reward: reward by the scorer's formula. None if the formula gives no score (CUDA-L1, if the runs vary too
            much), or if the machine failed and nothing is known about the kernel.
        status: status of the verdict; None if the machine failed.
        candidate: the kernel's hash.
        speedup: median speedup over eager; None if it was not timed.
        passed: whether the kernel is right.
        again: whether the verdict is an earlier one on the same kernel in this run.
        feedback: text for the author: status, reason, times; never an expected value of the check.
        fault: the fault of the machine, if there was one.
    """

    reward: float | None
    status: Status | None
    candidate: str = Field(default="", max_length=64)
    speedup: float | None = None
    passed: bool = False
    again: bool = False
    feedback: str = Field(default="", max_length=MOST_FEEDBACK_CHARACTERS)
    fault: str = Field(default="", max_length=2_000)

    @field_validator("reward", "speedup")
    @classmethod
    def _a_number(cls, value: float | None) -> float | None:
        if value is not None and not (math.isfinite(value) and abs(value) <= MOST_REWARD):
            raise ValueError("not a finite number of a sensible size")
        return value


class Scorer(Protocol):
    """Scores kernels."""

    def score(self, requests: Sequence[ScoreRequest]) -> list[Scored]:
        """One score for each request, in their order. Kernels of one problem are judged together.

        Raises:
            UsageError: a problem is unknown.
            RewardServerError: the server of a remote scorer failed, or was away for too long.
        """
        ...
