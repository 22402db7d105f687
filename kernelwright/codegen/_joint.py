"""Capture with gradients: forward and backward as one graph, cut into the two halves of an autograd function.

Worker side only, like ``_capture.py``. Values of the forward pass that the backward pass needs are saved, except views
and cheap pointwise operators. Computing those again costs less than writing and reading them.
"""

from __future__ import annotations

import inspect
import keyword
import operator
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from kernelwright.codegen._nodes import (
    CaptureFault,
    Written,
    attributes_of,
    defaults_of,
    indexed_of,
    needs_decomposition,
    parameter_names,
    tensor_entry,
)
from kernelwright.datasets.runtime import load_reference, make_init_inputs, make_inputs, make_model, settle_device

_AGAIN = frozenset(
    [
        "t",
        "transpose",
        "permute",
        "view",
        "reshape",
        "_unsafe_view",
        "expand",
        "unsqueeze",
        "squeeze",
        "slice",
        "select",
        "detach",
        "alias",
        "clone",
        "_to_copy",
        "full",
        "full_like",
        "zeros_like",
        "ones_like",
        "scalar_tensor",
        "add",
        "sub",
        "rsub",
        "mul",
        "neg",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "where",
        "relu",
        "logical_not",
        "bitwise_not",
        "logical_and",
        "exp",
        "sigmoid",
        "silu",
        "tanh",
        "gelu",
    ]
)


