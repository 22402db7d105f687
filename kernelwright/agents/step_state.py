"""The state of a step, and what its nodes work with."""

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
    """What a Coder answered. ``proposal`` is empty where it has none: nothing more (``ends``), or none this time."""

    sample: int
    proposal: str
    action: dict[str, Any]
    reason: str
    ends: bool


class FailureState(TypedDict):
    """A role that gave nothing usable in a round."""

    round: int
    role: str
    reason: str


def gather(
    kept: list[ProposalState] | None, change: list[ProposalState] | int | None
) -> list[ProposalState]:  # the channel's reducer: Coders work side by side
    """Proposals that wait: a list joins them, a number takes that sample away, None all of them."""
    if change is None:
        return []
    if isinstance(change, int):
        return [proposal for proposal in kept or [] if proposal["sample"] != change]
    return sorted([*(kept or []), *change], key=lambda proposal: proposal["sample"])


class StepState(TypedDict):
    """The graph's state. ``scratchpad`` has the latest notes. ``stop`` says why the loop ended; empty while it runs."""

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
    """Judges one candidate, timed beside ``rivals`` where there are some."""

    def __call__(self, candidate: Candidate, *, rivals: tuple[Candidate, ...] = ()) -> Evaluation:
        """Its evaluation."""
        ...


@dataclass(frozen=True)
class StepTools:
    """What the nodes work with for one problem of one run. ``judge``: None where nobody gives advice.

    ``should_stop`` is asked after every node; a reason ends the loop there, with everything saved. ``build_ahead``
    begins to build a candidate on other cores than what is timed, and returns at once; None where there are none.
    ``finished`` is asked after every round: a reason ends the problem's loop for good. ``verifier`` is asked about
    every candidate before it is judged; None where there is none. ``machine_code`` builds a candidate and gives the
    fingerprint of what came of it, empty where there is none; None where only texts are compared. ``scratchpad`` sums
    up what was learned after every ``scratchpad_every`` rounds; 0 for never.
    """

    problem: Problem
    coder: Coder
    judge: Judge | None
    evaluate: Evaluate
    ledger: Ledger
    bench: Workbench
    backend: Backend = "cpp"  # of what names none
    baseline: str = "eager"
    should_stop: Callable[[], str] = lambda: ""
    build_ahead: Callable[[Candidate], None] | None = None
    strategy: Strategy = field(default_factory=OneAtATime)
    finished: Callable[[StepContext], str] = lambda context: ""
    verifier: Verifier | None = None
    machine_code: Callable[[Candidate], str] | None = None
    scratchpad: Scratchpad | None = None
    scratchpad_every: int = 0
    _seen: dict[str, tuple[AttemptState, Attempt]] = field(default_factory=dict, repr=False, compare=False)

    def attempt(self, entry: AttemptState) -> Attempt:
        """One of the judged candidates of a state, with its verdict."""
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
