"""Parts that the candidate files of all backends share: names, imports, the class, and the report on the steps."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from kernelwright.codegen._constructor import Constructor, constructor
from kernelwright.codegen._cost import plan_cost
from kernelwright.codegen._graph import Graph
from kernelwright.codegen._kernel import fused_operators
from kernelwright.codegen._partition import Step
from kernelwright.codegen._plan import OWN_KINDS, Plan
from kernelwright.records import KnobValue

_SHORT = {
    "_native_batch_norm_legit_no_training": "batch_norm",
    "_native_batch_norm_legit_functional": "batch_norm",
    "native_layer_norm": "layer_norm",
    "cross_entropy_loss": "cross_entropy",
    "linalg_vector_norm": "norm",
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "masked_fill": "mask",
    "scaled_dot_product_attention": "attention",
    "scaled_dot_product_attention_backward": "attention_backward",
    "conv2d": "conv",
    "convolution": "conv",
}
_MINOR = {"add", "sub", "mul", "div", "where", "mask", "bitwise_not", "sum", "mean", "eq", "ne", "pow", "expand", "to"}


@dataclass(frozen=True)
class Generated:
    """A candidate file and what is known about it.

    Attributes:
        source: the complete Python file.
        knobs: the schedule that was used: every choice that matters to this graph.
        report: one entry per step in execution order: ``kind``, ``name`` (of the kernel, or the library call),
            ``ops`` (the PyTorch operators in it), ``why`` (the reason where it stayed in torch), ``launches`` (of
            kernels and library calls), ``bytes``, ``flops``.
        bytes_moved: memory that the steps of the timed variant read and write, in bytes.
        flops: floating-point operations of one call of the timed variant.
    """

    source: str
    knobs: dict[str, KnobValue]
    report: tuple[dict[str, Any], ...]
    bytes_moved: int
    flops: int

    @property
    def launches(self) -> int:
        """Kernels that are launched and library calls that are made, in one call of the timed variant."""
        return sum(step.get("launches", 0) for step in self.report)

    @property
    def has_kernel(self) -> bool:
        """Whether a generated kernel computes at least one step."""
        return any(step["kind"] in OWN_KINDS for step in self.report)


def operators_of(step: Step) -> list[str]:
    """The PyTorch operators that a step computes, by their short names."""
    names = [] if step.kind == "nest" else [step.values[0].origin[1].split(".")[0]]
    for nest in (step.nest, step.epilogue):
        names += fused_operators(nest) if nest is not None else []
    return list(dict.fromkeys(_SHORT.get(n, n) for n in names))


def kernel_name(operators: list[str], taken: Collection[str]) -> str:
    """A name for the kernel of these operators that no other kernel has."""
    if {"rsqrt", "mean", "pow"} <= set(operators):  # as PyTorch users write it out
        operators = ["rms_norm", *(o for o in operators if o != "rsqrt")]
    major = [o for o in operators if o not in _MINOR] or operators
    base = name = "_".join([*(o.strip("_") for o in major[:3]), "kernel"])  # no clash with libm's exp, abs, ...
    n = 2
    while name in taken:
        name, n = f"{base}_{n}", n + 1
    return name


def title_of(step: Step) -> str:
    """What a step computes, in one line."""
    shapes = ", ".join("x".join(str(s.timed) for s in v.shape) or "a scalar" for v in step.outputs)
    return f"{' + '.join(operators_of(step))}: {shapes}"


def left_to_torch(step: Step, plan: Plan) -> dict[str, Any]:
    """The report's entry on a step that stays a call into torch."""
    value = step.values[0]
    operator = value.origin[1]
    why = plan.kept.get(value.origin[0]) or value.attrs.get("reason") or "left to the library by choice"
    return {"kind": "torch", "name": operator, "ops": [operator.split(".")[0]], "why": why}


def finished(
    plans: Sequence[Plan], source: str, knobs: dict[str, KnobValue], entries: list[dict[str, Any]]
) -> Generated:
    """A candidate with its report. ``entries`` has one entry per step, with ``again`` for bytes that move twice."""
    costs = [plan_cost(plan) for plan in plans]
    regions = [region for found in costs for region in found["regions"]]
    moved_by = [region["bytes_read"] + region["bytes_written"] + entry.pop("again", 0)
                for entry, region in zip(entries, regions, strict=True)]  # fmt: skip
    report = [{"launches": 1, **entry, "bytes": moved, "flops": region["flops"]}
              for entry, region, moved in zip(entries, regions, moved_by, strict=True)]  # fmt: skip
    if all(entry["kind"] == "torch" for entry in entries):
        report.append({"kind": "note", "name": "", "ops": [], "why": "nothing here to fuse", "bytes": 0, "flops": 0})
    return Generated(source, knobs, tuple(report), sum(moved_by), sum(found["flops"] for found in costs))


def signature(graph: Graph) -> str:
    """The parameters of ``forward`` with their defaults, as the reference declares them."""
    defaults = graph.forward_defaults
    return ", ".join(f"{p}={defaults[p]!r}" if p in defaults else p for p in graph.forward_parameters)


def carried(graph: Graph) -> Constructor:
    """The constructor that a candidate of this graph has."""
    return constructor(graph.module_source, graph.carry)


def class_head(made: Constructor) -> list[str]:
    """The lines of ``ModelNew`` before its ``forward``."""
    return [f"class ModelNew({made.bases or 'nn.Module'}):", *([made.init, ""] if made.init else [])]


def model_class(made: Constructor, graph: Graph, body: list[str]) -> str:
    """The class of a candidate around the statements of ``forward``."""
    lines = [*class_head(made), f"    def forward(self, {signature(graph)}):"]
    lines += ["        " + line for line in body]
    return "\n".join(lines)


def gradient_class(graph: Graph, there: list[str], back: list[str]) -> tuple[str, list[str]]:
    """An autograd function with the statements of both passes, and the statements of ``forward`` that call it."""
    gradient = graph.gradient
    assert gradient is not None
    lines = [
        "class Kernels(torch.autograd.Function):",
        "    @staticmethod",
        f"    def forward(ctx, {', '.join(gradient.arguments)}):",
        *("        " + line for line in there),
        "",
        "    @staticmethod",
        f"    def backward(ctx, {', '.join(gradient.cotangents)}):",
        *("        " + line for line in back),
    ]
    given = [i.target if i.kind == "input" else graph.place(i.target) for i in graph.inputs]
    call = f"Kernels.apply({', '.join(given)})"
    return "\n".join(lines), [f"return {call}" if graph.structure != "list" else f"return list({call})"]


def module_imports(made: Constructor, body: str, more: Sequence[str] = ()) -> list[str]:
    """The imports that the constructor and ``forward`` need, with ``more`` lines for the standard library."""
    future = [line for line in made.imports if line.startswith("from __future__")]
    lines = [*future, *more]
    lines += ["import math"] if "math." in body and "import math" not in made.imports else []
    lines.append("import torch")
    if "F." in body:
        lines.append("import torch.nn.functional as F")
    lines.append("from torch import nn")
    return lines + [i for i in made.imports if i not in lines]
