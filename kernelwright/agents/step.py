"""The step: the rounds of one problem, saved in the ledger so that a later process goes on with them.

A round proposes, judges and concludes. After every few rounds, a scratchpad summarises the lessons before the next one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple, cast

from kernelwright.agents import nodes as _nodes
from kernelwright.agents.nodes import initial_state
from kernelwright.agents.roles import Assignment
from kernelwright.agents.step_state import ProposalState, StepState, StepTools, changed
from kernelwright.errors import NotYet, StoreError

CHEAP_S = 0.1  # a proposal that took less need not be saved at once
OnUpdate = Callable[[str, StepState], None]
PARTS: dict[str, Callable[[StepTools, StepState], dict[str, Any]]] = {
    "judge": _nodes.judge,
    "again": _nodes.judge_again,
    "conclude": _nodes.conclude,
    "summarise": _nodes.summarise,
}


class StepResult(NamedTuple):
    """The state of the loop when it returns.

    ``stopped_early`` is the reason given by the tools' ``should_stop``, or empty. ``awaited`` are the paths at which
    replies or verdicts are awaited; the loop continues when it is run again.
    """

    state: StepState
    stopped_early: str
    awaited: tuple[str, ...] = ()


def run_step(
    tools: StepTools,
    *,
    run_id: str,
    problem_id: str,
    rounds: int,
    samples: int = 1,
    on_update: OnUpdate = lambda part, state: None,
) -> StepResult:
    """Run the loop of one problem, or continue where an earlier process stopped.

    The state is saved after each round, after a proposal that cost money or time, and whenever the loop ends for now.
    What a killed process did since then is done again: it finds evaluations and notes in the ledger.

    Args:
        tools: roles, referee, ledger.
        samples: the most Coders that work side by side.
        on_update: called with the name of each finished part of a round and the state after it, in the thread that did
            it. A part that is done again after a kill is told again.

    Raises:
        KernelwrightError: a fault. Everything that was done before it is saved.
    """
    state = tools.ledger.saved_state()
    begun = initial_state(run_id, problem_id, rounds) if state is None else cast(StepState, state)
    return _Loop(tools, begun, samples, on_update).run()


class _Loop:
    """One run of the loop. Only Coders that work side by side call it from several threads."""

    def __init__(self, tools: StepTools, state: StepState, samples: int, told: OnUpdate) -> None:
        self._tools = tools
        self._state = self._saved = state
        self._samples = samples
        self._told = told
        self._reason = ""  # to stop early
        self._lock = threading.Lock()

    def run(self) -> StepResult:
        awaited: tuple[str, ...] = ()
        try:
            while not (self._state["stop"] or self._reason or awaited):
                part = _next_part(self._tools, self._state)
                awaited = self._propose() if part == "propose" else self._do(part)
        except Exception:
            with suppress(StoreError):  # it must not hide the fault that led here
                self._save()
            raise
        self._save()
        return StepResult(self._state, "" if self._state["stop"] else self._reason, awaited)

    def _do(self, part: str) -> tuple[str, ...]:
        """Do a part of a round; gives what it awaits."""
        try:
            changes = PARTS[part](self._tools, self._state)
        except NotYet as awaited:
            return (awaited.data["path"],)
        if part == "summarise":
            changes["summarised"] = self._state["round"]
        self._done(part, changes)
        if part != "judge":
            self._save()
        return ()

    def _propose(self) -> tuple[str, ...]:
        """Ask the round's Coders that have not answered yet; gives what they await."""
        asked = self._state["assigned"]
        if not asked:
            asked = [one.model_dump(mode="json") for one in _nodes.assignments(self._tools, self._state)]
            self._state = changed(self._state, {"assigned": asked})
        before = self._state
        if len(asked) == 1:
            return self._ask(before, asked[0])
        with ThreadPoolExecutor(min(self._samples, len(asked)), "coder") as coders:
            answers = list(coders.map(lambda one: self._ask(before, one), asked))
        return tuple(path for answer in answers for path in answer)

    def _ask(self, before: StepState, assignment: dict[str, Any]) -> tuple[str, ...]:
        """Ask one Coder, unless a stop was asked for; gives what it awaits."""
        if self._reason:
            return ()
        began = time.monotonic()
        try:
            changes = _nodes.propose(self._tools, before, Assignment.model_validate(assignment))
        except NotYet as awaited:
            return (awaited.data["path"],)
        costly = time.monotonic() - began > CHEAP_S or _cost(changes["proposals"]) > 0
        with self._lock:
            left = [one for one in self._state["assigned"] if one is not assignment]
            answered = self._state["round"] + (0 if left else 1)
            self._done("propose", {**changes, "assigned": left, "answered": answered})
            if costly:
                self._save()
        return ()

    def _done(self, part: str, changes: dict[str, Any]) -> None:
        self._state = changed(self._state, changes)
        self._told(part, self._state)
        if not self._state["stop"]:
            self._reason = self._reason or self._tools.should_stop()

    def _save(self) -> None:
        if self._saved is not self._state:
            self._tools.ledger.save_state(self._state)
            self._saved = self._state


def _cost(proposals: list[ProposalState]) -> float:
    """What proposals cost, in dollars."""
    return sum(float(proposal["action"].get("cost_usd") or 0.0) for proposal in proposals)


def _next_part(tools: StepTools, state: StepState) -> str:
    """The part of the round that comes next."""
    if state["answered"] <= state["round"]:
        fresh = not state["assigned"] and state["summarised"] < state["round"]
        return "summarise" if fresh and _nodes.wants_notes(tools, state) else "propose"
    if any(proposal["proposal"] for proposal in state["proposals"]):
        return "judge"
    judged = any(attempt["round"] == state["round"] for attempt in state["attempts"])
    return "again" if judged and _nodes.wants_again(tools, state) else "conclude"
