"""A problem and its schedule as words, which a schedule policy reads and writes.

The policy reads facts that are known before any measurement: the operators of the captured graph; the kind, the moved
bytes and the arithmetic intensity (flops a byte) of each region that the generator makes of it, in powers of two; the
number of rows, their length, and how they divide into vectors; the data type. No problem name is among them. Then the
choices are named in their order. The policy writes one word for each choice, such as ``tile=8x3``.

Numbers of rows and columns take two words each, the half powers of two below and above: ``columns~9 columns~9.5`` for
600. Close lengths share at least one word, so that lessons at some lengths carry over to lengths between them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kernelwright.records import KnobValue

if TYPE_CHECKING:
    from kernelwright.codegen import Graph

START, GO, END, PAD, UNKNOWN = "<start>", "<go>", "<end>", "<pad>", "<unknown>"
MOST_REGIONS: Final = 6
MOST_OPERATORS: Final = 16
_LANES: Final = (48, 32, 16, 8)  # columns of tiles and of vectors that rows may divide into


def describe_problem(graph: Graph, space: Mapping[str, Sequence[KnobValue]]) -> list[str]:
    """A problem's words, at most about 60; the choices of ``space`` come last."""
    from kernelwright import codegen

    cost = codegen.cost(graph)
    operators = dict.fromkeys(node.op.partition(".")[0] for node in graph.nodes)
    words = [START, f"nodes~{_power(len(graph.nodes))}", f"dtype:{_dtype(graph)}"]
    words += [f"op:{name}" for name in list(operators)[:MOST_OPERATORS]]
    for region in cost["regions"][:MOST_REGIONS]:
        words += _region(region)
    words += [word for rows in _rows(graph) for word in _between("rows", rows)]
    words += _columns(graph)
    return [*words, *(f"?{choice}" for choice in space), GO]


def schedule_words(schedule: Mapping[str, KnobValue], space: Mapping[str, Sequence[KnobValue]]) -> list[str]:
    """A schedule's words, in the order of the choices, followed by :data:`END`."""
    return [*(word_of(choice, schedule[choice]) for choice in space), END]


def word_of(choice: str, value: KnobValue) -> str:
    """The word for one value of a choice."""
    return f"{choice}={value}"


def read_schedule(words: Sequence[str], space: Mapping[str, Sequence[KnobValue]]) -> dict[str, KnobValue] | None:
    """The schedule of some words; None unless there is one word for each choice in order, followed by :data:`END`."""
    if len(words) != len(space) + 1 or words[-1] != END:
        return None
    schedule: dict[str, KnobValue] = {}
    for (choice, values), word in zip(space.items(), words, strict=False):
        found = [value for value in values if word_of(choice, value) == word]
        if not found:
            return None
        schedule[choice] = found[0]
    return schedule


def _region(region: Mapping[str, Any]) -> list[str]:
    moved = region["bytes_read"] + region["bytes_written"]
    return [f"region:{region['kind']}", f"bytes~{_power(moved)}", f"intensity~{_power(region['intensity'])}"]


def _power(count: float) -> int:
    """The exponent of the nearest power of two; 0 for numbers up to 1."""
    return round(math.log2(count)) if count > 1 else 0


def _between(name: str, count: float) -> list[str]:
    """Words for the half powers of two below and above, as exponents; both are equal for an exact half power."""
    halves = 2 * math.log2(count) if count > 1 else 0.0
    return [f"{name}~{half / 2:g}" for half in (math.floor(halves), math.ceil(halves))]


def _timed(shape: Sequence[Any]) -> list[int]:
    return [size.timed for size in shape]


def _dtype(graph: Graph) -> str:
    """The type of the largest input."""
    sized = [(math.prod(_timed(one.info.shape)), one.info.dtype) for one in graph.inputs]
    return max(sized)[1] if sized else "none"


def _shapes(graph: Graph) -> list[list[int]]:
    """Shapes of the largest input and of the largest parameter, if they exist."""
    inputs = [_timed(one.info.shape) for one in graph.inputs if one.kind == "input"]
    parameters = [_timed(one.info.shape) for one in graph.inputs if one.kind != "input"]
    return [max(shapes, key=lambda shape: (math.prod(shape), shape)) for shapes in (inputs, parameters) if shapes]


def _rows(graph: Graph) -> list[int]:
    """The number of rows of the largest input and of the largest parameter."""
    return [math.prod(shape[:-1]) for shape in _shapes(graph) if shape]


def _columns(graph: Graph) -> list[str]:
    """Words for the row lengths of the largest input and parameter, and for the vectors that they divide into."""
    words = []
    for shape in _shapes(graph):
        length = shape[-1] if shape else 1
        even = next((lanes for lanes in _LANES if length % lanes == 0), 0)
        words += [*_between("columns", length), f"columns%{even}"]
    return words
