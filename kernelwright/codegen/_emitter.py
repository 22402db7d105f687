"""What the emitters of all languages share: the steps of plans one after another, and the file around the kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

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
from kernelwright.codegen._graph import Graph, Repeat
from kernelwright.codegen._ir import Program
from kernelwright.codegen._partition import Step
from kernelwright.codegen._plan import OWN_KINDS, Plan
from kernelwright.codegen._repeat import loop_function, loop_report
from kernelwright.records import KnobValue


class Named(Protocol):
    """A kernel in any language."""

    name: str


Kernel = TypeVar("Kernel", bound=Named)
Forward = TypeVar("Forward", bound=ForwardWriter)


class Emitter(ABC, Generic[Kernel, Forward]):
    """Writes the steps of plans, and then the file around them. A subclass writes the kernels of one language.

    Attributes:
        kernels: the kernels so far, in the order in which they are called.
        report: an entry for each step (see :class:`Generated`).
        kinds: the kinds of all steps, also of those within loops.
        written: the statements of each plan.
        loops: the functions of loops.
        constants: lines that define the constants of loops.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options
        self.kernels: list[Kernel] = []
        self.report: list[dict[str, Any]] = []
        self.kinds: set[str] = set()
        self.written: list[Forward] = []
        self.loops: list[str] = []
        self.constants: list[str] = []

    @abstractmethod
    def writer(self, program: Program, graph: Graph) -> Forward:
        """A writer of statements."""

    @abstractmethod
    def kernels_of(self, step: Step, name: str, title: str) -> list[Kernel]:
        """The kernels of a step, in the order in which they are called."""

    @abstractmethod
    def call(self, kernel: Kernel) -> None:
        """Write the call of a kernel."""

    @abstractmethod
    def built(self, graph: Graph, forward: str) -> tuple[list[str], list[str]]:
        """The import lines, and the parts of the file, that make the kernels for a ``forward``."""

    def facts(self, step: Step, kernels: Sequence[Kernel]) -> dict[str, Any]:
        """What the report's entry on a step has besides kind, name and operators."""
        return {"launches": len(kernels)}

    def candidate(self, graph: Graph, plan_of: Callable[[Graph], Plan], names: Sequence[str]) -> Generated:
        """The candidate of a graph.

        Args:
            plan_of: makes the plan of the graph, or of each of its halves.
            names: the choices that affect this graph.
        """
        plans = []
        for half in graph.halves:
            self.graph, self.plan = half, plan_of(half)
            self.forward = self.writer(self.plan.program, half)
            self.written.append(self.forward)
            plans.append(self.plan)
            for step in self.plan.steps:
                self.step(step)
        return finished(plans, self._file(graph), {name: self.options[name] for name in names}, self.report)

    def step(self, step: Step) -> None:
        """One step: its kernels if it has any, and its lines of ``forward``."""
        self.kinds.add(step.kind)
        if step.kind == "repeat" and not step.inside:
            self._loop(step)
            return
        if step.values[0].op in ("pool", "conv"):
            self.forward.window_sizes(step.values[0])
        if step.kind not in OWN_KINDS:
            self.forward.library(step)
            self.report.append(left_to_torch(step, self.plan))
            return
        operators = operators_of(step.body.steps[0] if step.inside else step)
        name = kernel_name(operators, [kernel.name for kernel in self.kernels])
        kernels = self.kernels_of(step, name, title_of(step))
        self.kernels += kernels
        for value in step.outputs:
            if value in step.alias:
                self.forward.variables[value] = self.forward.variables[step.alias[value]]
            else:
                self.forward.allocate(value)
        for kernel in kernels:
            self.call(kernel)
        entry = {"kind": step.kind, "name": name, "ops": operators, "why": ""}
        self.report.append({**entry, **self.facts(step, kernels)})

    def _loop(self, step: Step) -> None:
        """Write a loop as a function, and its call.

        The function takes the number of steps, the arguments of the loop, and the memory of collected results.
        """
        value, plan = step.values[0], step.body
        loop: Repeat = value.attrs["repeat"]
        assert isinstance(plan, Plan)
        results = {v.attrs.get("index", 0): v for v in step.values}
        collected = {n: v for n, v in results.items() if n < loop.stacked}
        states = {n: v for n, v in sorted(results.items()) if n >= loop.stacked}
        outer, before, reported = self.forward, (self.graph, self.plan), len(self.report)
        name = f"{value.name}_steps"
        for result in collected.values():
            outer.allocate(result)
        inner = self.writer(plan.program, loop.step)
        places = {n: f"{value.name}_out_{n}" for n in collected}
        inner.sizes.atoms.setdefault(loop.steps, "count")
        for number, place in places.items():
            inner.place(plan.program.outputs[number], f"{place}[step]")
        self.forward, self.graph, self.plan = inner, loop.step, plan
        for one in plan.steps:
            self.step(one)
        self.forward, (self.graph, self.plan) = outer, before
        self.loops.append("\n".join(loop_function(name, inner, loop, places, list(states))))
        self.constants += inner.constants
        given = [outer.sizes.expr(loop.steps), *(outer.tensor(a) for a in value.args)]
        given += [outer.memory(result) for result in collected.values()]
        call = f"{name}({', '.join(given)})"
        if states:
            outer.variables.update({result: result.name for result in states.values()})
            call = f"{', '.join(v.name for v in states.values())}{',' if len(states) == 1 else ''} = {call}"
        outer.lines.append(call)
        entries, self.report[reported:] = self.report[reported:], []
        self.report.append(loop_report(name, entries, loop.steps.timed))

    def knobs(self, known: Mapping[str, Sequence[KnobValue]]) -> str:
        """The part of the file that declares constants with their values, and sets them."""
        lines = [f"    {name!r}: {list(values)}," for name, values in known.items()]
        return "\n".join(["KNOBS = {", *lines, "}", *(f"{name} = {self.options[name]!r}" for name in known)])

    def _file(self, graph: Graph) -> str:
        made = carried(graph)
        function = ""
        if graph.gradient is None:
            body = self.forward.body(graph.structure)
        else:
            there, back = self.written
            ways = there.way_there(graph.gradient, graph.structure), back.way_back(graph.gradient)
            function, body = gradient_class(graph, *ways)
        text = "\n".join([*self.loops, function, *body])
        imports, parts = self.built(graph, text) if self.kernels else ([], [])
        if constants := [*self.constants, *(line for half in self.written for line in half.constants)]:
            parts.append("\n".join(constants))
        parts += ["\n" + part for part in (made.helpers, *self.loops, function) if part]
        parts.append("\n" + model_class(made, graph, body))
        return "\n\n".join(["\n".join([*module_imports(made, text), *imports]), *parts]) + "\n"
