"""The nodes of the step as plain functions: state in, changes out. They know nothing of LangGraph.

The state is plain JSON, and kernels live in the ledger under their keys. A node may run twice when a process was
killed in the middle of it; each is written so that the second time gives the same result and repeats no evaluation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict

from kernelwright.agents._ledger import Ledger
from kernelwright.agents._roles import Attempt, Coder, Foresees, Judge, Proposal, StepContext, Workbench
from kernelwright.errors import KernelwrightError
from kernelwright.records import Advice, Backend, Candidate, Evaluation, LLMCall, Problem


class AttemptState(TypedDict):
    """One round in the graph's state."""

    round: int
    proposal: str
    evaluation: str
    action: dict[str, Any]
    advice: dict[str, Any] | None


class PendingState(TypedDict):
    """A proposal that is not judged yet."""

    proposal: str
    action: dict[str, Any]
    calls: list[dict[str, Any]]


class StepState(TypedDict):
    """The graph's state. ``stop`` says why the loop ended; empty while it runs."""

    run_id: str
    problem_id: str
    round: int
    rounds: int
    attempts: list[AttemptState]
    pending: PendingState | None
    stop: str


@dataclass(frozen=True)
class StepTools:
    """What the nodes work with for one problem of one run.

    ``should_stop`` is asked after every node; a reason ends the loop there, with everything saved. ``build_ahead``
    begins to build a candidate on other cores than what is timed, and returns at once; None where there are none.
    """

    problem: Problem
    coder: Coder
    judge: Judge
    evaluate: Callable[[Candidate], Evaluation]
    ledger: Ledger
    bench: Workbench
    backend: Backend = "cpp"
    baseline: str = "eager"
    should_stop: Callable[[], str] = lambda: ""
    build_ahead: Callable[[Candidate], None] | None = None


def initial_state(run_id: str, problem_id: str, rounds: int) -> StepState:
    """The state before the first round."""
    return StepState(run_id=run_id, problem_id=problem_id, round=0, rounds=rounds, attempts=[], pending=None, stop="")


def context_of(tools: StepTools, state: StepState) -> StepContext:
    """What the roles may see, rebuilt from the ledger."""
    return StepContext(
        problem=tools.problem,
        backend=tools.backend,
        round=state["round"],
        rounds=state["rounds"],
        bench=tools.bench,
        baseline=tools.baseline,
        attempts=attempts_of(tools.ledger, state),
    )


def attempts_of(ledger: Ledger, state: StepState) -> tuple[Attempt, ...]:
    """The finished rounds of a state, with their candidates and verdicts."""
    return tuple(_attempt(ledger, entry) for entry in state["attempts"])


def _attempt(ledger: Ledger, entry: AttemptState) -> Attempt:
    evaluation = ledger.evaluation(entry["evaluation"])
    return Attempt(
        round=entry["round"],
        evaluation_id=entry["evaluation"],
        candidate=evaluation.candidate,
        verdict=evaluation.verdict,
        action=entry["action"],
        advice=None if entry["advice"] is None else Advice.model_validate(entry["advice"]),
    )


def propose(tools: StepTools, state: StepState) -> dict[str, Any]:
    """Ask the Coder, and store its candidate before anything else happens to it."""
    proposal = tools.coder.propose(context_of(tools, state))
    if proposal.candidate is None:
        return {"pending": None, "stop": f"{tools.coder.name}: {proposal.rationale}"}
    pending = PendingState(
        proposal=tools.ledger.save_proposal(proposal.candidate),
        action={**proposal.action, "rationale": proposal.rationale},
        calls=[call.model_dump(mode="json") for call in proposal.calls],
    )
    return {"pending": pending}


def judge(tools: StepTools, state: StepState) -> dict[str, Any]:
    """Have the referee judge the pending candidate, unless this run already holds its evaluation."""
    pending = state["pending"]
    if pending is None:
        raise AssertionError("the judge node needs a pending proposal")
    candidate = tools.ledger.proposal(pending["proposal"])
    evaluation_id = tools.ledger.find_evaluation(candidate)
    if evaluation_id is None:
        _build_what_comes_next(tools, state, Proposal(candidate, "", pending["action"]))
        calls = tuple(LLMCall.model_validate(call) for call in pending["calls"])
        evaluation_id = tools.ledger.record(tools.evaluate(candidate), step=state["round"], calls=calls)
    entry = AttemptState(
        round=state["round"],
        proposal=pending["proposal"],
        evaluation=evaluation_id,
        action=pending["action"],
        advice=None,
    )
    return {"pending": None, "attempts": [*state["attempts"], entry]}


def _build_what_comes_next(tools: StepTools, state: StepState, pending: Proposal) -> None:
    """While ``pending`` is judged, have those built that will probably follow."""
    if tools.build_ahead is None or not isinstance(tools.coder, Foresees) or state["round"] + 1 >= state["rounds"]:
        return
    try:
        foreseen = tools.coder.foresee(context_of(tools, state), pending)
    except KernelwrightError:  # the proposal itself will tell
        return
    for candidate in (pending.candidate, *foreseen):
        if candidate is not None:
            tools.build_ahead(candidate)


def advise(tools: StepTools, state: StepState) -> dict[str, Any]:
    """Ask the Judge about the attempt just judged, and append its advice to the record."""
    context = context_of(tools, state)
    last = context.attempts[-1]
    advice = tools.judge.advise(context, tools.ledger.evaluation(last.evaluation_id))
    tools.ledger.add_note(last.candidate, last.evaluation_id, tools.judge.name, advice, step=state["round"])
    *earlier, entry = state["attempts"]
    return {"attempts": [*earlier, {**entry, "advice": advice.model_dump(mode="json")}]}


def decide(tools: StepTools, state: StepState) -> dict[str, Any]:
    """Go on or stop: the Judge may end the loop, and so does the last round."""
    advice = state["attempts"][-1]["advice"] or {}
    done = state["round"] + 1
    if advice.get("mode") == "stop":
        return {"round": done, "stop": f"judge: {advice['bottleneck']}"}
    if done >= state["rounds"]:
        return {"round": done, "stop": f"all {state['rounds']} rounds done"}
    return {"round": done}
