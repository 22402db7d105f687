"""Finds loops in a captured graph: steps that ``torch.export`` has written out one after another become one node.

Worker side, on plain data (see :class:`Nodes`). A loop over time has as many copies of its step as the input has
steps, so the graphs of two shapes differ in length. Rolled up, they differ in a number. A step may read what the step
before it has computed (a state), what was computed before the loop, and slice ``start + stride * step`` of a tensor.
Results of all steps may be stacked or joined; those of single steps may be used. Any other pattern is left as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from kernelwright.codegen._roll_filled import filled, refs
from kernelwright.codegen._roll_loop import LoopWriter
from kernelwright.codegen._roll_step import Node, NoLoop, Span

_LEAST_STEPS = 3
_LONGEST_STEP = 400  # nodes
_MANY_STEPS = 16  # from which on a loop is rolled up even if its length is the same for all shapes
_MOST_LOOPS = 8
_MOST_ROWS, _MOST_PERIODS = 12, 4  # of equal steps that are tried, and ways to cut one row into steps

Loop = dict[str, Any]


def rolled(graphs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The graphs of all shapes, each with its loops as nodes. A loop that not all of them have is left as it is."""
    found = [filled(graph) for graph in graphs]
    for _ in range(_MOST_LOOPS):
        once = _rolled_once(found)
        if once is None:
            break
        found = once
    return found


def _rolled_once(graphs: Sequence[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """The graphs with one more loop as a node; None if they have no loop in common."""
    found = [_rolled(graph, _LEAST_STEPS) for graph in graphs]
    known = next((len(loop["nodes"]) for _, loop in found if loop), None)
    short = all(loop is None or loop["steps"] < _MANY_STEPS for _, loop in found)
    if known is None or (short and len({len(graph["nodes"]) for graph in graphs}) == 1):
        return None
    # A short input has as few as two steps, in which a loop is only seen by one who knows it.
    found = [one if one[1] else _rolled(graph, 2) for one, graph in zip(found, graphs, strict=True)]
    alike = all(loop and len(loop["nodes"]) == known for _, loop in found)
    return [graph for graph, _ in found] if alike else None


def _rolled(graph: dict[str, Any], least: int) -> tuple[dict[str, Any], Loop | None]:
    """A graph with its longest loop as one node ``repeat``, or the graph itself; and the loop.

    The node has the key ``repeat``: ``steps``, and the step as a graph of its own (``inputs``, ``nodes``, ``outputs``).
    Its ``args`` are the values of these inputs, in order. An entry of ``taken`` is the position of an input with
    ``start`` and ``stride``: the step reads that slice of the argument's first dim. An entry of ``carried`` stands for
    a state. It has the state's position among the inputs, and the position of the next state among the outputs. The
    first ``stacked`` outputs are collected over the steps. The node's results are these collections, then the last
    states.
    """
    nodes = graph["nodes"]
    for span in _spans(nodes, least):
        try:
            writer = LoopWriter(graph, span)
            made = writer.graph()
        except NoLoop:
            continue
        return made, next(node["repeat"] for node in made["nodes"] if node["name"] == writer.name)
    return graph, None


def _signature(node: Node) -> str:
    """What the copies of one node have in common."""
    made = [[entry["shape"], entry["dtype"]] for entry in node["outputs"]]
    own = node["name"] if "repeat" in node else ""  # no loop is the copy of another one
    return json.dumps([own, node["op"], _blank(node["args"]), _blank(node["kwargs"]), made])


def _blank(value: Any) -> Any:
    if isinstance(value, dict):
        return "ref" if "ref" in value else {key: _blank(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_blank(item) for item in value]
    return 0 if type(value) is int else value


def _spans(nodes: Sequence[Node], least: int) -> Iterator[Span]:
    """Repetitions of a row of nodes, the longest first, with each node of a step as its beginning."""
    signatures = [_signature(node) for node in nodes]
    found: list[tuple[int, int, int]] = []
    total = len(signatures)
    for period in range(1, min(_LONGEST_STEP, total // least) + 1):
        begin = 0
        for place in range(total - period + 1):
            same = place + period < total and signatures[place] == signatures[place + period]
            if not same:
                if place - begin >= (least - 1) * period:
                    found.append((place - begin + period, period, begin))
                begin = place + 1
    found.sort(key=lambda one: (-one[0], one[1]))
    tried: list[tuple[int, int]] = []
    for length, period, begin in found:
        crossed = sum(begin < end and first < begin + length for first, end in tried)
        if crossed >= _MOST_PERIODS:
            continue
        tried.append((begin, begin + length))
        if len(tried) > _MOST_ROWS:
            return
        reads = _reads(nodes[begin : begin + length])
        whole = length % period  # so that the last step ends where the row of copies does
        for shift in [whole, *(n for n in range(period) if n != whole)]:
            for step, count in _uniform(reads, shift, period):
                for first in (0, 1):  # the first copy may only look like a step
                    if count - first >= least:
                        yield Span(begin + shift + (step + first) * period, period, count - first)


def _reads(nodes: Sequence[Node]) -> list[list[int | None]]:
    """How far before each node of a row the nodes lie that it reads; None for what was there before the row."""
    places = {node["name"]: n for n, node in enumerate(nodes)}
    found: list[list[int | None]] = []
    for n, node in enumerate(nodes):
        made = [places.get(ref["ref"]) for ref in refs([node["args"], node["kwargs"]])]
        found.append([None if place is None else n - place for place in made])
    return found


def _uniform(reads: Sequence[list[int | None]], shift: int, period: int) -> list[tuple[int, int]]:
    """The first steps of loops in a row of copies, and their numbers of steps, the longest first.

    Two loops of the same step may follow each other. All steps of one loop read alike, except for its first.
    """
    count = (len(reads) - shift) // period
    steps = [reads[shift + period * step : shift + period * (step + 1)] for step in range(count)]
    begins = [0]
    for step in range(1, count):
        if step > begins[-1] + 1 and steps[step] != steps[step - 1]:
            begins.append(step)
    found = [(first, end - first) for first, end in zip(begins, [*begins[1:], count], strict=True)]
    return sorted(found, key=lambda one: -one[1])
