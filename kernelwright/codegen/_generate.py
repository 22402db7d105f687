"""Writes a C++ candidate file from a graph and a schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kernelwright.codegen._convolutions import conv_function
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
from kernelwright.codegen._forward import ForwardWriter
from kernelwright.codegen._gemm_library import gemm_blocks
from kernelwright.codegen._graph import Graph
from kernelwright.codegen._ir import Program
from kernelwright.codegen._kernel import Function, NestWriter
from kernelwright.codegen._math import math_library
from kernelwright.codegen._partition import Step
from kernelwright.codegen._plan import OWN_KINDS, Plan, fold_biases, make_plan
from kernelwright.codegen._products import gemm_function
from kernelwright.codegen._repeat import write_repeat
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
    plans = []
    emitter = _Emitter(options)
    for half in graph.halves:
        plan = make_plan(half, options)
        fold_biases(plan)
        emitter.begin(half, plan)
        for step in plan.steps:
            emitter.step(step)
        plans.append(plan)
    names = relevant(graph)
    return finished(plans, emitter.file(graph), {name: options[name] for name in names}, emitter.report)


class _Emitter:
    """Writes the steps of plans, and then the file around them."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options
        self.functions: list[Function] = []
        self.report: list[dict[str, Any]] = []
        self.kinds: set[str] = set()
        self.written: list[ForwardWriter] = []
        self.loops: list[str] = []
        self.constants: list[str] = []

    def writer(self, program: Program, graph: Graph) -> ForwardWriter:
        """A writer of statements."""
        return ForwardWriter(program, graph)

    def begin(self, graph: Graph, plan: Plan) -> None:
        """Start with the steps of the next plan."""
        self.graph, self.plan = graph, plan
        self.forward = self.writer(plan.program, graph)
        self.written.append(self.forward)

    def step(self, step: Step) -> None:
        """One step: its C++ function if it has one, and its lines of ``forward``."""
        self.kinds.add(step.kind)
        if step.kind == "repeat":
            write_repeat(self, step)
            return
        if step.values[0].op in ("pool", "conv"):
            self.forward.window_sizes(step.values[0])
        if step.kind not in OWN_KINDS:
            self.forward.library(step)
            self.report.append(left_to_torch(step, self.plan))
            return
        operators = operators_of(step)
        name = kernel_name(operators, [f.name for f in self.functions])
        title = title_of(step)
        writers: dict[str, Callable[[], Function]] = {
            "nest": lambda: self._nest(step, name, title),
            "pool": lambda: pool_function(step.values[0], name, title, self.graph.variants),
            "scan": lambda: scan_function(step.values[0], name, title, self.graph.variants),
            "routine": lambda: routine_function(step, name, title, self.graph.variants),
            "own_matmul": lambda: gemm_function(step, name, title, self.graph.variants, self.options),
            "own_conv": lambda: conv_function(step, name, title, self.graph.variants, self.options),
        }
        function = writers[step.kind]()
        self.functions.append(function)
        for value in step.outputs:
            if value in step.alias:
                self.forward.variables[value] = self.forward.variables[step.alias[value]]
            else:
                self.forward.allocate(value)
        self.forward.call(function)
        self.report.append({"kind": step.kind, "name": name, "ops": operators, "why": ""})

    def _nest(self, step: Step, name: str, title: str) -> Function:
        assert step.nest is not None
        return NestWriter(step.nest, name, title, step.alias, self.options).write()

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
        if self.functions:
            imports += ["", "from kernelwright.inline import cpp"]
        parts = ["\n".join(imports)]
        if self.functions:
            parts += [self._knobs(), self._source(), self._build()]
        if constants := [*self.constants, *(line for half in self.written for line in half.constants)]:
            parts.append("\n".join(constants))
        parts += ["\n" + part for part in (made.helpers, *self.loops, function) if part]
        parts.append("\n" + model_class(made, graph, body))
        return "\n\n".join(parts) + "\n"

    def _used_constants(self) -> list[str]:
        """The constants that this file's kernels use."""
        code = "".join(f.text for f in self.functions)
        macros = {"BLOCK": "BLOCK" in code, "STRIPE": "STRIPE" in code, "GROUP_KB": "GROUP_FLOATS" in code}
        return [n for n in CONSTANTS if macros.get(n, True)]

    def _knobs(self) -> str:
        constants = self._used_constants()
        lines = [f"    {n!r}: {list(CHOICES[n])}," for n in constants]
        values = [f"{n} = {self.options[n]!r}" for n in constants]
        return "\n".join(["KNOBS = {", *lines, "}", *values])

    def _source(self) -> str:
        code = "\n".join(f.text for f in self.functions)
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
        if any("VECTOR_LANES" in f.text for f in self.functions):
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
