"""The nodes of the step as plain functions: state in, changes out. They do not save it.

The state is plain JSON, and kernels are in the ledger under their keys. A node may run twice if a process is killed in
the middle of it. Its second run gives the same result and repeats no evaluation.
"""

from __future__ import annotations

from typing import Any, cast

from kernelwright.agents._ledger import Ledger
from kernelwright.agents._set_knobs import set_knobs
from kernelwright.agents.duplicates import MACHINE_CODE, Twin, codes_of_alike, find_twin
from kernelwright.agents.roles import (
    Assignment,
    Attempt,
    Duplicate,
    Foresees,
    Fruitless,
    Proposal,
    RoleFailed,
    StepContext,
)
from kernelwright.agents.step_state import AttemptState, FailureState, ProposalState, StepState, StepTools, attempt_from
from kernelwright.agents.verifier import Forecast, passes_over, track_record
from kernelwright.errors import KernelwrightError
from kernelwright.records import Backend, Candidate

FAILED_ROUNDS = 3  # rounds in a row without a candidate, after which a problem is given up


_NO_CODERS_FAULT = ("judge", "scratchpad")
RIVALS = "rivals"  # key of a recorded action: the hashes of the kernels to time the candidate beside


def initial_state(run_id: str, problem_id: str, rounds: int) -> StepState:
    """The state before the first round."""
    return StepState(
        run_id=run_id,
        problem_id=problem_id,
        round=0,
        rounds=rounds,
        attempts=[],
        assigned=[],
        answered=0,
        proposals=[],
        failures=[],
        duplicates=[],
        fruitless=[],
        scratchpad="",
        summarised=0,
        stop="",
    )


def context_of(
    tools: StepTools, state: StepState, assignment: Assignment | None = None, *, backend: Backend | None = None
) -> StepContext:
    """The context that the roles see, rebuilt from the ledger.

    Args:
        backend: the language of the kernel in question; default: the assignment's, else the run's.
    """
    return StepContext(
        problem=tools.problem,
        backend=backend or (assignment.backend if assignment else "") or tools.backend,
        round=state["round"],
        rounds=state["rounds"],
        bench=tools.bench,
        baseline=tools.baseline,
        attempts=tuple(map(tools.attempt, state["attempts"])),
        assignment=assignment or Assignment(),
        failures=_failures_since_a_verdict(state),
        duplicates=tuple(Duplicate.model_validate(known) for known in state["duplicates"]),
        fruitless=tuple(Fruitless.model_validate(known) for known in state["fruitless"]),
        scratchpad=state["scratchpad"],
    )


def _failures_since_a_verdict(state: StepState) -> tuple[str, ...]:
    """The reasons why candidates since the last verdict were not judged; rounds are counted from 1, as in tables."""
    judged = max((attempt["round"] for attempt in state["attempts"]), default=-1)
    return tuple(
        f"round {failure['round'] + 1}: {failure['reason']}"
        for failure in state["failures"]
        if failure["role"] not in _NO_CODERS_FAULT and failure["round"] >= judged
    )


def attempts_of(ledger: Ledger, state: StepState) -> tuple[Attempt, ...]:
    """The judged candidates of a state, with their verdicts."""
    return tuple(attempt_from(ledger, entry) for entry in state["attempts"])


def assignments(tools: StepTools, state: StepState) -> tuple[Assignment, ...]:
    """The assignments of this round's Coders."""
    return tools.strategy.assign(context_of(tools, state))


def propose(tools: StepTools, state: StepState, assignment: Assignment) -> dict[str, Any]:
    """Ask the Coder, and store its candidate before any further step.

    If the search has chosen a kernel's knobs itself, no Coder is asked.
    """
    answer = ProposalState(sample=assignment.sample, proposal="", action={}, reason="", ends=False)
    try:
        context = context_of(tools, state, assignment)
        proposal = set_knobs(context, assignment) if assignment.knobs else tools.coder.propose(context)
        _refuse_another_language(context, proposal)
    except RoleFailed as failed:
        asked = {
            "assignment": assignment.model_dump(mode="json", exclude_defaults=True),
            "cost_usd": float(failed.data.get("cost_usd") or 0.0),
        }
        return {"proposals": [{**answer, "reason": failed.message, "action": asked}]}
    answer["reason"] = proposal.rationale
    if proposal.candidate is None:
        return {"proposals": [{**answer, "ends": True}]}
    answer["proposal"] = tools.ledger.save_proposal(proposal.candidate)
    answer["action"] = {
        **proposal.action,
        "rationale": proposal.rationale,
        "sample": assignment.sample,
        "assignment": assignment.model_dump(mode="json", exclude_defaults=True),
        "cost_usd": proposal.cost_usd,
    }
    return {"proposals": [answer]}


