"""The choices about a C++ candidate: its structure, and the constants of its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelwright.codegen._graph import Graph
from kernelwright.codegen._ir import HALVES
from kernelwright.codegen._nest import SHORT_ROW, has_long_rows, has_uneven_rows, is_element
from kernelwright.codegen._plan import OWN_KINDS, Plan, all_steps, completed, make_plan
from kernelwright.records import KnobValue

# Every choice with its values, the default first. Names in capitals are constants of the candidate file (its KNOBS).
CHOICES: dict[str, tuple[KnobValue, ...]] = {
    "fusion": ("full", "rows", "none"),
    "gemm": ("own", "library"),
    "conv": ("own", "library"),
    "attention": ("decomposed", "library"),
    "tile": ("8x3", "12x2", "14x2", "6x3"),
    "scratch": ("keep", "recompute"),
    "tails": ("masked", "scalar"),
    "in_place": (True, False),
    "prefetch": (True, False),
    "reciprocal_math": (False, True),
    "VECTOR_BITS": (512, 256),
    "UNROLL": (False, True),
    "BLOCK": (256, 64, 128, 512, 1024),
    "GROUP_KB": (256, 64, 128, 512),
    "STRIPE": (64, 32, 128, 0),
}
CONSTANTS = ("VECTOR_BITS", "UNROLL", "BLOCK", "GROUP_KB", "STRIPE")


def choices(graph: Graph) -> dict[str, tuple[KnobValue, ...]]:
    """Every choice with its values, the default first."""
    plan = make_plan(graph, complete({}))
    found = dict(CHOICES)
    if _all_rows_are_short(plan):
        found["VECTOR_BITS"] = (256, 512)
    if any(step.kind == "own_matmul" and step.values[0].dtype in HALVES for step in plan.steps):
        found["gemm"] = ("library", "own")  # the library multiplies halves directly; our kernel widens them first
    return found


def _all_rows_are_short(plan: Plan) -> bool:
    """True where every kernel reduces short rows.

    Adding up the lanes of a vector takes longer than adding the few vectors of a short row: a sum over 31 numbers takes
    1.6 times as long in 512 bits as in 256.
    """
    nests = [step.nest for step in all_steps(plan.steps) if step.kind in OWN_KINDS]
    rows = [nest for nest in nests if nest is not None and nest.mode == "row"]
    return bool(rows) and len(rows) == len(nests) and all(n.inner[-1].extent.timed < SHORT_ROW for n in rows)


def complete(schedule: Mapping[str, KnobValue]) -> dict[str, Any]:
    """A schedule with defaults for its missing choices.

    Raises:
        CodegenError: a choice is unknown, or has no such value.
    """
    return completed(CHOICES, schedule, CONSTANTS)


def relevant(graph: Graph) -> tuple[str, ...]:
    """The choices that affect this graph's candidate."""
    found = {name for half in graph.halves for name in _relevant(half)}
    return tuple(n for n in CHOICES if n in found)


def _relevant(graph: Graph) -> list[str]:
    plan = make_plan(graph, complete({}))
    steps = list(all_steps(plan.steps))
    kinds = {step.kind for step in steps}
    names = ["VECTOR_BITS", "UNROLL", "reciprocal_math"]
    nests = [s for s in steps if s.nest is not None or s.epilogue is not None]
    if sum(len(s.values) for s in nests) > 1:
        names.append("fusion")
    if "own_matmul" in kinds:
        names += ["gemm", "tile", "GROUP_KB"]
    if "own_conv" in kinds:
        names += ["conv", "tile"]
    if any(n.op.startswith("scaled_dot_product_attention") for n in graph.nodes):
        names.append("attention")
    if _has_passes(plan):
        names.append("scratch")
    if _has_columns(plan):
        names.append("BLOCK")
    if any(s.nest is not None and has_long_rows(s.nest) for s in steps):
        names += ["STRIPE", "prefetch"]
    if any(s.kind == "nest" and s.nest is not None and has_uneven_rows(s.nest) for s in steps):
        names.append("tails")
    if any(s.alias for s in steps):
        names.append("in_place")
    return names


def _has_passes(plan: Plan) -> bool:
    """True where an element value may be kept from one pass over a row to the next."""
    for step in all_steps(plan.steps):
        nest = step.nest
        if nest is not None and any(e.stage > 0 and is_element(nest, e) for e in nest.order):
            return True
    return False


def _has_columns(plan: Plan) -> bool:
    for step in all_steps(plan.steps):
        if step.nest is not None and step.nest.mode == "column":
            return True
        first = step.values[0]
        runs = step.kind == "scan" or first.attrs.get("routine") == "extreme"
        if runs and first.attrs["dim"] < len(first.shape) - 1:
            return True
    return False
