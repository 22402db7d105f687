"""Lowering: ATen calls to the small operator set. What has no entry here stays a call into torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kernelwright.codegen import (
    _lower_heavy,
    _lower_pointwise,
    _lower_reductions,
    _lower_views,
)
from kernelwright.codegen._builder import Builder, Unsupported
from kernelwright.codegen._graph import Graph, Node, Ref
from kernelwright.codegen._ir import Program, Value
from kernelwright.codegen._registry import TABLE

# Imported for their registrations.
_REGISTERED = (_lower_heavy, _lower_pointwise, _lower_reductions, _lower_views)


def lower(graph: Graph, keep: frozenset[str] = frozenset(), backend: str = "cpp") -> Program:
    """Lower a graph. Operators whose base name is in ``keep`` stay torch calls even where a lowering exists."""
    builder = Builder(graph.variants, backend)
    tensors: dict[tuple[str, int], Value] = {}
    for item in graph.inputs:
        attrs = {"kind": item.kind, "target": item.target, "data": item.data, "contiguous": item.info.contiguous}
        if item.kind == "constant" and not item.info.shape:
            tensors[item.name, 0] = builder.make("full", (item.data,), (), item.info.dtype)
            continue
        name = item.target.replace(".", "_") if item.kind != "constant" else item.name
        tensors[item.name, 0] = builder.make("leaf", (), item.info.shape, item.info.dtype, name, **attrs)
    for node in graph.nodes:
        if not node.outputs:
            continue  # an assertion about the input
        builder.origin = (node.name, node.op)
        results = _lower_node(builder, node, tensors, keep)
        for index, value in enumerate(results):
            tensors[node.name, index] = value
    outputs = [tensors[ref.name, ref.index] for ref in graph.outputs]
    return Program(_reachable(builder.values, outputs), outputs, graph.variants)


def _lower_node(
    builder: Builder,
    node: Node,
    tensors: Mapping[tuple[str, int], Value],
    keep: frozenset[str],
) -> list[Value]:
    args = tuple(_resolve(a, tensors) for a in node.args)
    kwargs = {k: _resolve(v, tensors) for k, v in node.kwargs.items()}
    base = node.op.split(".")[0]
    handler: Callable[..., Any] | None = TABLE.get(node.op) or TABLE.get(base)
    reason = "no template for it yet"
    if base in keep or node.name in keep:
        reason = "left to the library by choice"
    elif handler is not None and all(o.dtype in builder.rank for o in node.outputs):
        mark = len(builder.values)
        try:
            result = handler(builder, *args, **kwargs)
            results = list(result) if isinstance(result, (list, tuple)) else [result]
            return [_checked(builder, value, node, i) for i, value in enumerate(results)]
        except Unsupported as error:
            reason = str(error)
        except TypeError:
            reason = "called with arguments that the template does not take"
        del builder.values[mark:]
    return _extern(builder, node, args, kwargs, reason)


def _checked(builder: Builder, value: Value, node: Node, index: int) -> Value:
    """The lowered value in exactly the captured shape and dtype."""
    info = node.outputs[index]
    if value.shape != info.shape:
        raise Unsupported("the lowering found another shape")
    return builder.cast(value, info.dtype)


def _extern(builder: Builder, node: Node, args: tuple[Any, ...], kwargs: Mapping[str, Any], reason: str) -> list[Value]:
    attrs = {"aten": node.op, "kwargs": dict(kwargs), "extra": tuple(kwargs.values()), "reason": reason}
    first = node.outputs[0]
    call = builder.make("extern", args, first.shape, first.dtype, node.name, multiple=len(node.outputs) > 1, **attrs)
    if len(node.outputs) == 1:
        return [call]
    return [
        builder.make("item", (call,), info.shape, info.dtype, f"{node.name}_{index}", index=index)
        for index, info in enumerate(node.outputs)
    ]


def _resolve(argument: Any, tensors: Mapping[tuple[str, int], Value]) -> Any:
    if isinstance(argument, Ref):
        return tensors[argument.name, argument.index]
    if isinstance(argument, tuple):
        return tuple(_resolve(a, tensors) for a in argument)
    return argument


def _reachable(values: list[Value], outputs: list[Value]) -> list[Value]:
    needed: set[Value] = set()
    stack = list(outputs)
    while stack:
        value = stack.pop()
        if value not in needed:
            needed.add(value)
            stack.extend(value.inputs)
    return [v for v in values if v in needed]
