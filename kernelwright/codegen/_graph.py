"""The captured graph as plain data: everything that the generator knows about a problem.

The JSON is written by the capture worker (see ``_capture.py``), so it may come from a process that ran untrusted code.
It is checked when it is read, and nothing in it is ever executed.
"""

from __future__ import annotations

import json
import keyword
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from kernelwright.codegen._size import Shape, Size
from kernelwright.errors import KernelwrightError

FORMAT = 2
MOST_OPERATORS = 1000  # of a graph that TorchInductor is asked for; it takes minutes for more
InputKind = Literal["input", "parameter", "buffer", "constant"]
Carry: TypeAlias = Literal["needed", "whole"]
CARRIES: tuple[Carry, ...] = ("needed", "whole")  # parts of the reference's text, in the order of trial


class CodegenError(KernelwrightError):
    """The generator cannot make a candidate of this graph; ``hint`` says what to do instead."""


@dataclass(frozen=True)
class Scalar:
    """A number that differs between variants, with its value in each."""

    values: tuple[float, ...]


@dataclass(frozen=True)
class Ref:
    """An argument that is a tensor of the graph: an input or (one output of) a node."""

    name: str
    index: int = 0


@dataclass(frozen=True)
class Symbol:
    """An argument that is neither number nor tensor: a dtype, a device, a layout."""

    kind: str
    value: str


@dataclass(frozen=True)
class TensorInfo:
    """Shape, dtype name, and whether the tensor is row-major contiguous in every variant."""

    shape: Shape
    dtype: str
    contiguous: bool


@dataclass(frozen=True)
class Input:
    """An input tensor of the graph.

    ``target`` is the dotted state_dict name of a parameter or buffer, or the parameter of ``forward`` for an input.
    ``data`` holds the values of a constant (nested lists).
    """

    name: str
    kind: InputKind
    target: str
    info: TensorInfo
    data: Any = None


@dataclass(frozen=True)
class Node:
    """One call of an ATen operator. ``op`` is written as in ``torch.ops.aten``: ``layer_norm.default``."""

    name: str
    op: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[TensorInfo, ...]
    repeat: Repeat | None = None


@dataclass(frozen=True)
class Repeat:
    """A loop (see ``_roll.py``). The node's arguments are what the inputs of a step are made of, in order.

    Attributes:
        steps: how often the step runs.
        taken: inputs that are a slice of their argument's first dim: position, and the slices' start and stride.
        carried: inputs whose value is an output of the step before: position of the input, and of the output.
        stacked: how many of the outputs, from the first on, are collected over the steps. The node's results are these
            collections, then the last values of the carried inputs.
        step: the graph of one step.
    """

    steps: Size
    taken: tuple[tuple[int, Size, Size], ...]
    carried: tuple[tuple[int, int], ...]
    stacked: int
    step: Graph


@dataclass(frozen=True)
class Gradient:
    """The backward pass of a graph, as the second half of an autograd function.

    Attributes:
        arguments: names of the function's arguments, one for each input of the graph.
        returned: how many of the graph's outputs are returned. The outputs after them are saved for the backward pass.
        saved: names of the saved outputs, in order.
        cotangents: names of the gradients of the returned outputs, in order.
        places: positions of the arguments whose gradients the backward pass returns.
        back: the graph that computes these gradients from ``saved`` and ``cotangents``.
    """

    arguments: tuple[str, ...]
    returned: int
    saved: tuple[str, ...]
    cotangents: tuple[str, ...]
    places: tuple[int, ...]
    back: Graph


