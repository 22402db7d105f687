"""Lowers ATen calls to the small operator set. An operator without a lowering stays a call into torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from kernelwright.codegen import (
    _lower_heavy,
    _lower_irregular,
    _lower_pointwise,
    _lower_reductions,
    _lower_views,
)
from kernelwright.codegen._builder import Builder, Unsupported
from kernelwright.codegen._graph import Graph, Node, Ref
from kernelwright.codegen._ir import BYTES, POINTWISE, Program, Value, reachable, root
from kernelwright.codegen._registry import TABLE
from kernelwright.codegen._size import product

_SMALL_PART = 4  # times a part fits into the whole, at least
_CHEAP = 16  # flops per element up to which computing a value twice beats writing and reading it
# Imported for their registrations.
_REGISTERED = (_lower_heavy, _lower_irregular, _lower_pointwise, _lower_reductions, _lower_views)


def lower(graph: Graph, keep: frozenset[str] = frozenset(), backend: str = "cpp") -> Program:
    """Lower a graph. Operators whose base name is in ``keep`` stay torch calls even where a lowering exists.

    So do nodes whose name is in it after ``node:``.
    """
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
        if node.repeat is not None:
            for index, value in enumerate(_loop(builder, node, tensors)):
                tensors[node.name, index] = value
            continue
        results = _lower_node(builder, node, tensors, keep)
        for index, value in enumerate(results):
            tensors[node.name, index] = value
    outputs = [tensors[ref.name, ref.index] for ref in graph.outputs]
    outputs = _in_memory(builder, outputs) if graph.is_step else outputs
    writes, counters = [], []
    for target, ref in graph.writes:
        value = tensors[ref.name, ref.index]
        step = _step_of(value, target)
        if step is None:
            writes.append(target)
            outputs.append(value)
        else:
            counters.append((target, step))
    _small_parts_apart(builder, outputs)
    _sum_columns_apart(builder, outputs)
    return Program(reachable(builder.values, outputs), outputs, graph.variants, writes, counters)


def _loop(builder: Builder, node: Node, tensors: Mapping[tuple[str, int], Value]) -> list[Value]:
    """The results of a loop, whose arguments are in memory."""
    arguments = [_resolve(a, tensors) for a in node.args]
    given = tuple(builder.copied(a) if a.is_view else a for a in arguments)
    first = node.outputs[0]
    loop = builder.make("repeat", given, first.shape, first.dtype, "loop", repeat=node.repeat)
    others = enumerate(node.outputs[1:], start=1)
    return [loop, *(builder.make("second", (loop,), o.shape, o.dtype, f"{loop.name}_{n}", index=n) for n, o in others)]


def _in_memory(builder: Builder, outputs: Iterable[Value]) -> list[Value]:
    """The outputs of a step, each in memory of its own: the next step reads that memory, or it is part of a result."""
    found: list[Value] = []
    for output in outputs:
        source = output
        while source.op == "reshape":
            source = source.args[0]
        shared = source.op != "leaf" and any(root(one) is source for one in found)
        found.append(builder.copied(output) if shared or source.is_view else output)
    return found


def _small_parts_apart(builder: Builder, outputs: list[Value]) -> None:
    """Let each reader of a small part of a pointwise value compute that part. All of it need not be written then."""
    values = reachable(builder.values, outputs)
    readers = Counter(operand for value in values for operand in value.inputs)
    for value in values:
        if value.is_view:
            continue
        value.args = tuple(
            _again(builder, a) if isinstance(a, Value) and readers[a] > 1 and _is_small_part(builder, a) else a
            for a in value.args
        )
    builder.values.sort(key=lambda v: v.order)


def _is_small_part(builder: Builder, value: Value) -> bool:
    while value.is_view:
        source: Value = value.args[0]
        sizes = [product(v.shape, builder.variants).timed for v in (value, source)]
        if value.op == "slice" and source.op in POINTWISE and sizes[0] * _SMALL_PART <= sizes[1]:
            return True
        value = source
    return False


def _sum_columns_apart(builder: Builder, outputs: list[Value]) -> None:
    """Let sums down columns recompute the operands that they share with others, if that is cheap.

    Column sums run over other loops than rows. A shared operand would be written by one nest and read by the other.
    """
    values = reachable(builder.values, outputs)
    users = Counter(operand for value in values for operand in value.inputs)
    for value in values:
        if value.op != "sum" or len(value.args[0].shape) - 1 in value.attrs["dims"]:
            continue
        summed: Value = value.args[0]
        chain = list(_chain(summed))
        shared = any(users[link] > 1 for link in chain)
        if shared and sum(link.cost for link in chain) <= _CHEAP:
            value.args = (_again(builder, summed),)
    builder.values.sort(key=lambda v: v.order)


def _chain(value: Value) -> Iterator[Value]:
    """The views and pointwise operators that compute a value from memory or from reductions."""
    if value.is_view or value.op in POINTWISE:
        yield value
        for operand in value.inputs:
            yield from _chain(operand)


def _again(builder: Builder, value: Value) -> Value:
    """A copy of a value that is computed separately, from memory or from reductions."""
    if not value.is_view and value.op not in POINTWISE:
        return value
    args = tuple(_again(builder, a) if isinstance(a, Value) else a for a in value.args)
    copy = replace(value, name=builder.unique(value.name), args=args)
    builder.values.append(copy)
    return copy


def _step_of(value: Value, target: str) -> int | None:
    """The whole number that a value adds to the buffer it is written to; None for any other value."""
    if value.op != "add" or value.shape:
        return None
    before, step = value.args
    same = isinstance(before, Value) and before.op == "leaf" and before.attrs["target"] == target
    return step if same and isinstance(step, int) else None


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
    if base in keep or f"node:{node.name}" in keep:
        reason = "left to the library by choice"
    elif handler is not None and all(o.dtype in (*builder.rank, *BYTES) for o in node.outputs):
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
    if info.dtype in BYTES and not (value.is_view and value.dtype == info.dtype):
        raise Unsupported(f"dtype {info.dtype}")
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
