"""The step as a LangGraph StateGraph, checkpointed in an SQLite file of its own.

A round proposes, judges and concludes. After every few rounds, a scratchpad summarises the lessons before the next one.
"""

from __future__ import annotations

import importlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from kernelwright.agents import nodes as _nodes
from kernelwright.agents import step_state
from kernelwright.agents.nodes import initial_state
from kernelwright.agents.step_state import StepState, StepTools
from kernelwright.errors import NotYet, StoreError

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.graph.state import CompiledStateGraph

CHEAP_S = 0.1  # a proposal that took less need not be saved at once
OnUpdate = Callable[[str, StepState], None]
PARTS: dict[str, Callable[[StepTools, StepState], dict[str, Any]]] = {
    "propose": _nodes.propose,
    "judge": _nodes.judge,
    "again": _nodes.judge_again,
    "conclude": _nodes.conclude,
    "summarise": _nodes.summarise,
}
AGAIN = 4  # upper bound on evaluations of known candidates for each new one


class StepResult(NamedTuple):
    """The state of the loop when it returns.

    ``stopped_early`` is the reason given by the tools' ``should_stop``, or empty. ``awaited`` are the paths at which
    replies or verdicts are awaited; the loop continues when it is run again.
    """

    state: StepState
    stopped_early: str
    awaited: tuple[str, ...] = ()


@contextmanager
def open_checkpoints(path: Path) -> Iterator[BaseCheckpointSaver[str]]:
    """Open the checkpoint file. It must not be the store's file, since two writers of one file lock each other out.

    Raises:
        StoreError: the file cannot be opened or is not an SQLite file.
    """
    from langgraph.checkpoint.sqlite import SqliteSaver

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path, check_same_thread=False, timeout=30.0)) as connection:
            saver = SqliteSaver(connection)
            saver.setup()
            connection.execute("PRAGMA synchronous = NORMAL")  # like the store: a killed process loses nothing
            yield saver
    except (sqlite3.DatabaseError, OSError) as error:
        raise StoreError(
            f"the checkpoint file {path} cannot be used: {error}",
            hint="move it away; finished evaluations are in the store and will not be repeated",
            path=str(path),
        ) from error


def import_ahead() -> None:
    """Start importing LangGraph in the background, which takes half a second."""
    threading.Thread(target=importlib.import_module, args=("langgraph.graph",), daemon=True).start()


