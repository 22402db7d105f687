"""What the store hands back, beside the records of :mod:`kernelwright.records`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from kernelwright.records import (
    Advice,
    Backend,
    Candidate,
    DeviceClass,
    Environment,
    Evaluation,
    InputGenerator,
    Interval,
    KnobValue,
    LLMCall,
    Record,
    RunConfig,
    Speedup,
    Status,
    Verdict,
)
from kernelwright.records.runs import Insight

RunStatus = Literal["running", "paused", "finished", "failed", "cancelled", "interrupted"]
JobState = Literal["pending", "running", "done", "failed"]


class StoredEvaluation(Record):
    """One evaluation as it was recorded.

    ``quarantined`` is the reason where it was withdrawn afterwards; ``purpose`` says why it was made, and ``action``
    what was asked for and done (see :meth:`Store.record_evaluation`).
    """

    id: str
    run_id: str | None
    step: int | None
    generation: int | None
    purpose: Literal["search", "contest", "remeasure"]
    problem_version: str
    quarantined: str | None
    created_at: str
    evaluation: Evaluation
    action: Mapping[str, Any] = {}

    @property
    def candidate(self) -> Candidate:
        """What was judged."""
        return self.evaluation.candidate

    @property
    def verdict(self) -> Verdict:
        """What the referee said."""
        return self.evaluation.verdict

    @property
    def environment(self) -> Environment:
        """Where it was judged."""
        return self.evaluation.environment


class TriedKernel(Record):
    """One evaluation, as far as it says what a change of a kernel brought.

    ``speedup`` is by baseline and ``rivals`` by the hash of what it was timed beside. ``action`` as with
    :class:`StoredEvaluation`.
    """

    id: str
    run_id: str | None
    purpose: Literal["search", "contest", "remeasure"]
    problem: str
    version: str
    environment: str
    device: str
    device_class: DeviceClass
    candidate: str
    backend: Backend
    knobs: Mapping[str, KnobValue]
    parents: tuple[str, ...]
    operator: str
    author: str
    note: str
    status: Status
    bound: str
    speedup: Mapping[str, Interval]
    rivals: Mapping[str, Interval]
    action: Mapping[str, Any]


class StoredInsight(Record):
    """Something that a Judge found out, and about what: ``bound`` is what limited the kernel that it looked at."""

    note_id: str
    run_id: str | None
    problem: str
    version: str
    backend: Backend
    device_class: DeviceClass
    bound: str
    insight: Insight


class Sample(Record):
    """One of several independent answers to a problem of a run.

    Attributes:
        number: from 0, in the order in which they were asked for.
        candidate: None where none came, and ``reason`` says why.
        claimed: what somebody else's evaluation said of it, as it was read; None where there is nothing of the kind.
    """

    problem: str
    number: int
    candidate: Candidate | None
    reason: str = ""
    claimed: Mapping[str, Any] | None = None


class BestRow(Record):
    """The best candidate of one problem in one language and environment against one baseline.

    ``variant`` is the number of the variant that was timed, ``inputs`` what a call was given, in words; empty in what
    was recorded before these were kept. ``eligible`` is False of one that libraries work for, and that no board has.
    """

    problem: str
    variant: int
    inputs: str
    environment: str
    baseline: str
    candidate: str
    backend: str
    author: str
    evaluation_id: str
    run_id: str | None
    speedup: Speedup
    latency_ms: Interval
    confirmed: bool
    eligible: bool = True
    created_at: str


class RunRow(Record):
    """One run: what was asked, how it stands, the wall-clock seconds it has used."""

    id: str
    config: RunConfig
    status: RunStatus
    seconds: float
    software_version: str
    created_at: str
    updated_at: str


class RunCosts(Record):
    """What a run used. ``cost_usd`` is None where the cost of any call is unknown.

    ``booked_*``: requests of which nobody knows what they used; they count as much as was reserved for them.
    """

    run_id: str
    seconds: float
    evaluations: int
    calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    known_cost_usd: float
    calls_of_unknown_cost: int
    booked_requests: int
    booked_tokens: int
    booked_cost_usd: float
    reused_replies: int
    cost_usd: float | None


class ProblemState(Record):
    """How far a run is with one problem, and with which version of it."""

    problem: str
    version: str
    state: JobState
    detail: str
    updated_at: str


class Event(Record):
    """Something that happened, in a run or (``run_id`` None) outside one."""

    id: str
    run_id: str | None
    kind: str
    data: Mapping[str, Any]
    created_at: str


class Note(Record):
    """A piece of advice about a candidate."""

    id: str
    candidate: str
    evaluation_id: str | None
    run_id: str | None
    step: int | None
    role: str
    advice: Advice
    created_at: str


class StoredCall(Record):
    """A call of a language model, and what it was made for."""

    id: str
    run_id: str | None
    evaluation_id: str | None
    step: int | None
    call: LLMCall
    created_at: str


class LoggedReply(Record):
    """A reply that was kept, with its text."""

    id: str
    call: LLMCall
    text: str


class UsedReply(Record):
    """Which reply a run used at which place, and the prompt that was asked there."""

    problem: str
    step: int
    role: str
    sample: int
    attempt: int
    call_id: str
    prompt_sha256: str
    reused: bool


class Spending(Record):
    """What a run's requests come to: those that are closed, and what is reserved for those that are open.

    Costs are of those whose price is known; ``unknown`` counts the others.
    """

    tokens: int
    cost_usd: float
    open: int
    open_tokens: int
    open_cost_usd: float
    unknown: int


class RequestCount(Record):
    """How many requests of a role ended in the same way; ``outcome`` is "reply" or names a fault.

    ``cost_usd`` is None where the cost of one of them is not known.
    """

    role: str
    state: Literal["open", "settled", "booked", "released"]
    outcome: str
    requests: int
    tokens: int
    cost_usd: float | None


class ArchivedGenerator(Record):
    """A generator of inputs in a problem's archive. ``evidence``: what it was admitted for, as its author says."""

    generator: InputGenerator
    author: str
    created_at: str
    evidence: dict[str, Any]


class LineageEdge(Record):
    """``child`` was made from ``parent`` by ``relation``; ``depth`` counts from the candidate asked about."""

    child: str
    parent: str
    relation: str
    depth: int


class SearchHit(Record):
    """One match. ``excerpt`` quotes candidate source or a note: text of others, to be escaped where shown."""

    kind: Literal["source", "note"]
    candidate: str
    problem: str
    excerpt: str


class IntegrityReport(Record):
    """What ``check`` found. Orphans and unknown parents are no damage; all else is."""

    damage: tuple[str, ...]
    orphan_blobs: tuple[str, ...]
    unknown_parents: tuple[str, ...]
    counts: dict[str, int]

    @property
    def ok(self) -> bool:
        """True where nothing is damaged."""
        return not self.damage
