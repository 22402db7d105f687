"""From a graph and a schedule to a candidate file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernelwright.codegen._constructor import Constructor, constructor
from kernelwright.codegen._cost import plan_cost
from kernelwright.codegen._forward import ForwardWriter
from kernelwright.codegen._gemm_library import gemm_blocks
from kernelwright.codegen._graph import Graph
from kernelwright.codegen._kernel import Function, NestWriter, fused_operators
from kernelwright.codegen._math import math_library
from kernelwright.codegen._partition import Step
from kernelwright.codegen._plan import OWN_KINDS, Plan, fold_biases, make_plan
from kernelwright.codegen._products import conv_function, gemm_function
from kernelwright.codegen._schedule import CHOICES, CONSTANTS, complete, relevant
from kernelwright.codegen._templates import pool_function, scan_function
from kernelwright.records import KnobValue

_HEADERS = ("algorithm", "cmath", "cstdint", "omp.h", "type_traits", "vector")
_FLAGS = ("-fno-math-errno", "-fno-trapping-math")
_RECIPROCAL_FLAGS = ("-freciprocal-math", "-fno-signed-zeros")
_SHORT = {
    "_native_batch_norm_legit_no_training": "batch_norm",
    "native_layer_norm": "layer_norm",
    "cross_entropy_loss": "cross_entropy",
    "linalg_vector_norm": "norm",
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "masked_fill": "mask",
    "scaled_dot_product_attention": "attention",
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
        report: one entry per step in execution order: ``kind``, ``name`` (of the C++ function, or the library call),
            ``ops`` (the PyTorch operators in it), ``why`` (the reason where it stayed in torch), ``bytes``, ``flops``.
        bytes_moved: memory that the steps of the timed variant read and write, in bytes.
        flops: floating-point operations of one call of the timed variant.
    """

    source: str
    knobs: dict[str, KnobValue]
    report: tuple[dict[str, Any], ...]
    bytes_moved: int
    flops: int


def generate(graph: Graph, schedule: Mapping[str, KnobValue] | None = None) -> Generated:
    """Write a candidate file.

    Args:
        graph: the captured problem.
        schedule: choices out of :func:`schedule_space`; what it doesn't name has its default.

    Raises:
        CodegenError: the schedule has an unknown choice, or the graph has no candidate.
    """
    options = complete(schedule or {})
    plan = make_plan(graph, options)
    fold_biases(plan)
    emitter = _Emitter(graph, plan, options)
    for step in plan.steps:
        emitter.step(step)
    names = relevant(graph)
    costs = plan_cost(plan)
    report = [{**entry, "bytes": region["bytes_read"] + region["bytes_written"], "flops": region["flops"]}
              for entry, region in zip(emitter.report, costs["regions"], strict=True)]  # fmt: skip
    if not emitter.functions:
        report.append({"kind": "note", "name": "", "ops": [], "why": "nothing here to fuse", "bytes": 0, "flops": 0})
    knobs = {name: options[name] for name in names}
    return Generated(emitter.file(), knobs, tuple(report), costs["bytes_moved"], costs["flops"])


