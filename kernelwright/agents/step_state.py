"""The state of a step, and the tools of its nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, TypedDict

from kernelwright.agents._ledger import Ledger
from kernelwright.agents.roles import Attempt, Coder, Judge, Purpose, StepContext, Workbench
from kernelwright.agents.scratchpad import Scratchpad
from kernelwright.agents.strategy import OneAtATime, Strategy
from kernelwright.agents.verifier import Verifier
from kernelwright.records import Advice, Backend, Candidate, Evaluation, Problem


class AttemptState(TypedDict):
    """One judged candidate in the graph's state."""

    round: int
    proposal: str
    evaluation: str
    action: dict[str, Any]
    advice: dict[str, Any] | None
    focus: str
    purpose: Purpose
    rivals: list[str]


class ProposalState(TypedDict):
    """A Coder's answer. ``proposal`` is empty if it has no candidate, this time or (``ends``) for good."""

    sample: int
    proposal: str
    action: dict[str, Any]
    reason: str
    ends: bool


class FailureState(TypedDict):
    """A role's failure in a round, with its reason."""

    round: int
    role: str
    reason: str


def gather(
    kept: list[ProposalState] | None, change: list[ProposalState] | dict[str, list[ProposalState]] | int | None
) -> list[ProposalState]:  # the channel's reducer: Coders work side by side
    """Update the waiting proposals: a list is added, a number removes that sample, None removes all.

    ``{"left": [...]}`` takes their place.
    """
    if change is None:
        return []
    if isinstance(change, dict):
        return change["left"]
    if isinstance(change, int):
        return [proposal for proposal in kept or [] if proposal["sample"] != change]
    return sorted([*(kept or []), *change], key=lambda proposal: proposal["sample"])


class StepState(TypedDict):
    """The graph's state. ``scratchpad`` holds the latest notes, ``stop`` the reason why the loop ended, or ""."""

    run_id: str
    problem_id: str
    round: int
    rounds: int
    attempts: list[AttemptState]
    proposals: Annotated[list[ProposalState], gather]
    failures: list[FailureState]
    duplicates: list[dict[str, Any]]
    fruitless: list[dict[str, Any]]
    scratchpad: str
    stop: str


class Evaluate(Protocol):
    """Judges one candidate, timed beside ``rivals`` if there are any."""

    def __call__(self, candidate: Candidate, *, rivals: tuple[Candidate, ...] = ()) -> Evaluation:
        """The evaluation of the candidate."""
        ...


@dataclass(frozen=True)
class StepTools:
    """The tools of the nodes for one problem of one run. ``judge`` is None if the run has no Judge.

    ``should_stop`` is asked after every part of a round; a reason ends the loop there. ``build_ahead``
    starts to build a candidate on cores that time nothing, and returns at once; None without such cores. ``finished``
    is asked after every round; a reason ends the problem's loop for good. ``verifier`` is asked about every candidate
    before it is judged, if there is one. ``machine_code`` builds a candidate and returns the fingerprint of its machine
    code, or ""; None to compare only texts. ``ask_ahead`` has a candidate judged that will be evaluated soon, beside
    rivals, and returns at once; None where candidates are judged one at a time. ``scratchpad`` summarises the lessons
    after every ``scratchpad_every`` rounds; 0 for never.
    """

    problem: Problem
    coder: Coder
    judge: Judge | None
    evaluate: Evaluate
    ledger: Ledger
    bench: Workbench
    backend: Backend = "cpp"  # of assignments that name none
    baseline: str = "eager"
    should_stop: Callable[[], str] = lambda: ""
    build_ahead: Callable[[Candidate], None] | None = None
    strategy: Strategy = field(default_factory=OneAtATime)
    finished: Callable[[StepContext], str] = lambda context: ""
    verifier: Verifier | None = None
    machine_code: Callable[[Candidate], str] | None = None
    ask_ahead: Callable[[Candidate, tuple[Candidate, ...]], None] | None = None
    scratchpad: Scratchpad | None = None
    scratchpad_every: int = 0
    _seen: dict[str, tuple[AttemptState, Attempt]] = field(default_factory=dict, repr=False, compare=False)

    def attempt(self, entry: AttemptState) -> Attempt:
        """The attempt for an entry of the state."""
        seen = self._seen.get(entry["evaluation"])
        if seen is None or seen[0] != entry:
            seen = self._seen[entry["evaluation"]] = entry, attempt_from(self.ledger, entry)
        return seen[1]


def attempt_from(ledger: Ledger, entry: AttemptState) -> Attempt:
    evaluation = ledger.evaluation(entry["evaluation"])
    return Attempt(
        round=entry["round"],
        evaluation_id=entry["evaluation"],
        candidate=evaluation.candidate,
        verdict=evaluation.verdict,
        action=entry["action"],
        advice=None if entry["advice"] is None else Advice.model_validate(entry["advice"]),
        focus=entry["focus"],
        artifacts=evaluation.artifacts,
        purpose=entry.get("purpose", "search"),  # a checkpoint of an earlier version has none
        rivals=tuple(entry.get("rivals", ())),
    )
