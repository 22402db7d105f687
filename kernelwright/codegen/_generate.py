"""Writes a C++ candidate file from a graph and a schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kernelwright.codegen._convolutions import conv_function
from kernelwright.codegen._emitter import Emitter
from kernelwright.codegen._file import Generated
from kernelwright.codegen._forward import ForwardWriter
from kernelwright.codegen._gemm import gemm_function
from kernelwright.codegen._gemm_library import gemm_blocks
from kernelwright.codegen._graph import Graph
from kernelwright.codegen._ir import Program
from kernelwright.codegen._kernel import Function, NestWriter
from kernelwright.codegen._math import math_library
from kernelwright.codegen._partition import Step
from kernelwright.codegen._plan import Plan, fold_biases, make_plan
from kernelwright.codegen._routines import routine_function
from kernelwright.codegen._schedule import CHOICES, CONSTANTS, complete, relevant
from kernelwright.codegen._templates import pool_function, scan_function
from kernelwright.records import KnobValue

_HEADERS = ("algorithm", "cmath", "cstdint", "omp.h", "type_traits", "vector")
# Splitting a masked loop at its end would give it a scalar remainder again.
_FLAGS = ("-fno-math-errno", "-fno-trapping-math", "-fno-split-loops")
_RECIPROCAL_FLAGS = ("-freciprocal-math", "-fno-signed-zeros")


def generate_cpp(graph: Graph, schedule: Mapping[str, KnobValue] | None = None) -> Generated:
    """Write a C++ candidate file.

    Args:
        graph: the captured problem.
        schedule: choices from :func:`schedule_space`. A missing choice has its default.

    Raises:
        CodegenError: the schedule has an unknown choice, or the graph has no candidate.
    """
    options = complete(schedule or {})

    def plan_of(half: Graph) -> Plan:
        plan = make_plan(half, options)
        fold_biases(plan)
        return plan

    return _Emitter(options).candidate(graph, plan_of, relevant(graph))


class _Emitter(Emitter[Function, ForwardWriter]):
    """Writes C++ functions. All of them are built from one source."""

    def writer(self, program: Program, graph: Graph) -> ForwardWriter:
        """A writer of statements."""
        return ForwardWriter(program, graph)

    def kernels_of(self, step: Step, name: str, title: str) -> list[Function]:
        """The C++ function of a step."""
        writers: dict[str, Callable[[], Function]] = {
            "nest": lambda: self._nest(step, name, title),
            "pool": lambda: pool_function(step.values[0], name, title, self.graph.variants),
            "scan": lambda: scan_function(step.values[0], name, title, self.graph.variants),
            "routine": lambda: routine_function(step, name, title, self.graph.variants),
            "own_matmul": lambda: gemm_function(step, name, title, self.graph.variants, self.options),
            "own_conv": lambda: conv_function(step, name, title, self.graph.variants, self.options),
        }
        return [writers[step.kind]()]

    def call(self, kernel: Function) -> None:
        """Write the call of a function."""
        self.forward.call(kernel)

    def built(self, graph: Graph, forward: str) -> tuple[list[str], list[str]]:
        """The import line, and the parts of the file, that make the functions."""
        knobs = self.knobs({name: CHOICES[name] for name in self._used_constants()})
        return ["", "from kernelwright.inline import cpp"], [knobs, self._source(), self._build()]

    def _nest(self, step: Step, name: str, title: str) -> Function:
        assert step.nest is not None
        return NestWriter(step.nest, name, title, step.alias, self.options).write()

    def _used_constants(self) -> list[str]:
        """The constants that this file's kernels use."""
        code = "".join(f.text for f in self.kernels)
        macros = {"BLOCK": "BLOCK" in code, "STRIPE": "STRIPE" in code, "GROUP_KB": "GROUP_FLOATS" in code}
        return [n for n in CONSTANTS if macros.get(n, True)]

    def _source(self) -> str:
        code = "\n".join(f.text for f in self.kernels)
        library = math_library(code)
        if self.kinds & {"own_matmul", "own_conv"}:
            library += gemm_blocks(str(self.options["tile"]))
        headers = "".join(f"#include <{h}>\n" for h in _HEADERS if _wants(h, library + code))
        return f"SOURCE = r'''\n{headers}{library}\n{code}'''"

    def _build(self) -> str:
        flags = [*_FLAGS, *(_RECIPROCAL_FLAGS if self.options["reciprocal_math"] else ())]
        listed = ", ".join(f'"{f}"' for f in flags) + ', f"-mprefer-vector-width={VECTOR_BITS}"'
        texts = {"BLOCK": "BLOCK", "STRIPE": "STRIPE", "GROUP_KB": "GROUP_KB * 256"}
        macros = {"GROUP_KB": "GROUP_FLOATS"}
        defines = [f'"{macros.get(n, n)}": {texts[n]}' for n in self._used_constants() if n in texts]
        if any("VECTOR_LANES" in f.text for f in self.kernels):
            defines.append('"VECTOR_LANES": VECTOR_BITS // 32')
        return "\n".join(
            [
                f"FLAGS = ({listed}) + (('-funroll-loops',) if UNROLL else ())",
                f"lib = cpp(SOURCE, defines={{{', '.join(defines)}}}, flags=FLAGS)",
            ]
        )


def _wants(header: str, text: str) -> bool:
    """True where the code uses something of a standard header."""
    uses = {"omp.h": "omp_get", "type_traits": "integral_constant", "vector": "std::vector", "algorithm": "std::m"}
    return header in ("cmath", "cstdint") or uses[header] in text or (header == "algorithm" and "std::" in text)
