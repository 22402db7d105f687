"""The step as a LangGraph StateGraph, checkpointed in an SQLite file of its own: propose, judge, conclude.

After every few rounds, a scratchpad summarises the lessons before the next round.
"""

from __future__ import annotations

import importlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from kernelwright.agents import nodes as _nodes
from kernelwright.agents import step_state
from kernelwright.agents.nodes import initial_state
from kernelwright.agents.step_state import StepState, StepTools
from kernelwright.errors import NotYet, StoreError

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.graph.state import CompiledStateGraph

NodeFunction = Callable[[StepTools, StepState], dict[str, Any]]
NODES: dict[str, NodeFunction] = {
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
    tools: StepTools, *, checkpointer: BaseCheckpointSaver[str] | None = None
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """Compile the step for one problem of one run.

    Args:
        tools: roles, referee, ledger.
        checkpointer: saves the state after every node; None keeps it in memory only.
    """
    from langgraph.graph import END, START, StateGraph

    graph = StateGraph(StepState)
    for name, work in NODES.items():
        graph.add_node(name, _stoppable(tools, work))
    graph.add_conditional_edges(START, _coders(tools), ["propose"])
    graph.add_conditional_edges("propose", _after_propose, ["judge", "conclude"])
    after_judge = _after_judge(tools)
    for node in ("judge", "again"):
        graph.add_conditional_edges(node, after_judge, ["judge", "again", "conclude"])
    graph.add_conditional_edges("conclude", _after_round(tools, END), ["propose", "summarise", END])
    graph.add_conditional_edges("summarise", _coders(tools), ["propose"])
    return graph.compile(checkpointer=checkpointer)


def _stoppable(tools: StepTools, work: NodeFunction) -> Callable[..., dict[str, Any]]:
    """A node that asks after its work whether the loop should stop.

    It must ask inside the node: a reader of the graph's stream sees a node only when the next one is about to run. A
    reply or a verdict that is still to come interrupts the graph. When it is resumed, the node's work starts again.
    """
    from langgraph.runtime import Runtime
    from langgraph.types import interrupt

    def node(state: StepState, runtime: Runtime[Any]) -> dict[str, Any]:
        while True:
            try:
                changes = work(tools, state)
                break
            except NotYet as awaited:
                interrupt({"path": awaited.data["path"]})
        if runtime.control is not None and (reason := tools.should_stop()):
            runtime.control.request_drain(reason)
        return changes

    # LangGraph chooses the arguments by the annotations, and cannot resolve names that are local here.
    node.__annotations__ = {"state": StepState, "runtime": Runtime[Any], "return": dict[str, Any]}
    return node


def _coders(tools: StepTools) -> Callable[[StepState], Any]:
    """Route to one Coder for each assignment of the round, side by side."""
    from langgraph.types import Send

    def route(state: StepState) -> Any:
        asked = _nodes.assignments(tools, state)
        if len(asked) == 1:
            return "propose"
        return [Send("propose", {**state, "assignment": one.model_dump(mode="json")}) for one in asked]

    return route


def _after_propose(state: StepState) -> Literal["judge", "conclude"]:
    return "judge" if any(proposal["proposal"] for proposal in state["proposals"]) else "conclude"


def _after_judge(tools: StepTools) -> Callable[[StepState], Any]:
    def route(state: StepState) -> Literal["judge", "again", "conclude"]:
        if any(proposal["proposal"] for proposal in state["proposals"]):
            return "judge"
        judged = any(attempt["round"] == state["round"] for attempt in state["attempts"])
        if judged and _nodes.wants_again(tools, state):
            return "again"
        return "conclude"

    return route


def _after_round(tools: StepTools, end: str) -> Callable[[StepState], Any]:
    coders = _coders(tools)

    def route(state: StepState) -> Any:
        if state["stop"]:
            return end
        return "summarise" if _nodes.wants_notes(tools, state) else coders(state)

    return route


def thread_config(run_id: str, problem_id: str, rounds: int, samples: int) -> RunnableConfig:
    """LangGraph's configuration for one problem of one run."""
    return {
        "configurable": {"thread_id": f"{run_id}:{problem_id}"},
        "recursion_limit": (len(NODES) + samples * (1 + AGAIN)) * rounds + 4,
        "max_concurrency": samples,
    }


def run_step(
    graph: CompiledStateGraph[Any, Any, Any, Any],
    *,
    run_id: str,
    problem_id: str,
    rounds: int,
    samples: int = 1,
    on_update: Callable[[str, StepState], None] = lambda node, state: None,
) -> StepResult:
    """Run the loop of one problem, or continue where an earlier process stopped.

    Args:
        graph: from :func:`build_step`, with a checkpointer.
        samples: the most Coders that work side by side.
        on_update: called with the name of each finished node and the state after it.
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
                on_update(node, state)
    except GraphDrained as drained:
        return StepResult(state, drained.reason)
    return StepResult(state, "", tuple(awaited))


def _changed(state: StepState, changes: dict[str, Any]) -> StepState:
    """The state after a node's changes, computed as the graph's channels do."""
    proposals = (
        step_state.gather(state["proposals"], changes["proposals"]) if "proposals" in changes else state["proposals"]
    )
    return cast(StepState, {**state, **changes, "proposals": proposals})