def _refuse_another_language(context: StepContext, proposal: Proposal) -> None:
    written = proposal.candidate
    if written is not None and written.backend != context.backend:
        said = f"a kernel for {written.backend}, where one for {context.backend} was asked for"
        raise RoleFailed(said, cost_usd=proposal.cost_usd)


def judge(tools: StepTools, state: StepState) -> dict[str, Any]:
    """Have the referee judge the first waiting proposal, unless this run already has its evaluation.

    A candidate is not judged if it equals an earlier one or if a trusted Verifier expects it to fail. Both count as
    failures of the round.
    """
    pending = next(proposal for proposal in state["proposals"] if proposal["proposal"])
    candidate = tools.ledger.proposal(pending["proposal"])
    context = context_of(tools, state)
    twin = find_twin(candidate, context.attempts)
    if twin is not None:
        return _passed_by(tools, state, context, pending, twin)
    rivals = tools.strategy.rivals(context, candidate)
    evaluation_id = tools.ledger.find_evaluation(candidate)
    action = pending["action"]
    if evaluation_id is not None:
        action = {**action, **tools.ledger.action(evaluation_id)}
    else:
        chosen = bool(action.get("assignment", {}).get("knobs"))  # knobs that the search chose need no forecast
        forecast = None if chosen else _forecast(tools, state, candidate, pending["sample"])
        if forecast is not None and forecast.passed_over:
            reason = f"not judged, since a {forecast.outcome} is expected: {forecast.reason}"
            return {
                "proposals": pending["sample"],
                "failures": [*state["failures"], _failure(state, "verifier", reason)],
                "fruitless": _with_fruitless(tools, state, [pending]),
            }
        _build_what_comes_next(tools, state, Proposal(candidate, "", pending["action"]))
        _ask_for_what_waits(tools, state, context)
        known = codes_of_alike(candidate, context.attempts)
        evaluation, code = tools.evaluate(candidate, rivals=_beside(context, rivals), known=known)
        if evaluation is None:
            twin = find_twin(candidate, context.attempts, code)
            assert twin is not None, "only a fingerprint that is known leaves a candidate unjudged"
            return _passed_by(tools, state, context, pending, twin)
        action = {**action, MACHINE_CODE: code, RIVALS: list(rivals)}
        evaluation_id = tools.ledger.record(evaluation, step=state["round"], action=action)
    entry = AttemptState(
        round=state["round"],
        proposal=pending["proposal"],
        evaluation=evaluation_id,
        action=action,
        advice=None,
        focus="",
        purpose="search",
        rivals=list(rivals),
    )
    return {"proposals": pending["sample"], "attempts": [*state["attempts"], entry]}


def _passed_by(
    tools: StepTools, state: StepState, context: StepContext, pending: ProposalState, twin: Twin
) -> dict[str, Any]:
    """Leave a proposal unjudged because it equals an earlier attempt, and record that as a failure of the round."""
    candidate, earlier = tools.ledger.proposal(pending["proposal"]), twin.attempt
    duplicate = Duplicate(
        round=state["round"],
        after=len(context.attempts),
        candidate=candidate.sha256,
        twin=earlier.candidate.sha256,
        same=twin.same,
        action=pending["action"],
    )
    tools.ledger.add_duplicate(duplicate)
    outcome = earlier.verdict.status.value
    speedup = earlier.verdict.speedup(tools.baseline)
    if speedup is not None:
        outcome += f", {speedup.median:.2f}x"
    reason = (
        f"not judged, since it is the same {twin.same} as kernel {duplicate.twin[:12]} of round {earlier.round + 1} "
        f"({outcome}): change what the kernel does"
    )
    return {
        "proposals": pending["sample"],
        "failures": [*state["failures"], _failure(state, "duplicate", reason)],
        "duplicates": [*state["duplicates"], duplicate.model_dump(mode="json")],
    }


def _beside(context: StepContext, rivals: tuple[str, ...]) -> tuple[Candidate, ...]:
    """The earlier candidates of the run to time a candidate beside."""
    known = {attempt.candidate.sha256: attempt.candidate for attempt in context.attempts}
    return tuple(known[sha256] for sha256 in rivals)


