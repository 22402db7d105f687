"""Turns a traced graph, and facts about its model, into plain data. All ways of tracing use it.

Worker side only, like ``_capture.py``.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

# Operators that only rewrite themselves into others that the generator knows.
_DECOMPOSED = ("einsum", "std.default", "instance_norm", "addcmul", "lerp", "outer", "tensordot", "logaddexp", "rsub")


class CaptureFault(Exception):
    """The graph cannot be captured; the message says why in one line."""


def needs_decomposition(name: str) -> bool:
    """Whether an operator only rewrites itself into others that the generator knows."""
    return any(name == d or name.split(".")[0] == d for d in _DECOMPOSED)


def defaults_of(parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """The defaults of the parameters of ``forward``; None for a default that is not a plain value."""
    return {
        p.name: p.default if isinstance(p.default, bool | int | float | str) else None
        for p in parameters.values()
        if p.default is not p.empty
    }


def parameter_names(parameters: Mapping[str, inspect.Parameter], count: int) -> list[str]:
    """The names of the parameters of ``forward``. ``*args`` gets one name per remaining input of ``count``."""
    names: list[str] = []
    for name, parameter in parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{name}_{number}" for number in range(count - len(names))]
        elif parameter.kind is not parameter.VAR_KEYWORD:
            names.append(name)
    return names


def indexed_of(model: nn.Module) -> list[str]:
    """Names of the modules whose children are reached by number: ``module[0]`` is the child named ``0``."""
    named = (nn.ModuleDict, nn.ParameterDict)
    return [n for n, m in model.named_modules() if hasattr(type(m), "__getitem__") and not isinstance(m, named)]


def attributes_of(model: nn.Module) -> dict[str, int]:
    """Whole numbers that the model and its submodules keep as public attributes: sizes that no shape shows."""
    found = {}
    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            if type(value) is int and not name.startswith("_"):
                found[f"{prefix}.{name}" if prefix else name] = value
    return found


class Nodes:
    """Turns the nodes of a graph into plain data."""

    def __init__(self) -> None:
        self.names: dict[Any, dict[str, Any]] = {}

    def _called(self, node: Any) -> list[dict[str, Any]]:
        """The entry of a call. Taking one of several results needs none: the result is named after its call."""
        if node.target is operator.getitem:
            self.names[node] = {**self.names[node.args[0]], "index": node.args[1]}
            return []
        return [self._node(node)]

    def _node(self, node: Any) -> dict[str, Any]:
        if not isinstance(node.target, torch._ops.OpOverload):
            raise CaptureFault(f"unsupported call {node.target}")
        self.names[node] = {"ref": node.name}
        value = node.meta.get("val")
        outputs = value if isinstance(value, (tuple, list)) else [value]
        given = [o is not None for o in outputs]
        if given != sorted(given, reverse=True):
            raise CaptureFault(f"{node.target} leaves out a result before another")
        if not all(isinstance(o, torch.Tensor) for o in outputs if o is not None):
            raise CaptureFault(f"{node.target} has a result that is not a tensor")
        return {
            "name": node.name,
            "op": str(node.target).removeprefix("aten."),
            "args": [self._argument(a) for a in _with_defaults(node)],
            "kwargs": {k: self._argument(v) for k, v in node.kwargs.items()},
            "outputs": [tensor_entry(o) for o in outputs if o is not None],
        }

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            if value not in self.names:
                raise CaptureFault(f"the graph uses {value}, which is not a tensor")
            return self.names[value]
        if isinstance(value, (list, tuple)):
            return [self._argument(v) for v in value]
        if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
            return {"symbol": type(value).__name__, "value": str(value).removeprefix("torch.")}
        if value is None or isinstance(value, (bool, int, float, str)):
            return plain(value)
        raise CaptureFault(f"the graph holds an argument of type {type(value).__name__}")


class Written(Nodes):
    """Part of a traced graph as plain data.

    Args:
        given: inputs of the part: name, node, and whether it is as contiguous at run time as it is in the trace.
        nodes: the nodes of the part in execution order.
    """

    def __init__(self, given: Sequence[tuple[str, Any, bool]], nodes: Sequence[Any]) -> None:
        super().__init__()
        self.inputs = []
        for name, node, known in given:
            self.names[node] = {"ref": name}
            entry = {"name": name, "kind": "input", "target": name, **tensor_entry(node.meta["val"])}
            self.inputs.append({**entry, "contiguous": entry["contiguous"] and known})
        self.nodes = [entry for node in nodes if node.op == "call_function" for entry in self._called(node)]

    def argument(self, node: Any) -> dict[str, Any]:
        """How the graph names a result."""
        return dict(self.names[node])


def _with_defaults(node: Any) -> list[Any]:
    """Positional arguments with the schema's defaults filled in, so that variants agree in how a call is written."""
    args = list(node.args)
    for parameter in node.target._schema.arguments[len(args) :]:
        if parameter.kwarg_only or parameter.name in node.kwargs or not parameter.has_default_value():
            break
        args.append(parameter.default_value)
    return args


def plain(value: Any) -> Any:
    """Numbers as strict JSON: infinities and NaN become ``{"float": "inf"}``."""
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return {"float": str(value)}
    return value


def tensor_entry(value: torch.Tensor) -> dict[str, Any]:
    return {
        "shape": [int(s) for s in value.shape],
        "dtype": str(value.dtype).removeprefix("torch."),
        "contiguous": bool(value.is_contiguous()),
    }
