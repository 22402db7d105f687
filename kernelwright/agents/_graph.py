"""The step as a LangGraph StateGraph: propose, judge, advise, decide, checkpointed in an SQLite file of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from kernelwright.agents import _nodes
from kernelwright.agents._nodes import StepState, StepTools, initial_state
from kernelwright.errors import StoreError

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.graph.state import CompiledStateGraph

NodeFunction = Callable[[StepTools, StepState], dict[str, Any]]
NODES: dict[str, NodeFunction] = {
    "propose": _nodes.propose,
    "judge": _nodes.judge,
    "advise": _nodes.advise,
    "decide": _nodes.decide,
}


class StepResult(NamedTuple):
    """Where the loop stands. ``stopped_early`` is the reason given by the tools' ``should_stop``, or empty."""

    state: StepState
    stopped_early: str


@contextmanager
def open_checkpoints(path: Path) -> Iterator[BaseCheckpointSaver[str]]:
    """The checkpoint file: never the store's own file, since two writers of one file lock each other out.

    Raises:
        StoreError: the file cannot be opened or is no SQLite file.
    """
    from langgraph.checkpoint.sqlite import SqliteSaver

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path, check_same_thread=False, timeout=30.0)) as connection:
            saver = SqliteSaver(connection)
            saver.setup()
            yield saver
    except (sqlite3.DatabaseError, OSError) as error:
        raise StoreError(
            f"the checkpoint file {path} cannot be used: {error}",
            hint="move it away; finished evaluations are in the store and will not be repeated",
            path=str(path),
        ) from error


def build_step(
    tools: StepTools, *, checkpointer: BaseCheckpointSaver[str] | None = None
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """Compile the step for one problem of one run.

    Args:
        tools: roles, referee, ledger.
        checkpointer: where the state is saved after every node; None keeps it in memory only.
    """
    from langgraph.graph import END, START, StateGraph

    graph = StateGraph(StepState)
    for name, work in NODES.items():
        graph.add_node(name, _stoppable(tools, work))
    graph.add_edge(START, "propose")
    graph.add_conditional_edges("propose", _after_propose, {"judge": "judge", "end": END})
    graph.add_edge("judge", "advise")
    graph.add_edge("advise", "decide")
    graph.add_conditional_edges("decide", _after_decide, {"propose": "propose", "end": END})
    return graph.compile(checkpointer=checkpointer)


def _stoppable(tools: StepTools, work: NodeFunction) -> Callable[..., dict[str, Any]]:
    """A node that asks, once its work is done, whether the loop is to stop behind it.

    Asked in the node: whoever reads the graph's stream learns of it only when the next node is about to run.
    """
    from langgraph.runtime import Runtime

    def node(state: StepState, runtime: Runtime[Any]) -> dict[str, Any]:
        changes = work(tools, state)
        if runtime.control is not None and (reason := tools.should_stop()):
            runtime.control.request_drain(reason)
        return changes

    # LangGraph decides by the annotations what to hand in, and cannot resolve names that are local here.
    node.__annotations__ = {"state": StepState, "runtime": Runtime[Any], "return": dict[str, Any]}
    return node


def _after_propose(state: StepState) -> Literal["judge", "end"]:
    return "end" if state["pending"] is None else "judge"


def _after_decide(state: StepState) -> Literal["propose", "end"]:
    return "end" if state["stop"] else "propose"


def thread_config(run_id: str, problem_id: str, rounds: int) -> RunnableConfig:
    """LangGraph's configuration for one problem of one run."""
    return {
        "configurable": {"thread_id": f"{run_id}:{problem_id}"},
        "recursion_limit": len(NODES) * rounds + 4,
        "max_concurrency": 1,
    }


def run_step(
    graph: CompiledStateGraph[Any, Any, Any, Any],
    *,
    run_id: str,
    problem_id: str,
    rounds: int,
    on_update: Callable[[str, StepState], None] = lambda node, state: None,
) -> StepResult:
    """Run the loop of one problem, or go on with it where an earlier process left off.

    Args:
        graph: from :func:`build_step`, with a checkpointer.
        on_update: told the name of each node that finished and the state after it.
    """
    from langgraph.errors import GraphDrained
    from langgraph.runtime import RunControl

    config = thread_config(run_id, problem_id, rounds)
    snapshot = graph.get_state(config)
    if snapshot.values and not snapshot.next:
        return StepResult(cast(StepState, snapshot.values), "")
    start = None if snapshot.values else initial_state(run_id, problem_id, rounds)
    control = RunControl()
    state = cast(StepState, dict(snapshot.values or start or {}))
    try:
        for update in graph.stream(start, config, stream_mode="updates", durability="sync", control=control):
            for node, changes in update.items():
                state = cast(StepState, {**state, **(changes or {})})
                on_update(node, state)
    except GraphDrained as drained:
        return StepResult(state, drained.reason)
    return StepResult(state, "")
