"""The state of a step, and the tools of its nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypedDict, cast

from kernelwright.agents._ledger import Ledger
from kernelwright.agents.roles import Attempt, Coder, Judge, Purpose, StepContext, Workbench
from kernelwright.agents.scratchpad import Scratchpad
from kernelwright.agents.strategy import OneAtATime, Strategy
from kernelwright.agents.verifier import Verifier
from kernelwright.records import Advice, Backend, Candidate, Evaluation, Problem


class AttemptState(TypedDict):
    """One judged candidate in the state."""

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


class StepState(TypedDict):
    """The state of a problem's loop, in plain JSON.

    ``assigned`` are the assignments of this round's Coders that have not answered, once they are chosen; ``answered``
    is the number of rounds whose Coders all have. ``scratchpad`` holds the latest notes, made before the round
    ``summarised``. ``stop`` is the reason why the loop ended, or "".
    """

    run_id: str
    problem_id: str
    round: int
    rounds: int
    attempts: list[AttemptState]
    assigned: list[dict[str, Any]]
    answered: int
    proposals: list[ProposalState]
    failures: list[FailureState]
    duplicates: list[dict[str, Any]]
    fruitless: list[dict[str, Any]]
    scratchpad: str
    summarised: int
    stop: str


def changed(state: StepState, changes: dict[str, Any]) -> StepState:
    """The state after a node's changes. Of ``proposals``, a list is added, a number removes that sample, None all."""
    if "proposals" in changes:
        kept, change = state["proposals"], changes["proposals"]
        if change is None:
            kept = []
        elif isinstance(change, int):
            kept = [proposal for proposal in kept if proposal["sample"] != change]
        else:
            kept = sorted([*kept, *change], key=lambda proposal: proposal["sample"])
        changes = {**changes, "proposals": kept}
    return cast(StepState, {**state, **changes})


class Judged(NamedTuple):
    """A candidate's evaluation, and the fingerprint of its machine code, "" if that is unknown.

    ``evaluation`` is None if the machine code was known, so that nothing was judged.
    """

    evaluation: Evaluation | None
    machine_code: str = ""


class Evaluate(Protocol):
    """Judges one candidate, timed beside ``rivals`` if there are any.

    ``known`` are fingerprints of machine code: a candidate that has one of them is not judged. With None, no
    fingerprint is asked for.
    """

    def __call__(
        self, candidate: Candidate, *, rivals: tuple[Candidate, ...] = (), known: frozenset[str] | None = None
    ) -> Judged:
        """The outcome."""
        ...


@dataclass(frozen=True)
class StepTools:
    """The tools of the nodes for one problem of one run. ``judge`` is None if the run has no Judge.

    ``should_stop`` is asked after every part of a round; a reason ends the loop there. ``build_ahead``
    starts to build a candidate on cores that time nothing, and returns at once; None without such cores. ``finished``
    is asked after every round; a reason ends the problem's loop for good. ``verifier`` is asked about every candidate
    before it is judged, if there is one. ``ask_ahead`` has a candidate judged that will be evaluated soon, beside
    rivals and with known fingerprints, and returns at once; None where candidates are judged one at a time.
    ``scratchpad`` summarises the lessons after every ``scratchpad_every`` rounds; 0 for never.
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
    ask_ahead: Callable[[Candidate, tuple[Candidate, ...], frozenset[str]], None] | None = None
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
        purpose=entry["purpose"],
        rivals=tuple(entry["rivals"]),
    )
