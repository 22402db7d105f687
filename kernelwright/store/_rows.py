"""Records that only the store returns, in addition to those of :mod:`kernelwright.records`."""

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

    ``quarantined`` is the reason why it was withdrawn afterwards, or None. ``purpose`` says why it was made, and
    ``action`` records the requested and performed action (see :meth:`Store.record_evaluation`).
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
        """The judged candidate."""
        return self.evaluation.candidate

    @property
    def verdict(self) -> Verdict:
        """The referee's verdict."""
        return self.evaluation.verdict

    @property
    def environment(self) -> Environment:
        """The environment in which it was judged."""
        return self.evaluation.environment


class TriedKernel(Record):
    """One evaluation, reduced to the fields that show the effect of a change of a kernel.

    ``speedup`` is keyed by baseline, and ``rivals`` by the hash of the kernel timed beside it. ``action`` is that of
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
    """An insight of a Judge and its subject. ``bound`` is the resource that limited the kernel that the Judge saw."""

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
        number: from 0, in the order of the requests.
        candidate: the answer; None if there is none, and ``reason`` says why.
        claimed: the result of another evaluator, as it was read, or None.
    """

    problem: str
    number: int
    candidate: Candidate | None
    reason: str = ""
    claimed: Mapping[str, Any] | None = None


class BestRow(Record):
    """The best candidate of one problem in one language and environment against one baseline.

    ``variant`` is the number of the timed variant. ``inputs`` are the inputs of a call in words; empty in old records
    that lack them. ``eligible`` is False if libraries do too much of the work; then it is on no board.
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
    """One run: its configuration, its status, and the wall-clock seconds it has used."""

    id: str
    config: RunConfig
    status: RunStatus
    seconds: float
    software_version: str
    created_at: str
    updated_at: str


class RunCosts(Record):
    """The resources that a run used. ``cost_usd`` is None if the cost of any call is unknown.

    ``booked_*``: requests of unknown usage; they count with the amounts reserved for them.
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
    """The state of one problem in a run, and the version of it that the run uses."""

    problem: str
    version: str
    state: JobState
    detail: str
    updated_at: str


class Event(Record):
    """An event, in a run or (``run_id`` None) outside of runs."""

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
    """A call of a language model, and the run, step and evaluation that it belongs to."""

    id: str
    run_id: str | None
    evaluation_id: str | None
    step: int | None
    call: LLMCall
    created_at: str


class LoggedReply(Record):
    """A stored reply with its text."""

    id: str
    call: LLMCall
    text: str


class UsedReply(Record):
    """The reply that a run used at one place, and the prompt sent there."""

    problem: str
    step: int
    role: str
    sample: int
    attempt: int
    call_id: str
    prompt_sha256: str
    reused: bool


class Spending(Record):
    """The sums of a run's requests: usage of the closed ones, and reservations of the open ones.

    Costs include only requests with a known price; ``unknown`` counts the others.
    """

    tokens: int
    cost_usd: float
    open: int
    open_tokens: int
    open_cost_usd: float
    unknown: int


class RequestCount(Record):
    """The number of requests of a role with the same outcome. ``outcome`` is "reply" or names a fault.

    ``cost_usd`` is None if the cost of any of them is unknown.
    """

    role: str
    state: Literal["open", "settled", "booked", "released"]
    outcome: str
    requests: int
    tokens: int
    cost_usd: float | None


class ArchivedGenerator(Record):
    """A generator of inputs in a problem's archive. ``evidence``: the author's reason for admitting it."""

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
    """One match. ``excerpt`` quotes candidate source or a note: untrusted text, so escape it before display."""

    kind: Literal["source", "note"]
    candidate: str
    problem: str
    excerpt: str


class IntegrityReport(Record):
    """The result of ``check``. Only ``damage`` is a fault; orphaned blobs and unknown parents are not."""

    damage: tuple[str, ...]
    orphan_blobs: tuple[str, ...]
    unknown_parents: tuple[str, ...]
    counts: dict[str, int]

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damage


class MergeReport(Record):
    """The effect of merging one other store: rows added, by table, and states of runs brought up to date."""

    other: str
    added: dict[str, int]
    updated: int


class PruneReport(Record):
    """What a pruning removed, by kind, and why it kept runs that are old enough.

    ``text_bytes``: the size of the removed texts. ``store vacuum`` gives it back to the file system.
    """

    removed: dict[str, int]
    text_bytes: int
    kept_runs: dict[str, int]