def _ask_for_what_waits(tools: StepTools, state: StepState, context: StepContext) -> None:
    """Have the round's other candidates judged at the same time, where several can be.

    With a Verifier they wait, since it may pass them over.
    """
    if tools.ask_ahead is None or tools.verifier is not None:
        return
    for other in state["proposals"][1:]:
        candidate = tools.ledger.proposal(other["proposal"]) if other["proposal"] else None
        if candidate is None or find_twin(candidate, context.attempts) or tools.ledger.find_evaluation(candidate):
            continue
        rivals = tools.strategy.rivals(context, candidate)
        tools.ask_ahead(candidate, _beside(context, rivals), codes_of_alike(candidate, context.attempts))


def wants_again(tools: StepTools, state: StepState) -> bool:
    """Whether a known candidate must be judged again before the round continues."""
    return tools.strategy.again(context_of(tools, state)) is not None


def judge_again(tools: StepTools, state: StepState) -> dict[str, Any]:
    """Have the referee judge the known candidate that the strategy names, unless this run already has the result."""
    context = context_of(tools, state)
    wanted = tools.strategy.again(context)
    if wanted is None:
        return {}
    known = {attempt.candidate.sha256: attempt for attempt in context.attempts}
    candidate = known[wanted.candidate].candidate
    earlier = [a for a in context.attempts if (a.candidate.sha256, a.purpose) == (wanted.candidate, wanted.purpose)]
    evaluation_id = tools.ledger.find_again(candidate, wanted.purpose, len(earlier))
    if evaluation_id is None:
        evaluation, _ = tools.evaluate(candidate, rivals=_beside(context, wanted.rivals))
        assert evaluation is not None, "no fingerprint was known"
        action = {RIVALS: list(wanted.rivals)}
        evaluation_id = tools.ledger.record(evaluation, step=state["round"], purpose=wanted.purpose, action=action)
    entry = AttemptState(
        round=state["round"],
        proposal=candidate.sha256,
        evaluation=evaluation_id,
        action=dict(known[wanted.candidate].action),
        advice=None,
        focus="",
        purpose=wanted.purpose,
        rivals=list(wanted.rivals),
    )
    return {"attempts": [*state["attempts"], entry]}


def _forecast(tools: StepTools, state: StepState, candidate: Candidate, sample: int) -> Forecast | None:
    """The Verifier's forecast for a candidate; None if there is no Verifier or it was switched off.

    After a round without a verdict, no candidate is passed over, since the Coder learns only from verdicts.
    """
    if tools.verifier is None:
        return None
    kept = tools.ledger.forecast(candidate, state["round"])
    if kept is not None:
        return kept
    standing = track_record(tools.ledger.past_forecasts()).standing
    if standing == "switched off":
        return None
    context = context_of(tools, state, Assignment(sample=sample), backend=candidate.backend)
    prediction = tools.verifier.predict(context, candidate)
    if prediction is None:
        return None
    forecast = Forecast(
        round=state["round"],
        candidate=candidate.sha256,
        verifier=tools.verifier.name,
        outcome=prediction.outcome,
        confidence=prediction.confidence,
        reason=prediction.reason,
        passed_over=passes_over(prediction, standing, candidate) and not _nothing_judged_before(state),
    )
    tools.ledger.add_forecast(forecast)
    return forecast


def _nothing_judged_before(state: StepState) -> bool:
    """Whether the previous round had no verdict."""
    before = state["round"] - 1
    return before >= 0 and not any(attempt["round"] == before for attempt in state["attempts"])


def _build_what_comes_next(tools: StepTools, state: StepState, pending: Proposal) -> None:
    """Start builds of the waiting candidates and of likely next ones, to run while ``pending`` is judged."""
    if tools.build_ahead is None:
        return
    waiting = [tools.ledger.proposal(other["proposal"]) for other in state["proposals"] if other["proposal"]]
    foreseen: list[Candidate] = []
    if isinstance(tools.coder, Foresees) and state["round"] + 1 < state["rounds"]:
        try:
            asked = Assignment.model_validate(pending.action.get("assignment") or {})
            foreseen = list(tools.coder.foresee(context_of(tools, state, asked), pending))
        except KernelwrightError:  # the next proposal will report the same error
            return
    if foreseen or len(waiting) > 1:
        for candidate in (*waiting, *foreseen):
            tools.build_ahead(candidate)