def build_step(
    tools: StepTools,
    *,
    checkpointer: BaseCheckpointSaver[str] | None = None,
    on_update: OnUpdate = lambda part, state: None,
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """Compile the step for one problem of one run.

    One node does a whole round, since LangGraph takes more than a millisecond of a core for each node. What a killed
    process did since the last checkpoint is done again: it finds evaluations and notes in the ledger. Only Coders that
    work side by side and the scratchpad have nodes of their own.

    Args:
        tools: roles, referee, ledger.
        checkpointer: saves the state after every node; None keeps it in memory only.
        on_update: called with the name of each finished part of a round and the state after it, in the thread that did
            it. A part that is done again after a fault is told again.
    """
    from langgraph.graph import END, START, StateGraph

    coders = _coders(tools)

    def after(state: StepState) -> Any:
        if state["stop"]:
            return END
        if _next_part(tools, state) != "propose":  # a checkpoint within the round
            return "round"
        return "summarise" if _nodes.wants_notes(tools, state) else coders(state)

    graph = StateGraph(StepState)
    graph.add_node("propose", _node(tools, lambda state: _proposed(tools, state, on_update)))
    graph.add_node("round", _node(tools, lambda state: _rest_of_round(tools, state, on_update)))
    graph.add_node("summarise", _node(tools, lambda state: _done("summarise", tools, state, on_update)[0]))
    graph.add_conditional_edges(START, coders, ["propose", "round"])
    graph.add_edge("propose", "round")
    graph.add_conditional_edges("round", after, ["propose", "round", "summarise", END])
    graph.add_conditional_edges("summarise", coders, ["propose", "round"])
    return graph.compile(checkpointer=checkpointer)


def _node(tools: StepTools, work: Callable[[StepState], dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """A node that asks after its work whether the loop should stop.

    It must ask inside the node: a reader of the graph's stream sees a node only when the next one is about to run. A
    reply or a verdict that is still to come interrupts the graph. When it is resumed, the node's work starts again.
    """
    from langgraph.runtime import Runtime
    from langgraph.types import interrupt

    def node(state: StepState, runtime: Runtime[Any]) -> dict[str, Any]:
        while True:
            try:
                changes = work(state)
                break
            except NotYet as awaited:
                interrupt({"path": awaited.data["path"]})
        if runtime.control is not None and (reason := tools.should_stop()):
            runtime.control.request_drain(reason)
        return changes

    # LangGraph chooses the arguments by the annotations, and cannot resolve names that are local here.
    node.__annotations__ = {"state": StepState, "runtime": Runtime[Any], "return": dict[str, Any]}
    return node


def _done(part: str, tools: StepTools, state: StepState, told: OnUpdate) -> tuple[dict[str, Any], StepState]:
    """Do one part of a round; gives its changes and the state after it."""
    changes = PARTS[part](tools, state)
    state = _changed(state, changes)
    told(part, state)
    return changes, state


def _proposed(tools: StepTools, state: StepState, told: OnUpdate) -> dict[str, Any]:
    """One of several Coders. It tells its own answer, since the others' are not there yet."""
    return _done("propose", tools, cast(StepState, {**state, "proposals": []}), told)[0]


def _rest_of_round(tools: StepTools, state: StepState, told: OnUpdate) -> dict[str, Any]:
    """Do the parts of a round that are left, up to the next checkpoint.

    The state is saved before a wait, and after a proposal that cost money or time. A Coder that is asked again may know
    more by then, and write another kernel.
    """
    changes: dict[str, Any] = {}
    part = _next_part(tools, state)
    while True:
        began = time.monotonic()
        try:
            made, state = _done(part, tools, state, told)
        except NotYet:
            if not changes or _next_part(tools, state) == "propose":
                raise
            break
        changes |= made
        if part == "conclude":
            break
        costly = part == "propose" and (time.monotonic() - began > CHEAP_S or _cost(state) > 0)
        part = _next_part(tools, state)
        if part == "propose":  # the proposals of this round came to nothing
            part = "conclude"
        elif costly or tools.should_stop():
            break
    return {**changes, "proposals": {"left": state["proposals"]}}


def _cost(state: StepState) -> float:
    """What the waiting proposals cost, in dollars."""
    return sum(float(proposal["action"].get("cost_usd") or 0.0) for proposal in state["proposals"])


def _next_part(tools: StepTools, state: StepState) -> str:
    """The part of the round that comes next."""
    if any(proposal["proposal"] for proposal in state["proposals"]):
        return "judge"
    judged = any(attempt["round"] == state["round"] for attempt in state["attempts"])
    if not judged and not state["proposals"]:
        return "propose"
    return "again" if judged and _nodes.wants_again(tools, state) else "conclude"


def _coders(tools: StepTools) -> Callable[[StepState], Any]:
    """Route to the round; before it to one Coder for each assignment, side by side, if there are several."""
    from langgraph.types import Send

    def route(state: StepState) -> Any:
        asked = _nodes.assignments(tools, state)
        if len(asked) == 1:
            return "round"
        return [Send("propose", {**state, "assignment": one.model_dump(mode="json")}) for one in asked]

    return route


def thread_config(run_id: str, problem_id: str, rounds: int, samples: int) -> RunnableConfig:
    """LangGraph's configuration for one problem of one run."""
    # Checkpoints of versions whose graph had other nodes are under another name: they could not be continued.
    return {
        "configurable": {"thread_id": f"{run_id}:{problem_id}:rounds"},
        "recursion_limit": (len(PARTS) + samples * (1 + AGAIN)) * rounds + 4,
        "max_concurrency": samples,
    }


def run_step(
    graph: CompiledStateGraph[Any, Any, Any, Any],
    *,
    run_id: str,
    problem_id: str,
    rounds: int,
    samples: int = 1,
) -> StepResult:
    """Run the loop of one problem, or continue where an earlier process stopped.

    Args:
        graph: from :func:`build_step`, with a checkpointer.
        samples: the most Coders that work side by side.
    """
    from langgraph.errors import GraphDrained
    from langgraph.runtime import RunControl
    from langgraph.types import Command

    config = thread_config(run_id, problem_id, rounds, samples)
    snapshot = graph.get_state(config)
    begun = "stop" in snapshot.values  # a process may have died after it saved only empty channels
    # Do not use ``snapshot.next``: it is also empty if a node's writes were saved but the checkpoint after it was not.
    if begun and snapshot.values["stop"]:
        return StepResult(cast(StepState, snapshot.values), "")
    start: Any = None if begun else initial_state(run_id, problem_id, rounds)
    if snapshot.interrupts:
        start = Command(resume={awaited.id: True for awaited in snapshot.interrupts})
    control = RunControl()
    state = cast(StepState, dict(snapshot.values) if begun else start)
    awaited: list[str] = []
    try:
        for update in graph.stream(start, config, stream_mode="updates", durability="sync", control=control):
            for node, changes in update.items():
                if node == "__interrupt__":
                    awaited += [waiting.value["path"] for waiting in changes]
                    continue
                state = _changed(state, changes or {})
    except GraphDrained as drained:
        return StepResult(state, drained.reason)
    return StepResult(state, "", tuple(awaited))


def _changed(state: StepState, changes: dict[str, Any]) -> StepState:
    """The state after a node's changes, computed as the graph's channels do."""
    proposals = (
        step_state.gather(state["proposals"], changes["proposals"]) if "proposals" in changes else state["proposals"]
    )
    return cast(StepState, {**state, **changes, "proposals": proposals})
