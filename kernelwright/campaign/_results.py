"""What a run leaves behind, and what it tells while it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pydantic import Field

from kernelwright.records import Interval, Record, Speedup, Stage, Status
from kernelwright.records.verdicts import TimedVariant

ProblemState = Literal["pending", "running", "done", "failed"]
RunStatus = Literal["running", "paused", "finished", "failed", "cancelled", "interrupted"]


class RankedKernel(Record):
    """A kernel that passed without a time, in the order of what the compiler says of it."""

    candidate: str
    evidence: str


class RunResult(Record):
    """One row of the winners' table.

    ``candidate`` is None where nothing passed, and ``reason`` then says why. ``retry`` marks a fault of the machine:
    a resume tries such a problem again. ``ranked`` lists all kernels that passed where none could be timed, the best
    first. ``variant`` is what was timed; ``too_small`` says why that time says nothing, where it does not; ``denied``
    why a speedup over the first baseline that was measured is not claimed;
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
    """The outcome of ``run`` or ``resume``: one row for each problem of the run, in its order.

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
        """True where every problem that was worked on has a candidate that passed."""
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
    """One step of progress, for whoever shows it. ``data`` depends on ``kind`` and is plain JSON."""

    kind: EventKind
    problem: str
    data: Mapping[str, Any]
