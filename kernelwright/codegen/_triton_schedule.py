"""The choices about a Triton candidate: its structure, and the constants of its kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kernelwright.codegen._attention_gradient import AttentionGradient
from kernelwright.codegen._attention_saved import without_weights
from kernelwright.codegen._graph import Graph
from kernelwright.codegen._nest import Nest
from kernelwright.codegen._plan import Plan, all_steps, completed
from kernelwright.codegen._triton_attention_choices import attention_choices
from kernelwright.codegen._triton_nest import PROGRAMS, fits_whole, kept_loops, useful_parts
from kernelwright.codegen._triton_products import product_choices, relevant_to_products, triton_plan
from kernelwright.records import KnobValue

# Every choice with its values, the default first. Names in capitals are constants of the candidate file (its KNOBS).
CHOICES: dict[str, tuple[KnobValue, ...]] = {
    "fusion": ("full", "rows", "none"),
    "gemm": ("own", "library"),  # also "mixed", "fp16x3" and "bf16x6", where products suit these
    "conv": ("library", "own"),  # also "fp16x3" and "bf16x6"
    "precision": ("ieee", "tf32x3"),
    "splits": (1, 2, 4, 8),
    "persistent": (False, True),
    "descriptors": (False, True),
    "attention": ("fused", "decomposed", "library"),
    "rows": ("whole", "blocks"),
    "split": (1, 4, 16, 64, 256),
    "fast_math": (False, True),
    "BLOCK": (1024, 256, 512, 2048, 4096),
    "WARPS": (4, 2, 8),
    "TILE": (4096, 1024, 2048, 8192),
    "COLUMNS": (64, 16, 32, 128),
    "REDUCE_WARPS": (4, 2, 8, 16),
    "LOOP_TILE": (512, 128, 256, 1024, 2048),
    "LOOP_WARPS": (4, 1, 2, 8),
    "LOOP_STAGES": (5, 3, 8, 1),
    "BLOCK_M": (64, 32, 128),
    "BLOCK_N": (64, 32, 128),
    "BLOCK_K": (32, 16),
    "GROUP_M": (8, 1, 4, 16),
    "GEMM_WARPS": (4, 2, 8),
    "GEMM_STAGES": (3, 2, 4, 5),
    "ATTENTION_M": (64, 16, 32, 128),
    "ATTENTION_N": (64, 32, 128),
    "ATTENTION_WARPS": (4, 8),
    "ATTENTION_STAGES": (2, 1, 3),
    "GRADIENT_M": (32, 16, 64, 128),
    "GRADIENT_N": (32, 16, 64, 128),
    "GRADIENT_WARPS": (8, 4),
    "GRADIENT_STAGES": (1, 2, 3),
}
CONSTANTS = tuple(name for name in CHOICES if name.isupper())
_FIXED = {"backend": "triton", "in_place": False}  # read by the steps that both emitters share
_APPROXIMATE = {"exp", "exp2", "log", "log2", "sin", "cos", "sqrt", "sigmoid", "silu", "mish", "softplus", "gelu_tanh"}


def choices(graph: Graph) -> dict[str, tuple[KnobValue, ...]]:
    """Every choice with its values, the default for this graph first."""
    found = dict(CHOICES)
    if _is_convolution(graph):
        found["conv"] = "own", "library"
    first = {**{name: values[0] for name, values in found.items()}, **_FIXED}
    graph = without_weights(graph, first)
    return found | _reductions(graph, first) | product_choices(graph, first) | attention_choices(graph, first)


def _reductions(graph: Graph, options: Mapping[str, Any]) -> dict[str, tuple[KnobValue, ...]]:
    """Few long rows or columns in parts first, and narrow tiles of columns where that keeps multiprocessors at work."""
    steps = [step for half in graph.halves for step in all_steps(triton_plan(half, options).steps)]
    nests = [step.nest for step in steps if step.nest is not None]
    parts = [useful_parts(nest) for nest in nests]
    whole = [n for n, count in zip(nests, parts, strict=True) if n.mode == "column" and count == 1]
    least = min((math.prod(loop.extent.timed for loop in kept_loops(nest)) for nest in whole), default=0)
    values = CHOICES["COLUMNS"]
    wide = [value for value in values if isinstance(value, int) and least // value >= PROGRAMS]
    first = max(wide, default=min(values)) if least and values[0] not in wide else values[0]
    columns = tuple(dict.fromkeys((first, *values)))
    return {"COLUMNS": columns, "split": tuple(dict.fromkeys((max(parts, default=1), *CHOICES["split"])))}


def _is_convolution(graph: Graph) -> bool:
    """True where the graph is a single convolution. If torch computed it, the candidate would have no kernel."""
    return len(graph.nodes) == 1 and graph.nodes[0].op.startswith("conv")


def complete(graph: Graph, schedule: Mapping[str, KnobValue]) -> dict[str, Any]:
    """A schedule with defaults for its missing choices.

    Raises:
        CodegenError: a choice is unknown, or has no such value.
    """
    return {**completed(choices(graph), schedule), **_FIXED}


def relevant(graph: Graph) -> tuple[str, ...]:
    """The choices that affect this graph's candidate."""
    options = complete(graph, {})
    graph = without_weights(graph, options)
    found = {name for half in graph.halves for name in _relevant(half, triton_plan(half, options))}
    found |= relevant_to_products(graph, options)
    return tuple(name for name in CHOICES if name in found)


