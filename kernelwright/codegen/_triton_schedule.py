"""The choices about a Triton candidate: its structure, and the constants of its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelwright.codegen._graph import CodegenError, Graph
from kernelwright.codegen._ir import HALVES
from kernelwright.codegen._nest import Nest
from kernelwright.codegen._plan import Plan, make_plan
from kernelwright.codegen._triton_nest import fits_whole
from kernelwright.records import KnobValue

# Every choice with its values, the default first. Names in capitals are constants of the candidate file (its KNOBS).
CHOICES: dict[str, tuple[KnobValue, ...]] = {
    "fusion": ("full", "rows", "none"),
    "gemm": ("own", "library"),
    "conv": ("library", "own"),
    "attention": ("decomposed", "library"),
    "rows": ("whole", "blocks"),
    "fast_math": (False, True),
    "BLOCK": (1024, 256, 512, 2048, 4096),
    "WARPS": (4, 2, 8),
    "TILE": (4096, 1024, 2048, 8192),
    "COLUMNS": (64, 16, 32, 128),
    "REDUCE_WARPS": (4, 2, 8, 16),
    "BLOCK_M": (64, 32, 128),
    "BLOCK_N": (64, 32, 128),
    "BLOCK_K": (32, 16),
    "GROUP_M": (8, 1, 4, 16),
    "GEMM_WARPS": (4, 2, 8),
    "GEMM_STAGES": (3, 2, 4),
}
CONSTANTS = tuple(name for name in CHOICES if name.isupper())
_FIXED = {"backend": "triton", "in_place": False}  # read by the steps that both emitters share
_APPROXIMATE = {"exp", "exp2", "log", "log2", "sin", "cos", "sqrt", "sigmoid", "silu", "mish", "softplus", "gelu_tanh"}


def choices(graph: Graph) -> dict[str, tuple[KnobValue, ...]]:
    """Every choice with its values, the default for this graph first."""
    found = dict(CHOICES)
    if _is_convolution(graph):
        found["conv"] = ("own", "library")
    if {i.info.dtype for i in graph.inputs if "float" in i.info.dtype} <= {*HALVES}:
        found["BLOCK_K"] = (64, 32, 128)  # half the bytes: deeper tiles fit into the same shared memory
    return found


def _is_convolution(graph: Graph) -> bool:
    """True where the graph is a single convolution. If torch computed it, the candidate would have no kernel."""
    return len(graph.nodes) == 1 and graph.nodes[0].op.startswith("conv")


def complete(graph: Graph, schedule: Mapping[str, KnobValue]) -> dict[str, Any]:
    """A schedule with defaults for its missing choices.

    Raises:
        CodegenError: a choice is unknown, or has no such value.
    """
    known = choices(graph)
    for name, value in schedule.items():
        if name not in known:
            raise CodegenError(f"unknown choice {name!r}", hint=f"choices are {', '.join(known)}")
        if value not in known[name]:
            raise CodegenError(f"{name} cannot be {value!r}", hint=f"it is one of {', '.join(map(repr, known[name]))}")
    return {**{name: schedule.get(name, values[0]) for name, values in known.items()}, **_FIXED}


def relevant(graph: Graph) -> tuple[str, ...]:
    """The choices that affect this graph's candidate."""
    options = complete(graph, {})
    found = {name for half in graph.halves for name in _relevant(half, make_plan(half, options))}
    return tuple(name for name in CHOICES if name in found)


def _relevant(graph: Graph, plan: Plan) -> set[str]:
    nests = [n for step in plan.steps for n in (step.nest, step.epilogue) if n is not None]
    kinds = {step.kind for step in plan.steps}
    names = {name for nest in nests for name in _of_nest(nest)}
    if sum(len(s.values) for s in plan.steps if s.nest is not None or s.epilogue is not None) > 1:
        names.add("fusion")
    if any(e.value.op in _APPROXIMATE for nest in nests for e in nest.order):
        names.add("fast_math")
    names |= {"gemm"} if "own_matmul" in kinds else set()
    names |= {"conv"} if kinds & {"conv", "own_conv"} else set()
    if kinds & {"own_matmul", "own_conv"}:
        names |= {"BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "GEMM_WARPS", "GEMM_STAGES"}
    if "pool" in kinds:
        names |= {"BLOCK", "WARPS"}
    if "scan" in kinds:
        names |= {"TILE", "REDUCE_WARPS"}
        names |= {"COLUMNS"} if _scans_columns(plan) else set()
    if any(n.op.startswith("scaled_dot_product_attention") for n in graph.nodes):
        names.add("attention")
    return names


def _of_nest(nest: Nest) -> set[str]:
    if nest.mode == "pointwise":
        return {"BLOCK", "WARPS"}
    names = {"TILE", "REDUCE_WARPS"}
    parallel = [lp for lp in (*nest.outer, *([nest.vector] if nest.vector else [])) if not lp.reduced]
    if parallel and fits_whole(nest):
        names.add("rows")
    if nest.mode == "column":
        names.add("COLUMNS")
    return names


def _scans_columns(plan: Plan) -> bool:
    scans = [step.values[0] for step in plan.steps if step.kind == "scan"]
    return any(not all(s.equals(1) for s in v.shape[v.attrs["dim"] + 1 :]) for v in scans)