def _advise(tools: StepTools, state: StepState) -> dict[str, Any]:
    """Ask the Judge about the attempt from which the next round begins, and append its advice to the record."""
    if tools.judge is None:
        return {}
    context = context_of(tools, state)
    focus = tools.strategy.focus(context)
    if focus is None:
        return {}
    about = context_of(tools, state, backend=focus.candidate.backend)
    try:
        advice = tools.judge.advise(about, tools.ledger.evaluation(focus.evaluation_id))
    except RoleFailed as failed:
        return {"failures": [*state["failures"], _failure(state, "judge", failed.message)]}
    tools.ledger.add_note(focus.candidate, focus.evaluation_id, tools.judge.name, advice, step=state["round"])
    *earlier, entry = state["attempts"]
    advised = AttemptState(**{**entry, "advice": advice.model_dump(mode="json"), "focus": focus.candidate.sha256})
    return {"attempts": [*earlier, advised]}


def wants_notes(tools: StepTools, state: StepState) -> bool:
    """Whether the scratchpad must summarise the lessons before the next round."""
    every = tools.scratchpad_every if tools.scratchpad is not None else 0
    return bool(every and state["round"] % every == 0 and state["attempts"])


def summarise(tools: StepTools, state: StepState) -> dict[str, Any]:
    """Have the scratchpad summarise the lessons, unless it did so for this round. If it fails, earlier notes stay."""
    if tools.scratchpad is None:
        return {}
    notes = tools.ledger.scratchpad(state["round"])
    if notes is None:
        try:
            notes = tools.scratchpad.summarise(context_of(tools, state))
        except RoleFailed as failed:
            return {"failures": [*state["failures"], _failure(state, "scratchpad", failed.message)]}
        tools.ledger.add_scratchpad(state["round"], tools.scratchpad.name, notes)
    return {"scratchpad": notes}


def conclude(tools: StepTools, state: StepState) -> dict[str, Any]:
    """End a round: ask for advice if something was judged, then continue or stop."""
    judged = any(attempt["round"] == state["round"] for attempt in state["attempts"])
    advised = _advise(tools, state) if judged else {}
    return {**advised, **_decide(tools, cast(StepState, {**state, **advised}))}


def _decide(tools: StepTools, state: StepState) -> dict[str, Any]:
    """Continue or stop. A role, the last round, or several rounds without a candidate end the loop."""
    done = state["round"] + 1
    empty = [proposal for proposal in state["proposals"] if not proposal["proposal"]]
    judged = any(attempt["round"] == state["round"] for attempt in state["attempts"])
    failures = [
        *state["failures"],
        *(_failure(state, "coder", proposal["reason"]) for proposal in empty if not proposal["ends"]),
    ]
    changes: dict[str, Any] = {"proposals": None, "failures": failures, "round": done if judged else state["round"]}
    if failed := [proposal for proposal in empty if not proposal["ends"]]:
        changes["fruitless"] = _with_fruitless(tools, state, failed)
        state = {**state, "fruitless": changes["fruitless"]}
    if not judged and empty and all(proposal["ends"] for proposal in empty):
        return {**changes, "stop": f"{tools.coder.name}: {empty[0]['reason']}"}
    changes["round"] = done
    advice = (state["attempts"][-1]["advice"] if judged else None) or {}
    if advice.get("mode") == "stop" and tools.strategy.heeds_stops:
        stop = f"judge: {advice['bottleneck']}"
    elif done >= state["rounds"]:
        stop = f"all {state['rounds']} rounds done"
    elif not judged and _failed_in_a_row(failures, state) >= FAILED_ROUNDS:
        stop = f"{tools.coder.name}: {FAILED_ROUNDS} rounds in a row without a candidate: {failures[-1]['reason']}"
    else:
        stop = tools.finished(context_of(tools, state))
    return {**changes, "stop": stop}


def _with_fruitless(tools: StepTools, state: StepState, proposals: list[ProposalState]) -> list[dict[str, Any]]:
    """The rows of Coders that gave nothing to judge, extended by ``proposals``."""
    rows = [
        Fruitless(
            round=state["round"],
            after=len(state["attempts"]),
            sample=proposal["sample"],
            action=proposal["action"],
        )
        for proposal in proposals
    ]
    for row in rows:
        tools.ledger.add_fruitless(row)
    return [*state["fruitless"], *(row.model_dump(mode="json") for row in rows)]


def _failure(state: StepState, role: str, reason: str) -> FailureState:
    return FailureState(round=state["round"], role=role, reason=reason)


def _failed_in_a_row(failures: list[FailureState], state: StepState) -> int:
    """The number of consecutive rounds up to this one that gave no candidate."""
    judged = {attempt["round"] for attempt in state["attempts"]}
    failed = {failure["round"] for failure in failures if failure["role"] == "coder"} - judged
    count = 0
    while state["round"] - count in failed:
        count += 1
    return count
