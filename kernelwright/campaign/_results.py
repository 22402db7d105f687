"""The results of a run, and the events that report its progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pydantic import Field

from kernelwright.records import Interval, Record, Speedup, Stage, Status
from kernelwright.records.verdicts import TimedVariant

ProblemState = Literal["pending", "running", "done", "failed"]
RunStatus = Literal["running", "paused", "finished", "failed", "cancelled", "interrupted"]


class RankedKernel(Record):
    """A kernel that passed but was not timed. ``evidence`` is the compiler's data that ranks it."""

    candidate: str
    evidence: str


class RunResult(Record):
    """One row of the winners' table.

    ``candidate`` is None if nothing passed; ``reason`` then says why. ``retry`` marks a fault of the machine: a resume
    tries the problem again. If no kernel could be timed, ``ranked`` lists all kernels that passed, the best first.
    ``variant`` is the timed variant. ``too_small`` is the reason why its time is not meaningful, or empty. ``denied``
    is the reason why a measured speedup over the first baseline is not claimed, or empty.
    ``skipped`` marks a variant that is too small to time and was left alone. ``unjudged`` marks a problem that ended
    without a verdict: its reference cannot be used, or the machine or kernelwright failed on it. ``own_kernel_label``
    says whose kernel it is, and ``eligible`` whether it may stand on a board; see :class:`Verdict`.
    """

    problem: str
    state: ProblemState
    candidate: str | None = None
    evaluation: str | None = None
    stage: Stage | None = None
    status: Status | None = None
    confirmed: bool = False
    latency_ms: Interval | None = None
    speedup: dict[str, Speedup] = Field(default_factory=dict)
    own_kernel_label: Literal["kernel", "hybrid", "library"] | None = None
    eligible: bool = True
    rounds: int = 0
    seconds: float = 0.0
    sandbox: tuple[str, ...] = ()
    environment: str | None = None
    reason: str = ""
    retry: bool = False
    ranked: tuple[RankedKernel, ...] = ()
    variant: TimedVariant | None = None
    too_small: str = ""
    denied: str = ""
    skipped: bool = False
    unjudged: bool = False


class CampaignResult(Record):
    """The outcome of ``run`` or ``resume``: one row for each problem, in the order of the run.

    ``budgets`` names the budgets that the run has.
    """

    run_id: str
    status: RunStatus
    reason: str = ""
    rows: tuple[RunResult, ...] = ()
    seconds: float = 0.0
    budgets: tuple[str, ...] = ()

    @property
    def all_won(self) -> bool:
        """True if every problem that was worked on has a candidate that passed."""
        return all(row.candidate is not None or row.skipped for row in self.rows)

    @property
    def unjudged(self) -> tuple[RunResult, ...]:
        """Rows of problems that ended without a verdict."""
        return tuple(row for row in self.rows if row.unjudged)


EventKind = Literal[
    "run-started",
    "problem-started",
    "stage",
    "proposed",
    "judged",
    "advised",
    "confirmed",
    "problem-finished",
    "note",
    "stopping",
    "awaiting",
    "writing",
]


class CampaignEvent(NamedTuple):
    """One step of progress, for display. ``data`` is plain JSON; its keys depend on ``kind``."""

    kind: EventKind
    problem: str
    data: Mapping[str, Any]
