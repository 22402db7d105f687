"""Bytes and flops of a graph, step by step: for the bound class, the roofline and the report."""

from __future__ import annotations

import math
from typing import Any

from kernelwright.codegen._graph import Graph
from kernelwright.codegen._ir import Value, root
from kernelwright.codegen._nest import Nest, is_element
from kernelwright.codegen._partition import Step
from kernelwright.codegen._plan import Plan, make_plan
from kernelwright.codegen._schedule import complete
from kernelwright.datasets import ITEM_BYTES

_OF_INTERMEDIATES = {"complex32": 4, "complex64": 8, "complex128": 16}  # dtypes that no input or output has


def count(value: Value) -> int:
    """Elements of a value in the timed variant."""
    total = 1
    for size in value.shape:
        total *= size.timed
    return total


def size_bytes(value: Value) -> int:
    """Bytes of a value in the timed variant."""
    return count(value) * (ITEM_BYTES.get(value.dtype) or _OF_INTERMEDIATES.get(value.dtype, 1))


def step_bytes(step: Step) -> tuple[int, int]:
    """Bytes that a step reads and writes."""
    read = sum(size_bytes(v) for v in step.reads if v.op not in ("full", "iota"))
    return read, sum(size_bytes(v) for v in step.outputs)


def step_flops(step: Step) -> int:
    """Floating-point operations of a step, roughly."""
    total = 0
    for value in step.values:
        if value.op == "matmul":
            total += 2 * count(value) * value.args[0].shape[-1].timed
        elif value.op == "conv":
            weight = value.args[1]
            total += 2 * count(value) * count(weight) // max(weight.shape[0].timed, 1)
        elif value.op == "pool":
            total += count(value) * math.prod(size.timed for size in value.attrs["kernel"])
        elif value.op == "attention":
            found = value.attrs["attention"]
            total += 2 * count(found.product) * found.features
        elif value.op == "scan":
            total += count(value)
        elif value.op == "routine":
            total += max(count(v) for v in (value, *value.inputs))
    for nest in (step.nest, step.epilogue):
        total += _nest_flops(nest) if nest is not None else 0
    return total


def _nest_flops(nest: Nest) -> int:
    volume = nest.volume().timed
    rows = 1
    for loop in nest.outer:
        rows *= loop.extent.timed
    return sum(
        (e.value.cost or 0) * (volume if is_element(nest, e) or e.kind == "reduce" else rows) for e in nest.order
    )


def plan_cost(plan: Plan) -> dict[str, Any]:
    """See :func:`cost`."""
    regions: list[dict[str, Any]] = []
    for step in plan.steps:
        read, written = step_bytes(step)
        flops = step_flops(step)
        if step.body is not None:
            steps, once = step.values[0].attrs["repeat"].steps.timed, plan_cost(step.body)["regions"]
            flops = steps * sum(region["flops"] for region in once)
            if not step.inside:
                read, written = (steps * sum(region[key] for region in once) for key in ("bytes_read", "bytes_written"))
        regions.append(
            {
                "kind": step.kind,
                "outputs": [v.name for v in step.outputs],
                "bytes_read": read,
                "bytes_written": written,
                "flops": flops,
                "intensity": flops / max(read + written, 1),
            }
        )
    memory = {v for v in plan.program.values if v.op == "leaf"} | {root(o) for o in plan.program.outputs}
    least = sum(size_bytes(v) for v in memory)
    moved = sum(r["bytes_read"] + r["bytes_written"] for r in regions)
    flops = sum(r["flops"] for r in regions)
    return {
        "bytes_least": least,
        "bytes_moved": moved,
        "flops": flops,
        "intensity": flops / max(least, 1),
        "regions": regions,
    }


def cost(graph: Graph) -> dict[str, Any]:
    """The memory traffic and the flops of the timed variant.

    Returns:
        ``bytes_least`` (every input read and every output written once), ``bytes_moved`` (bytes that the steps of the
        default schedule read and write), ``flops``, ``intensity`` (flops per byte of ``bytes_least``), and ``regions``:
        the same for each step.
    """
    halves = [plan_cost(make_plan(half, complete({}))) for half in graph.halves]
    whole = {name: sum(half[name] for half in halves) for name in ("bytes_least", "bytes_moved", "flops")}
    regions = [region for half in halves for region in half["regions"]]
    return {**whole, "intensity": whole["flops"] / max(whole["bytes_least"], 1), "regions": regions}
