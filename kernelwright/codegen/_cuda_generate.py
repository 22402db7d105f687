"""Writes a CUDA candidate file from a graph and a schedule."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kernelwright.codegen._cuda_math import fast, helpers
from kernelwright.codegen._cuda_nest import nest_kernels
from kernelwright.codegen._cuda_schedule import CONSTANTS, choices, complete, cuda_plan, relevant
from kernelwright.codegen._cuda_templates import pool_kernel, scan_kernel
from kernelwright.codegen._file import Generated
from kernelwright.codegen._graph import Graph
from kernelwright.codegen._ir import Program
from kernelwright.codegen._partition import Step
from kernelwright.codegen._triton_forward import TritonForward
from kernelwright.codegen._triton_generate import TritonEmitter
from kernelwright.codegen._triton_tiles import Kernel
from kernelwright.records import KnobValue


def generate_cuda(graph: Graph, schedule: Mapping[str, KnobValue] | None = None) -> Generated:
    """Write a CUDA candidate file.

    Args:
        graph: the captured problem, in all shapes that the kernels are for.
        schedule: choices from :func:`schedule_space`. A missing choice has its default.

    Raises:
        CodegenError: the schedule has an unknown choice, or the graph has no candidate.
    """
    options = complete(graph, schedule or {})
    return _Emitter(options).candidate(graph, lambda half: cuda_plan(half, options), relevant(graph))


class _CudaForward(TritonForward):
    """Like Triton's, but a launch names its blocks and threads, and constants are compiled in."""

    def launch(self, kernel: Kernel) -> None:
        """The launch of a kernel, with the statements before it."""
        names = {name: self._sized(self.sizes.expr(size)) for name, size in kernel.sizes.items()}
        self.lines += [line.format(**names, device=self.device) for line in kernel.setup]
        arguments = [self._argument(argument, {}) for argument in kernel.arguments]
        grid = kernel.grid.format(**names)
        self.lines.append(f"{kernel.name}[{grid}, {kernel.meta['BLOCK']}]({', '.join(arguments)})")

    @staticmethod
    def _sized(text: str) -> str:
        """A size as an operand of any operator."""
        return text if re.fullmatch(r"[\w.\[\]]+", text) else f"({text})"


class _Emitter(TritonEmitter):
    """Like Triton's, but each kernel is built from a source of its own."""

    def writer(self, program: Program, graph: Graph) -> TritonForward:
        """A writer of statements."""
        return _CudaForward(program, graph)

    def kernels_of(self, step: Step, name: str, title: str) -> list[Kernel]:
        """The kernels of a step, in the order in which they are launched."""
        if step.nest is not None:
            return nest_kernels(step.nest, name, title, self.options)
        template = pool_kernel if step.kind == "pool" else scan_kernel
        return [template(step.values[0], name, title, self.graph.variants)]

    def code(self) -> str:
        """The statements that build the kernels."""
        return "\n\n".join(self._built(kernel) for kernel in self.kernels)

    def code_imports(self, code: str) -> list[str]:
        """The lines with which a file imports what its kernels need."""
        return ["", "from kernelwright.inline import cuda"]

    def constants_of(self, graph: Graph, forward: str, code: str) -> dict[str, tuple[KnobValue, ...]]:
        """The constants that are compiled into kernels, with their values."""
        text = re.sub(r"r'''.*?'''", "", f"{forward}\n{code}", flags=re.S)
        known = choices(graph)
        return {name: known[name] for name in CONSTANTS if re.search(rf'(?<!["\w]){name}(?!["\w])', text)}

    def _built(self, kernel: Kernel) -> str:
        """The statements that build a kernel."""
        parts = [text for text in (helpers(kernel.text), kernel.text) if text]
        code = fast("\n".join(parts)) if self.options["fast_math"] else "\n".join(parts)
        defines = ", ".join(f'"{macro}": {value}' for macro, value in kernel.meta.items() if macro)
        lines = [kernel.meta[""]] if "" in kernel.meta else []
        source = f"{kernel.name.upper()}_SOURCE"
        lines.append(f"{source} = r'''\n{code.strip()}\n'''")
        lines.append(f'{kernel.name} = cuda({source}, "{kernel.name}", defines={{{defines}}})')
        return "\n".join(lines)