def _relevant(graph: Graph, plan: Plan) -> set[str]:
    steps = list(all_steps(plan.steps))
    nests = [n for step in steps for n in (step.nest, step.epilogue) if n is not None]
    kinds = {step.kind for step in steps}
    names = {name for step in steps if step.nest is not None for name in _of_nest(step.nest)}
    if sum(len(s.values) for s in steps if s.nest is not None or s.epilogue is not None) > 1:
        names.add("fusion")
    if any(e.value.op in _APPROXIMATE for nest in nests for e in nest.order):
        names.add("fast_math")
    names |= {"conv"} if kinds & {"conv", "own_conv"} else set()
    names |= {"LOOP_TILE", "LOOP_WARPS", "LOOP_STAGES"} if any(s.inside for s in steps) else set()
    routines = {step.values[0].attrs["routine"] for step in steps if step.kind == "routine"}
    if "pool" in kinds or routines & {"segments", "counts"}:
        names |= {"BLOCK", "WARPS"}
    if "scan" in kinds or routines & {"extreme", "bins", "top"}:
        names |= {"TILE", "REDUCE_WARPS"}
        names |= {"COLUMNS"} if _scans_columns(plan) else set()
    if "attention" in kinds:
        attention = [s.values[0] for s in steps if s.kind == "attention"]
        backward = {isinstance(value.attrs["attention"], AttentionGradient) for value in attention}
        names |= {n for n in CHOICES if True in backward and n.startswith("GRADIENT")}
        names |= {n for n in CHOICES if False in backward and n.startswith("ATTENTION")}
        names |= {"precision"} if any(value.dtype == "float32" for value in attention) else set()
    if "attention" in kinds or any(n.op.startswith("scaled_dot_product_attention") for n in graph.nodes):
        names.add("attention")
    return names


def _of_nest(nest: Nest) -> set[str]:
    if nest.mode == "pointwise":
        return {"BLOCK", "WARPS"}
    names = {"TILE", "REDUCE_WARPS"}
    if kept_loops(nest) and fits_whole(nest):
        names.add("rows")
    if useful_parts(nest) > 1:
        names.add("split")
    if nest.mode == "column":
        names.add("COLUMNS")
    return names


def _scans_columns(plan: Plan) -> bool:
    first = [step.values[0] for step in all_steps(plan.steps)]
    scans = [v for v in first if v.op == "scan" or v.attrs.get("routine") == "extreme"]
    return any(not all(s.equals(1) for s in v.shape[v.attrs["dim"] + 1 :]) for v in scans)
