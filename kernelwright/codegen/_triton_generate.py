"""Writes a Triton candidate file from a graph and a schedule."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kernelwright.codegen._attention_gradient import AttentionGradient
from kernelwright.codegen._attention_saved import without_weights
from kernelwright.codegen._file import (
    Generated,
    carried,
    finished,
    gradient_class,
    kernel_name,
    left_to_torch,
    model_class,
    module_imports,
    operators_of,
    title_of,
)
from kernelwright.codegen._graph import Graph
from kernelwright.codegen._ir import Program
from kernelwright.codegen._partition import Step
from kernelwright.codegen._plan import Plan
from kernelwright.codegen._repeat import write_repeat
from kernelwright.codegen._triton_attention import attention_kernel
from kernelwright.codegen._triton_attention_gradient import gradient_kernel
from kernelwright.codegen._triton_forward import TritonForward
from kernelwright.codegen._triton_gemm import gemm_kernels
from kernelwright.codegen._triton_loop import loop_kernel
from kernelwright.codegen._triton_math import fast, helpers
from kernelwright.codegen._triton_nest import bytes_again, nest_kernels
from kernelwright.codegen._triton_products import triton_plan
from kernelwright.codegen._triton_routines import routine_kernel
from kernelwright.codegen._triton_schedule import CONSTANTS, choices, complete, relevant
from kernelwright.codegen._triton_templates import pool_kernel, scan_kernel
from kernelwright.codegen._triton_tiles import Kernel
from kernelwright.records import KnobValue

_OWN_KINDS = ("nest", "pool", "scan", "routine", "attention", "own_matmul", "own_conv", "repeat")
_IMPORTS = ["", "import triton", "import triton.language as tl"]


def generate_triton(graph: Graph, schedule: Mapping[str, KnobValue] | None = None) -> Generated:
    """Write a Triton candidate file.

    Args:
        graph: the captured problem, in all shapes that the kernels are for.
        schedule: choices from :func:`schedule_space`. A missing choice has its default.

    Raises:
        CodegenError: the schedule has an unknown choice, or the graph has no candidate.
    """
    options = complete(graph, schedule or {})
    plans = []
    emitter = TritonEmitter(options)
    graph = without_weights(graph, options)
    for half in graph.halves:
        plan = triton_plan(half, options)
        emitter.begin(half, plan)
        for step in plan.steps:
            emitter.step(step)
        plans.append(plan)
    knobs = {name: options[name] for name in relevant(graph)}
    return finished(plans, emitter.file(graph), knobs, emitter.report)


class TritonEmitter:
    """Writes the steps of plans, and then the file around them."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options
        self.kernels: list[Kernel] = []
        self.report: list[dict[str, Any]] = []
        self.written: list[TritonForward] = []
        self.loops: list[str] = []
        self.constants: list[str] = []

    def writer(self, program: Program, graph: Graph) -> TritonForward:
        """A writer of statements."""
        return TritonForward(program, graph)

    def begin(self, graph: Graph, plan: Plan) -> None:
        """Start with the steps of the next plan."""
        self.graph, self.plan = graph, plan
        self.forward = self.writer(plan.program, graph)
        self.written.append(self.forward)

    def step(self, step: Step) -> None:
        """One step: its kernels if it has any, and its lines of ``forward``."""
        if step.kind == "repeat" and not step.inside:
            write_repeat(self, step)
            return
        if step.values[0].op in ("pool", "conv"):
            self.forward.window_sizes(step.values[0])
        if step.kind not in _OWN_KINDS:
            self.forward.library(step)
            self.report.append(left_to_torch(step, self.plan))
            return
        operators = operators_of(step.body.steps[0] if step.inside else step)
        name = kernel_name(operators, [k.name for k in self.kernels])
        kernels = self._kernels(step, name, title_of(step))
        self.kernels += kernels
        for value in step.outputs:
            if value in step.alias:
                self.forward.variables[value] = self.forward.variables[step.alias[value]]
            else:
                self.forward.allocate(value)
        for kernel in kernels:
            self.forward.launch(kernel)
        again = bytes_again(step.nest, kernels, self.options) if step.nest is not None else 0
        self.report.append({"kind": step.kind, "name": name, "ops": operators, "why": "",
                            "launches": len(kernels), "again": again})  # fmt: skip

    def _kernels(self, step: Step, name: str, title: str) -> list[Kernel]:
        variants = self.graph.variants
        if step.nest is not None:
            return nest_kernels(step.nest, name, title, self.options)
        if step.kind in ("own_matmul", "own_conv"):
            return gemm_kernels(step, name, title, variants, self.options)
        if step.kind == "attention":
            backward = isinstance(step.values[0].attrs["attention"], AttentionGradient)
            write = gradient_kernel if backward else attention_kernel
            return [write(step.values, name, title, self.options)]
        if step.kind == "repeat":
            return [loop_kernel(step, name, title, variants)]
        if step.kind == "routine":
            return [routine_kernel(step, name, title, variants)]
        template = pool_kernel if step.kind == "pool" else scan_kernel
        return [template(step.values[0], name, title, variants)]

    # ------------------------------------------------------------------------------------------ the file

    def file(self, graph: Graph) -> str:
        """The text of the candidate file."""
        made = carried(graph)
        function = ""
        if graph.gradient is None:
            body = self.forward.body(graph.structure)
        else:
            there, back = self.written
            ways = there.way_there(graph.gradient, graph.structure), back.way_back(graph.gradient)
            function, body = gradient_class(graph, *ways)
        text = "\n".join([*self.loops, function, *body])
        imports = module_imports(made, text)
        parts = []
        if self.kernels:
            code = self.code()
            imports += self.code_imports(code)
            parts += [self._knobs(graph, text, code), "\n" + code.strip()]
        if constants := [*self.constants, *(line for half in self.written for line in half.constants)]:
            parts.append("\n".join(constants))
        parts += ["\n" + part for part in (made.helpers, *self.loops, function) if part]
        parts.append("\n" + model_class(made, graph, body))
        return "\n\n".join(["\n".join(imports), *parts]) + "\n"

    def code(self) -> str:
        """The kernels, with the functions that they call."""
        code = "\n\n".join(k.text for k in self.kernels)
        code = "\n\n".join(text.strip() + "\n" for text in (helpers(code), code) if text)
        return fast(code) if self.options["fast_math"] else code

    def code_imports(self, code: str) -> list[str]:
        """The lines with which a file imports what its kernels need."""
        return [*_IMPORTS, *(["from triton.language.extra import libdevice"] if "libdevice." in code else [])]

    def constants_of(self, graph: Graph, forward: str, code: str) -> dict[str, tuple[KnobValue, ...]]:
        """The constants that ``forward`` passes to kernels, with their values."""
        known = choices(graph)
        return {name: known[name] for name in CONSTANTS if re.search(rf"\b{name}\b(?!=)", forward)}

    def _knobs(self, graph: Graph, forward: str, code: str) -> str:
        known = self.constants_of(graph, forward, code)
        names = list(known)
        lines = [f"    {name!r}: {list(known[name])}," for name in names]
        values = [f"{name} = {self.options[name]!r}" for name in names]
        return "\n".join(["KNOBS = {", *lines, "}", *values])
