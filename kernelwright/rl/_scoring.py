"""What is asked of whoever scores kernels, and what comes back: plain records, so that they travel as JSON.

A scorer is local (:class:`kernelwright.rl.LocalScorer`, with the referee in this process) or a server elsewhere
(:class:`kernelwright.rl.RemoteScorer`). A trainer sees no more of either than this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from pydantic import Field, field_validator

from kernelwright.records import Backend, Record, Status

MOST_SOURCE_CHARACTERS = 1_000_000
MOST_FEEDBACK_CHARACTERS = 20_000
MOST_REWARD = 1e6  # in size; what lies beyond it was no measurement


class ScoreRequest(Record):
    """A kernel to be scored.

    Attributes:
        problem: its id, as ``kernelwright problems list`` has it, sizes included.
        source: the candidate file.
        author: who wrote it, as the store keeps it.
        note: the author's own words, cut to what the store takes.
    """

    problem: str = Field(min_length=1, max_length=300)
    source: str = Field(max_length=MOST_SOURCE_CHARACTERS)
    backend: Backend = "cpp"
    author: str = Field(default="policy", max_length=120)
    note: str = Field(default="", max_length=4_000)


class Scored(Record):
    """What a kernel earned.

    Attributes:
        reward: by the formula that the scorer was opened with; None where it gives no score (CUDA-L1, whose runs
            varied too much), or where the machine failed and nothing is known about the kernel.
        status: of the verdict; None where the machine failed.
        candidate: the kernel's hash.
        speedup: over eager, the median; None where it was not timed.
        passed: whether it is right.
        again: whether this kernel had been judged before in this run, and this is that verdict.
        feedback: what an author may be told: status, reason, times; never an expected value of the check.
        fault: of the machine, where there was one.
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
            UsageError: an unknown problem.
            RewardServerError: a remote scorer that cannot be reached for longer than one is willing to wait.
        """
        ...