def export_with_gradients(source: str, variant: Mapping[str, Any], mode: str) -> dict[str, Any]:
    """The graph of the forward pass, with the backward pass under ``gradient`` (see :class:`Gradient`).

    Raises:
        CaptureFault: the model cannot be traced, or uses operators that change their arguments.
    """
    module = load_reference(source, dict(variant))
    model = make_model(module, make_init_inputs(module, 0))
    inputs = make_inputs(module, 0)
    model.train(mode == "train")
    settle_device(model, inputs)
    parameters = inspect.signature(model.forward).parameters
    names = parameter_names(parameters, len(inputs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            traced = Joint(model, inputs, names).graph()
        except CaptureFault:
            raise
        except Exception as error:
            said = str(error).partition("\n")[0][:300]
            raise CaptureFault(f"tracing with gradients: {type(error).__name__}: {said}") from error
    return {
        **traced,
        "forward_parameters": names,
        "forward_defaults": defaults_of(parameters),
        "attributes": attributes_of(model),
        "indexed": indexed_of(model),
    }


class Joint:
    """One trace: the arguments of the autograd function are the inputs of forward, and the state that it reads."""

    def __init__(self, model: nn.Module, inputs: list[Any], names: Sequence[str]) -> None:
        state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        places = [(name, "input", value) for name, value in zip(names, inputs, strict=True)]
        places += [
            (name, "parameter" if isinstance(value, nn.Parameter) else "buffer", value) for name, value in state.items()
        ]
        self.model, self.inputs = model, inputs
        self.places = [place for place in places if isinstance(place[2], torch.Tensor)]
        self.names = _identifiers([name for name, _, _ in self.places])
        wanted = [kind == "input" or value.requires_grad for _, kind, value in self.places]
        floats = [value.is_floating_point() for _, _, value in self.places]
        self.wanted = [n for n in range(len(self.places)) if wanted[n] and floats[n]]
        self.structure = "tensor"

    def graph(self) -> dict[str, Any]:
        """Both halves as plain data."""
        from torch.fx.experimental.proxy_tensor import (
            make_fx,
        )  # most captures want no gradients, and need no such import

        leaves, cotangents = self.arguments()
        table = {
            op: decompose
            for op, decompose in torch._decomp.core_aten_decompositions().items()
            if "backward" in str(op) or needs_decomposition(str(op).removeprefix("aten."))
        }
        trace = make_fx(lambda *given: self.both(*given), decomposition_table=table, tracing_mode="fake")
        traced = trace(leaves, cotangents)
        if any(_changes(node) for node in traced.graph.nodes):  # as the decompositions of some gradients do
            given = [leaf.detach() for leaf in leaves]
            traced = make_fx(torch.func.functionalize(traced), tracing_mode="fake")(given, cotangents)
        traced.graph.eliminate_dead_code()
        return self._halves(traced, self.returned, self.floats)

    def arguments(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The arguments of :meth:`both`: inputs and state, and gradients of the outputs."""
        leaves = [v.detach().clone().requires_grad_(n in self.wanted) for n, (_, _, v) in enumerate(self.places)]
        outputs = self._forward(leaves)
        self.returned, self.floats = len(outputs), [o.is_floating_point() for o in outputs]
        return leaves, [torch.ones_like(o) for o in outputs if o.is_floating_point()]

    def _forward(self, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        given = dict(zip((name for name, _, _ in self.places), leaves, strict=True))
        state = {name: given[name] for name, kind, _ in self.places if kind != "input"}
        tensors = iter([t for t, (_, kind, _) in zip(leaves, self.places, strict=True) if kind == "input"])
        inputs = tuple(next(tensors) if isinstance(value, torch.Tensor) else value for value in self.inputs)
        result = torch.func.functional_call(self.model, state, inputs)
        if isinstance(result, torch.Tensor):
            return [result]
        if type(result) not in (tuple, list) or not all(isinstance(r, torch.Tensor) for r in result):
            raise CaptureFault("the forward pass returns something that is not a tensor or a flat tuple of tensors")
        self.structure = type(result).__name__
        return list(result)

    def both(self, leaves: list[torch.Tensor], cotangents: list[torch.Tensor]) -> list[Any]:
        """The outputs, then the gradients of the arguments that are wanted."""
        outputs = self._forward(leaves)
        floats = [o for o in outputs if o.is_floating_point()]
        found = torch.autograd.grad(floats, [leaves[n] for n in self.wanted], cotangents, allow_unused=True)
        return [*outputs, *found]

    def _halves(self, traced: Any, count: int, floats: Sequence[bool]) -> dict[str, Any]:
        nodes = list(traced.graph.nodes)
        placeholders = [n for n in nodes if n.op == "placeholder"]
        results = next(n for n in nodes if n.op == "output").args[0]
        outputs, gradients = list(results[:count]), list(results[count:])
        for node in nodes:
            if node.op not in ("placeholder", "call_function", "output"):
                raise CaptureFault(f"the trace holds a {node.op}")
            if _changes(node):
                raise CaptureFault(f"{node.target} changes its arguments, which generated code cannot do")
        arguments, tangents = placeholders[: len(self.places)], placeholders[len(self.places) :]
        there = _ancestors(outputs)
        there |= {n for n in nodes if n.target is operator.getitem and n.args[0] in there}
        back = _ancestors([g for g in gradients if g is not None]) - there - set(placeholders)
        again = _computed_again(back, there - set(placeholders))
        kept = [n for n in nodes if n not in back | again and _is_used(n, back | again | set(gradients))]
        kept = [n for n in kept if n not in tangents]
        called = dict(zip(arguments, self.names, strict=True))
        saved = [called.get(node, f"saved_{number}") for number, node in enumerate(kept)]
        cotangents = iter(tangents)
        given = [(f"grad_{n}", next(cotangents) if is_float else None) for n, is_float in enumerate(floats)]
        forward = Written([(name, node, True) for node, name in called.items()], [n for n in nodes if n in there])
        way_back = [
            *zip(saved, kept, [True] * len(kept), strict=True),
            *((n, t, False) for n, t in given if t is not None),
        ]
        backward = Written(way_back, [n for n in nodes if n in back | again])
        found = dict(zip(self.wanted, gradients, strict=True))
        return {
            "inputs": [
                {"name": name, "kind": kind, "target": target, **tensor_entry(node.meta["val"])}
                for name, node, (target, kind, _) in zip(self.names, arguments, self.places, strict=True)
            ],
            "nodes": forward.nodes,
            "outputs": [forward.argument(n) for n in [*outputs, *kept]],
            "structure": self.structure,
            "gradient": {
                "arguments": self.names,
                "returned": count,
                "saved": saved,
                "cotangents": [name for name, _ in given],
                "inputs": backward.inputs,
                "nodes": backward.nodes,
                "outputs": [backward.argument(g) for g in gradients if g is not None],
                "places": [n for n, g in found.items() if g is not None],
            },
        }


def _identifiers(names: Sequence[str]) -> list[str]:
    """Names of state and inputs as variables, no two alike."""
    found: list[str] = []
    for name in names:
        text = "".join(c if c.isalnum() else "_" for c in name)
        text = f"{text}_" if keyword.iskeyword(text) or text in ("ctx", "torch") else text
        while text in found:
            text += "_"
        found.append(text)
    return found


def _ancestors(nodes: Sequence[Any]) -> set[Any]:
    found, stack = set(), list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.all_input_nodes)
    return found


def _computed_again(back: set[Any], there: set[Any]) -> set[Any]:
    """The nodes of the forward pass that the backward pass computes again instead of keeping them."""
    again: set[Any] = set()
    stack = [a for node in back for a in node.all_input_nodes]
    while stack:
        node = stack.pop()
        if node in there and node not in again and _short(node) in _AGAIN:
            again.add(node)
            stack.extend(node.all_input_nodes)
    return again


def _changes(node: Any) -> bool:
    """Whether a call changes its arguments."""
    return isinstance(node.target, torch._ops.OpOverload) and bool(node.target._schema.is_mutable)


def _short(node: Any) -> str:
    return str(node.target).removeprefix("aten.").split(".")[0]


def _is_used(node: Any, users: set[Any]) -> bool:
    return node in users or any(user in users for user in node.users)