class _Emitter:
    """Writes the steps of a plan, and then the file around them."""

    def __init__(self, graph: Graph, plan: Plan, options: Mapping[str, Any]) -> None:
        self.graph, self.plan, self.options = graph, plan, options
        self.forward = ForwardWriter(plan.program, graph.attributes)
        self.functions: list[Function] = []
        self.report: list[dict[str, Any]] = []
        self.kinds: set[str] = set()

    def step(self, step: Step) -> None:
        """One step: its C++ function if it has one, and its lines of ``forward``."""
        self.kinds.add(step.kind)
        if step.values[0].op in ("pool", "conv"):
            self.forward.window_sizes(step.values[0])
        if step.kind not in OWN_KINDS:
            self._library(step)
            return
        operators = self._operators(step)
        name = self._name(operators)
        title = f"{' + '.join(operators)}: {_shape(step)}"
        writers: dict[str, Callable[[], Function]] = {
            "nest": lambda: self._nest(step, name, title),
            "pool": lambda: pool_function(step.values[0], name, title, self.graph.variants),
            "scan": lambda: scan_function(step.values[0], name, title, self.graph.variants),
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

    def _operators(self, step: Step) -> list[str]:
        names = [] if step.kind == "nest" else [step.values[0].origin[1].split(".")[0]]
        for nest in (step.nest, step.epilogue):
            names += fused_operators(nest) if nest is not None else []
        return list(dict.fromkeys(_SHORT.get(n, n) for n in names))

    def _name(self, operators: list[str]) -> str:
        if {"rsqrt", "mean", "pow"} <= set(operators):  # as PyTorch users write it out
            operators = ["rms_norm", *(o for o in operators if o != "rsqrt")]
        major = [o for o in operators if o not in _MINOR] or operators
        base = name = "_".join([*(o.strip("_") for o in major[:3]), "kernel"])  # no clash with libm's exp, abs, ...
        n = 2
        while any(f.name == name for f in self.functions):
            name, n = f"{base}_{n}", n + 1
        return name

    def _library(self, step: Step) -> None:
        value = step.values[0]
        if step.kind == "matmul":
            self.forward.matmul(value, step.bias)
        elif step.kind == "conv":
            self.forward.conv(value, step.bias)
        elif step.kind == "item":
            self.forward.item(value)
        else:
            self.forward.extern(value)
        for output in step.outputs:
            self.forward.variables[output] = self.forward.variables[value]
        operator = value.origin[1]
        why = self.plan.kept.get(value.origin[0]) or value.attrs.get("reason") or "left to the library by choice"
        self.report.append({"kind": "torch", "name": operator, "ops": [operator.split(".")[0]], "why": why})

    # ------------------------------------------------------------------------------------------ the file

    def file(self) -> str:
        """The text of the candidate file."""
        made = constructor(self.graph.module_source)
        body = self.forward.body(self.plan.program.outputs, self.graph.structure)
        text = "\n".join(body)
        imports = _imports(made, text, bool(self.functions))
        parts = ["\n".join(imports)]
        if self.functions:
            parts += [self._knobs(), self._source(), self._build()]
        if self.forward.constants:
            parts.append("\n".join(self.forward.constants))
        if made.helpers:
            parts.append("\n" + made.helpers)
        parts.append("\n" + self._class(made, body))
        return "\n\n".join(parts) + "\n"

    def _constants(self) -> list[str]:
        """The constants that this file's kernels use."""
        code = "".join(f.text for f in self.functions)
        macros = {"BLOCK": "BLOCK" in code, "STRIPE": "STRIPE" in code, "GROUP_KB": "GROUP_FLOATS" in code}
        return [n for n in CONSTANTS if macros.get(n, True)]

    def _knobs(self) -> str:
        constants = self._constants()
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
        defines = [f'"{macros.get(n, n)}": {texts[n]}' for n in self._constants() if n in texts]
        return "\n".join(
            [
                f"FLAGS = ({listed}) + (('-funroll-loops',) if UNROLL else ())",
                f"lib = cpp(SOURCE, defines={{{', '.join(defines)}}}, flags=FLAGS)",
            ]
        )

    def _class(self, made: Constructor, body: list[str]) -> str:
        lines = [f"class ModelNew({made.bases or 'nn.Module'}):"]
        if made.init:
            lines += [made.init, ""]
        lines.append(f"    def forward(self, {', '.join(self.graph.forward_parameters)}):")
        lines += ["        " + line for line in body]
        return "\n".join(lines)


def _imports(made: Constructor, body: str, kernels: bool) -> list[str]:
    lines = ["import math"] if "math." in body and "import math" not in made.imports else []
    lines.append("import torch")
    if "F." in body:
        lines.append("import torch.nn.functional as F")
    lines.append("from torch import nn")
    lines += [i for i in made.imports if i not in lines]
    return [*lines, "", "from kernelwright.inline import cpp"] if kernels else lines


def _wants(header: str, text: str) -> bool:
    """True where the code uses something of a standard header."""
    uses = {"omp.h": "omp_get", "type_traits": "integral_constant", "vector": "std::vector", "algorithm": "std::m"}
    return header in ("cmath", "cstdint") or uses[header] in text or (header == "algorithm" and "std::" in text)


def _shape(step: Step) -> str:
    return ", ".join("x".join(str(s.timed) for s in v.shape) or "a scalar" for v in step.outputs)
