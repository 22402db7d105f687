"""From a graph and a schedule to a candidate file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernelwright.codegen._constructor import constructor
from kernelwright.codegen._forward import ForwardWriter, step_title
from kernelwright.codegen._graph import CodegenError, Graph
from kernelwright.codegen._ir import Program, Value
from kernelwright.codegen._kernel import Function, NestWriter, _fused
from kernelwright.codegen._lower import lower
from kernelwright.codegen._math import math_library
from kernelwright.codegen._partition import KeepInTorch, Partition, Step, in_place, partition, root
from kernelwright.codegen._gemm_library import gemm_blocks
from kernelwright.codegen._products import conv_function, gemm_function, own_products
from kernelwright.codegen._templates import pool_function, scan_function
from kernelwright.records import KnobValue

_HEADER = """#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>
"""


@dataclass(frozen=True)
class Generated:
    """A candidate file and what is known about it.

    Attributes:
        source: the complete Python file.
        knobs: the schedule that was used, completed by defaults.
        report: one entry per step: ``kind``, ``name``, ``ops`` (what was fused) and ``why`` where it stayed in torch.
        bytes_moved: memory that one call of the timed variant must read and write, in bytes.
        flops: floating-point operations of one call of the timed variant.
    """

    source: str
    knobs: dict[str, KnobValue]
    report: tuple[dict[str, Any], ...]
    bytes_moved: int
    flops: int


@dataclass
class Plan:
    """A lowered and partitioned graph."""

    program: Program
    steps: list[Step]
    options: Mapping[str, Any]
    reasons: dict[Value, str] = field(default_factory=dict)


def plan(graph: Graph, options: Mapping[str, Any]) -> Plan:
    """Lower and partition; operators that turn out not to fit are left to torch."""
    keep = frozenset({"scaled_dot_product_attention"} if options.get("attention") == "library" else ())
    for _ in range(len(graph.nodes) + 1):
        program = lower(graph, keep)
        try:
            parts: Partition = partition(program, options)
        except KeepInTorch as refused:
            keep |= {refused.node}
            continue
        results = {root(o) for o in program.outputs}
        if options.get("in_place", True):
            parts.steps = own_products(parts.steps, program, options)
            in_place(parts.steps, results.__contains__)
        return Plan(program, parts.steps, options, parts.reasons)
    raise CodegenError("the graph cannot be partitioned", hint="report this graph; it is a bug of the generator")


def generate(graph: Graph, schedule: Mapping[str, KnobValue] | None = None) -> Generated:
    options = {"gemm": "own", "conv": "own", **(schedule or {})}
    made = plan(graph, options)
    forward = ForwardWriter(made.program)
    functions: list[Function] = []
    for step in made.steps:
        if step.kind == "nest" and step.nest is not None:
            fused = _fused(step.nest)
            name = _function_name(fused, [f.name for f in functions])
            writer = NestWriter(step.nest, name, step_title(step, fused), step.alias, options)
            function = writer.write()
            functions.append(function)
            for value in step.outputs:
                if value in step.alias:
                    forward.variables[value] = forward.variables[step.alias[value]]
                else:
                    forward.allocate(value)
            forward.call(function)
        elif step.kind in ("own_matmul", "own_conv"):
            value = step.values[0]
            fused = _fused(step.epilogue) if step.epilogue else []
            name = _function_name(
                [value.op, *(f for f in fused if f not in (value.origin[1].split(".")[0],))],
                [f.name for f in functions],
            )
            title = step_title(step, [value.origin[1].split(".")[0], *fused])
            make2 = gemm_function if step.kind == "own_matmul" else conv_function
            function = make2(step, name, title, graph.variants, options)
            functions.append(function)
            for value in step.outputs:
                forward.allocate(value)
            forward.call(function)
        elif step.kind in ("pool", "scan"):
            value = step.values[0]
            name = _function_name([value.name], [f.name for f in functions])
            title = step_title(step, [value.origin[1].split(".")[0]])
            make = pool_function if step.kind == "pool" else scan_function
            function = make(value, name, title, graph.variants)
            functions.append(function)
            forward.allocate(value)
            forward.call(function)
        else:
            getattr(forward, step.kind)(step.values[0])
    source = _file(graph, made, forward, functions)
    return Generated(source, options, (), 0, 0)


def _function_name(fused: list[str], taken: list[str]) -> str:
    name = "_".join(n.strip("_") for n in fused[:3]) or "kernel"
    base, n = name, 2
    while name in taken:
        name, n = f"{base}_{n}", n + 1
    return name


def _file(graph: Graph, made: Plan, forward: ForwardWriter, functions: list[Function]) -> str:
    made_init = constructor(graph.module_source)
    body = forward.body(made.program.outputs, graph.structure)
    code = "\n".join(f.text for f in functions)
    library = math_library(code)
    if any(step.kind in ("own_matmul", "own_conv") for step in made.steps):
        library += gemm_blocks(str(made.options.get("tile", "8x3")))
    lines = ["import math", "import torch", "import torch.nn.functional as F", "from torch import nn"]
    lines += [i for i in made_init.imports if i not in lines]
    lines += [
        "",
        "from kernelwright.inline import cpp",
        "",
        "KNOBS = {'BLOCK': [64, 128, 256, 512, 1024]}",
        "BLOCK = 256",
        "",
    ]
    lines += [f"SOURCE = r'''{_HEADER}{library}\n{code}'''", ""]
    lines += [
        "lib = cpp(SOURCE, defines={'BLOCK': BLOCK}, flags=('-fno-math-errno', '-fno-trapping-math', '-mprefer-vector-width=512'))",
        "",
    ]
    lines += forward.constants
    if made_init.helpers:
        lines += ["", made_init.helpers]
    lines += ["", "", f"class ModelNew({made_init.bases or 'nn.Module'}):"]
    if made_init.init:
        lines += [made_init.init, ""]
    lines += [f"    def forward(self, {', '.join(graph.forward_parameters)}):"]
    lines += ["        " + line for line in body]
    return "\n".join(lines) + "\n"
