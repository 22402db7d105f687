"""The choices about a CUDA candidate: its structure, and the constants of its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelwright.codegen._cuda_nest import MOST_KEPT, keeps_values
from kernelwright.codegen._graph import Graph
from kernelwright.codegen._ir import HALVES
from kernelwright.codegen._nest import Nest
from kernelwright.codegen._plan import Plan, all_steps, completed
from kernelwright.codegen._size import product
from kernelwright.codegen._triton_products import triton_plan
from kernelwright.records import KnobValue

# Every choice with its values, the default first. Names in capitals are constants of the candidate file (its KNOBS).
CHOICES: dict[str, tuple[KnobValue, ...]] = {
    "fusion": ("full", "rows", "none"),
    "attention": ("decomposed", "library"),
    "rows": ("whole", "blocks"),
    "fast_math": (False, True),
    "BLOCK": (256, 128, 512, 1024),
    "VECTOR": (4, 2, 1),
    "ITEMS": (1, 2, 4),
    "REDUCE_BLOCK": (256, 128, 512),
    "ROW_ITEMS": (2, 1, 4, 8),
    "COLUMNS": (32, 8, 16, 64),
    "STEPS": (4, 8, 2),
}
CONSTANTS = tuple(name for name in CHOICES if name.isupper())
_PROCESSORS = 132  # of an H100
_FIXED = {"backend": "cuda", "in_place": False, "gemm": "library", "conv": "library"}
_APPROXIMATE = {"exp", "log", "log2", "sin", "cos", "sigmoid", "silu", "mish", "softplus", "gelu_tanh"}


def choices(graph: Graph) -> dict[str, tuple[KnobValue, ...]]:
    """Every choice with its values, the default for this graph first."""
    found = dict(CHOICES)
    if {i.info.dtype for i in graph.inputs if "float" in i.info.dtype} <= {*HALVES}:
        found["VECTOR"] = (8, 4, 2, 1)  # 16 bytes
    options = {**{name: values[0] for name, values in found.items()}, **_FIXED}
    steps = [step for half in graph.halves for step in all_steps(cuda_plan(half, options).steps)]
    for nest in (step.nest for step in steps if step.nest is not None):
        if nest.mode == "column":
            columns = _columns(nest)
            found["COLUMNS"] = (columns, *(c for c in CHOICES["COLUMNS"] if c != columns))
        elif nest.mode == "row" and _is_few_long_rows(nest):
            found["REDUCE_BLOCK"] = (512, 256, 128)
    return found


def _columns(nest: Nest) -> int:
    """Threads side by side: few, if blocks of more would leave multiprocessors idle. 8 of them read whole sectors."""
    assert nest.vector is not None
    vectors = -(-nest.vector.extent.timed // 4) * product([lp.extent for lp in nest.outer], nest.variants).timed
    return next((count for count in (32, 16) if vectors >= count * _PROCESSORS), 8)


def _is_few_long_rows(nest: Nest) -> bool:
    """True where one block a row would leave a multiprocessor few threads."""
    rows, length = (product([lp.extent for lp in loops], nest.variants).timed for loops in (nest.outer, nest.inner))
    return 1 < rows <= 2 * _PROCESSORS and length > MOST_KEPT


def complete(graph: Graph, schedule: Mapping[str, KnobValue]) -> dict[str, Any]:
    """A schedule with defaults for its missing choices.

    Raises:
        CodegenError: a choice is unknown, or has no such value.
    """
    return {**completed(choices(graph), schedule), **_FIXED}


def cuda_plan(graph: Graph, options: Mapping[str, Any]) -> Plan:
    """The plan of a CUDA candidate: Triton's for products of the library. Loops over steps launch step by step."""
    plan = triton_plan(graph, options)
    for step in all_steps(plan.steps):
        step.inside = False
    return plan


def relevant(graph: Graph) -> tuple[str, ...]:
    """The choices that affect this graph's candidate."""
    options = complete(graph, {})
    found = {name for half in graph.halves for name in _relevant(half, cuda_plan(half, options))}
    return tuple(name for name in CHOICES if name in found)


def _relevant(graph: Graph, plan: Plan) -> set[str]:
    steps = list(all_steps(plan.steps))
    nests = [step.nest for step in steps if step.nest is not None]
    names = {name for nest in nests for name in _of_nest(nest)}
    if sum(len(s.values) for s in steps if s.nest is not None) > 1:
        names.add("fusion")
    if any(e.value.op in _APPROXIMATE for nest in nests for e in nest.order):
        names.add("fast_math")
    for step in steps:
        names |= {"BLOCK"} if step.kind == "pool" else set()
        if step.kind == "scan":
            names |= {"STEPS", "REDUCE_BLOCK"}
            value = step.values[0]
            across = not all(s.equals(1) for s in value.shape[value.attrs["dim"] + 1 :])
            names |= {"COLUMNS"} if across else set()
    if any(n.op.startswith("scaled_dot_product_attention") for n in graph.nodes):
        names.add("attention")
    return names


def _of_nest(nest: Nest) -> set[str]:
    if nest.mode == "pointwise":
        return {"BLOCK", "VECTOR", "ITEMS"}
    names = {"REDUCE_BLOCK", "VECTOR"} | ({"COLUMNS"} if nest.mode == "column" else {"ROW_ITEMS"})
    return names | ({"rows"} if keeps_values(nest) else set())