@dataclass(frozen=True)
class Graph:
    """A problem's forward pass over all its variants.

    Attributes:
        variants: how many shape variants were captured; the first one is timed.
        inputs: inputs of ``forward``, parameters, buffers and constants.
        nodes: operators in execution order.
        outputs: what forward returns, flattened.
        structure: ``tensor``, ``tuple`` or ``list``.
        forward_parameters: names of the parameters of ``forward``, in order.
        module_source: the reference's text, from which the constructor is taken.
        attributes: whole numbers that the model keeps as attributes, by dotted name.
        forward_defaults: defaults of the parameters of ``forward`` that have one.
        indexed: dotted names of the modules whose children are reached by number (``self.layers[0]``); the model
            itself is the empty name.
        carry: how much of the reference's text the constructor needs (see ``_constructor.py``).
        writes: dotted names of the buffers that forward changes, each with its new value.
        gradient: the backward pass, if gradients are wanted.
        is_step: whether this is one step of a loop. Its outputs lie in memory of their own.
        payload: the JSON object that this graph was read from.
    """

    variants: int
    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Ref, ...]
    structure: str
    forward_parameters: tuple[str, ...]
    module_source: str
    attributes: Mapping[str, Size] = field(default_factory=dict)
    forward_defaults: Mapping[str, Any] = field(default_factory=dict)
    indexed: frozenset[str] = frozenset()
    carry: Carry = "needed"
    writes: tuple[tuple[str, Ref], ...] = ()
    gradient: Gradient | None = None
    is_step: bool = False
    payload: Mapping[str, Any] = field(repr=False, compare=False, default_factory=dict)

    @classmethod
    def from_json(cls, payload: str | Mapping[str, Any]) -> Graph:
        """Read the result of :func:`capture_entry`.

        Raises:
            CodegenError: the payload is not a graph of this format, or reports a failed capture.
        """
        data: Mapping[str, Any] = json.loads(payload) if isinstance(payload, str) else payload
        if not data.get("ok", False):
            raise CodegenError(f"there is no graph: {data.get('reason', 'the capture failed')}", **dict(data))
        if data.get("format") != FORMAT:
            raise CodegenError("unknown graph format", hint="capture the problem again with this version")
        try:
            return cls(
                variants=data["variants"],
                inputs=tuple(_input(entry, data["variants"]) for entry in data["inputs"]),
                nodes=tuple(_node(entry, data["variants"]) for entry in data["nodes"]),
                outputs=tuple(Ref(o["ref"], o.get("index", 0)) for o in data["outputs"]),
                structure=data["structure"],
                forward_parameters=tuple(data["forward_parameters"]),
                module_source=data["module_source"],
                attributes={k: _size(v, data["variants"]) for k, v in data.get("attributes", {}).items()},
                forward_defaults=_defaults(data.get("forward_defaults", {})),
                indexed=frozenset(map(str, data.get("indexed", ()))),
                carry=_carry(data.get("carry", "needed")),
                writes=tuple((str(w["target"]), Ref(w["ref"], w.get("index", 0))) for w in data.get("writes", ())),
                gradient=_gradient(data["gradient"], data["variants"]) if data.get("gradient") else None,
                payload=data,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CodegenError(f"malformed graph: {error!r}", hint="capture the problem again") from error

    @property
    def halves(self) -> tuple[Graph, ...]:
        """The graphs that kernels are written for: this graph, or its forward and its backward pass."""
        if self.gradient is None:
            return (self,)
        arguments = zip(self.inputs, self.gradient.arguments, strict=True)
        inputs = tuple(replace(i, kind="input", target=name, name=i.name) for i, name in arguments)
        return replace(self, inputs=inputs, attributes={}, gradient=None), self.gradient.back

    @property
    def operators(self) -> int:
        """How many operators one call of the timed variant runs, with loops written out."""
        found = ((node, node.repeat) for node in self.nodes)
        return sum(1 if loop is None else loop.steps.timed * loop.step.operators for _, loop in found)

    def place(self, target: str) -> str:
        """A dotted state_dict name as an expression of ``forward``."""
        text, reached = "self", ""
        for part in target.split("."):
            if part.isdigit() and reached in self.indexed:
                text += f"[{part}]"
            elif part.isidentifier() and not keyword.iskeyword(part):
                text += f".{part}"
            else:
                text = f"getattr({text}, {part!r})"
            reached = f"{reached}.{part}" if reached else part
        return text

    def to_json(self) -> str:
        """The text that :meth:`from_json` reads."""
        return json.dumps(self.payload, sort_keys=True)


def _part(entry: Mapping[str, Any], variants: int) -> Graph:
    """A graph within another one: a backward pass, or the step of a loop."""
    return Graph(
        variants=variants,
        inputs=tuple(_input(i, variants) for i in entry["inputs"]),
        nodes=tuple(_node(n, variants) for n in entry["nodes"]),
        outputs=tuple(Ref(o["ref"], o.get("index", 0)) for o in entry["outputs"]),
        structure="tuple",
        forward_parameters=(),
        module_source="",
    )


def _gradient(entry: Mapping[str, Any], variants: int) -> Gradient:
    return Gradient(
        arguments=_names(entry["arguments"]),
        returned=int(entry["returned"]),
        saved=_names(entry["saved"]),
        cotangents=_names(entry["cotangents"]),
        places=tuple(int(n) for n in entry["places"]),
        back=_part(entry, variants),
    )


def _names(words: Any) -> tuple[str, ...]:
    """Names of variables. Raises ValueError for anything else."""
    if not all(isinstance(word, str) and word.isidentifier() and not keyword.iskeyword(word) for word in words):
        raise ValueError(f"not all of {words!r} are names")
    return tuple(words)


def _size(value: Any, variants: int) -> Size:
    if isinstance(value, dict):
        return Size(tuple(int(v) for v in value["sizes"]))
    return Size.const(int(value), variants)


def _carry(value: Any) -> Carry:
    for carry in CARRIES:
        if value == carry:
            return carry
    raise ValueError(f"unknown carry {value!r}")


def _defaults(value: Mapping[str, Any]) -> dict[str, Any]:
    if not all(default is None or isinstance(default, bool | int | float | str) for default in value.values()):
        raise ValueError("a default of forward is not a plain value")
    return {str(name): default for name, default in value.items()}


def _info(entry: Mapping[str, Any], variants: int) -> TensorInfo:
    shape = tuple(_size(s, variants) for s in entry["shape"])
    return TensorInfo(shape, str(entry["dtype"]), bool(entry["contiguous"]))


def _input(entry: Mapping[str, Any], variants: int) -> Input:
    info = _info(entry, variants)
    return Input(entry["name"], entry["kind"], entry["target"], info, entry.get("data"))


def _node(entry: Mapping[str, Any], variants: int) -> Node:
    return Node(
        name=entry["name"],
        op=entry["op"],
        args=tuple(_argument(a) for a in entry["args"]),
        kwargs={k: _argument(v) for k, v in entry["kwargs"].items()},
        outputs=tuple(_info(o, variants) for o in entry["outputs"]),
        repeat=_repeat(entry["repeat"], variants) if "repeat" in entry else None,
    )


def _repeat(entry: Mapping[str, Any], variants: int) -> Repeat:
    step = replace(_part(entry, variants), is_step=True)
    _names(item.target for item in step.inputs)
    taken = ((int(t["input"]), _size(t["start"], variants), _size(t["stride"], variants)) for t in entry["taken"])
    carried = tuple((int(c["input"]), int(c["output"])) for c in entry["carried"])
    return Repeat(_size(entry["steps"], variants), tuple(taken), carried, int(entry["stacked"]), step)


def _argument(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_argument(v) for v in value)
    if not isinstance(value, dict):
        return value
    if "ref" in value:
        return Ref(value["ref"], value.get("index", 0))
    if "sizes" in value:
        return Size(tuple(int(v) for v in value["sizes"]))
    if "numbers" in value:
        return Scalar(tuple(float(v) for v in value["numbers"]))
    if "float" in value:
        return float(value["float"])
    if "symbol" in value:
        return Symbol(value["symbol"], value["value"])
    raise ValueError(f"unknown argument {value!r}")
