"""Writes a Triton candidate file from a graph and a schedule."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kernelwright.codegen._attention_gradient import AttentionGradient
from kernelwright.codegen._attention_saved import without_weights
from kernelwright.codegen._emitter import Emitter
from kernelwright.codegen._file import Generated
from kernelwright.codegen._graph import Graph
from kernelwright.codegen._ir import Program
from kernelwright.codegen._partition import Step
from kernelwright.codegen._triton_attention import attention_kernel
from kernelwright.codegen._triton_attention_gradient import gradient_kernel
from kernelwright.codegen._triton_forward import TritonForward
from kernelwright.codegen._triton_gemm import gemm_kernels
from kernelwright.codegen._triton_loop import loop_kernel
from kernelwright.codegen._triton_math import fast, helpers
from kernelwright.codegen._triton_nest import bytes_again, nest_kernels
from kernelwright.codegen._triton_products import on_units, triton_plan
from kernelwright.codegen._triton_routines import routine_kernel
from kernelwright.codegen._triton_schedule import CONSTANTS, choices, complete, relevant
from kernelwright.codegen._triton_templates import pool_kernel, scan_kernel
from kernelwright.codegen._triton_tiles import Kernel
from kernelwright.codegen._triton_units import Apart, unit_kernels
from kernelwright.records import KnobValue

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
    graph = without_weights(graph, options)
    return TritonEmitter(options).candidate(graph, lambda half: triton_plan(half, options), relevant(graph))


class TritonEmitter(Emitter[Kernel, TritonForward]):
    """Writes Triton kernels."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._apart = Apart()

    def writer(self, program: Program, graph: Graph) -> TritonForward:
        """A writer of statements."""
        return TritonForward(program, graph)

    def call(self, kernel: Kernel) -> None:
        """Write the launch of a kernel."""
        self.forward.launch(kernel)

    def facts(self, step: Step, kernels: Sequence[Kernel]) -> dict[str, Any]:
        """How many launches a step is, and the bytes that its kernels read again."""
        again = bytes_again(step.nest, kernels, self.options) if step.nest is not None else 0
        return {"launches": len(kernels), "again": again + sum(kernel.again for kernel in kernels)}

    def kernels_of(self, step: Step, name: str, title: str) -> list[Kernel]:
        """The kernels of a step, in the order in which they are launched."""
        variants = self.graph.variants
        if step.nest is not None:
            return nest_kernels(step.nest, name, title, self.options)
        if step.kind in ("own_matmul", "own_conv"):
            if on_units(step.values[0], self.options):
                return unit_kernels(step, name, title, self.options, self._apart, self.forward)
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

    def built(self, graph: Graph, forward: str) -> tuple[list[str], list[str]]:
        """The import lines, and the parts of the file, that make the kernels for a ``forward``."""
        code = self.code()
        return self.code_imports(code), [self.knobs(self.constants_of(graph, forward, code)), "\n" + code.strip()]

    def code(self) -> str:
        """The kernels, with the functions that they call."""
        code = "\n\n".join(dict.fromkeys(k.text for k in self.kernels))
        code = "\n\n".join(text.strip() + "\n" for text in (helpers(code), code) if text)
        return fast(code) if self.options["fast_math"] else code

    def code_imports(self, code: str) -> list[str]:
        """The lines with which a file imports what its kernels need."""
        return [*_IMPORTS, *(["from triton.language.extra import libdevice"] if "libdevice." in code else [])]

    def constants_of(self, graph: Graph, forward: str, code: str) -> dict[str, tuple[KnobValue, ...]]:
        """The constants that ``forward`` passes to kernels, with their values."""
        known = choices(graph)
        return {name: known[name] for name in CONSTANTS if re.search(rf"\b{name}\b(?!=)", forward)}
