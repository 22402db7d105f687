"""The facts that the offline roles use before anything is measured: graph, schedule space and cost of a problem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelwright.agents.roles import CoderError, StepContext
from kernelwright.evaluator.verdict.fitted_sizes import small_sizes
from kernelwright.records import Backend, DeviceClass, KnobValue, Problem
from kernelwright.sandbox import WorkerFailed

if TYPE_CHECKING:
    from kernelwright.codegen import Generated, Graph

Schedule = dict[str, KnobValue]
# The device classes whose shapes a backend's kernels are written for; the timed class comes first.
CLASSES: Mapping[Backend, tuple[DeviceClass, ...]] = {
    "cpp": ("cpu",),
    "triton": ("gpu", "interpreter"),
    "cuda": ("gpu", "interpreter"),
}


class Blueprint(NamedTuple):
    """A captured problem and the choices for its kernels."""

    backend: Backend
    graph: Graph
    space: Mapping[str, list[KnobValue]]
    default: Schedule
    bytes_least: float  # every input read once and every output written once
    flops: float
    whole: bool = True  # whether the graph stands for all shape variants; else the generator writes no kernel


def blueprint(context: StepContext) -> Blueprint:
    """Capture the problem in the sandbox and derive its schedule space.

    If its shape variants have different graphs (a loop over time steps), the first variant's graph stands for all. Its
    names and weights hold for all variants, and TorchInductor's kernels need no more.

    Raises:
        CoderError: the reference cannot be captured.
    """
    from kernelwright import codegen

    whole = True
    try:
        try:
            graph = codegen.Graph.from_json(_ask(context, codegen.CAPTURE_ENTRY, "captured"))
        except codegen.CodegenError:
            if context.backend != "cpp" or len(_variants(context)) == 1:
                raise
            whole = False
            graph = codegen.Graph.from_json(_ask(context, codegen.CAPTURE_ENTRY, "captured", most=1))
        cost = codegen.cost(graph)
        space = codegen.schedule_space(graph, backend=context.backend) if whole else {}
        default = codegen.default_schedule(graph, backend=context.backend) if whole else {}
    except codegen.CodegenError as error:
        raise CoderError(error.message, hint=error.hint, problem=context.problem.id) from error
    least, flops = float(cost["bytes_least"]), float(cost["flops"])
    return Blueprint(context.backend, graph, space, default, least, flops, whole)


def write(plan: Blueprint, schedule: Mapping[str, KnobValue]) -> Generated | None:
    """The kernel of a schedule; None if the generator cannot write it."""
    from kernelwright import codegen

    if not plan.whole:
        return None
    try:
        return codegen.generate(plan.graph, schedule, backend=plan.backend)
    except codegen.CodegenError:
        return None


def inductor_seed(context: StepContext, graph: Graph) -> Generated | None:
    """TorchInductor's own kernels as a candidate, in C++ or Triton; None if TorchInductor gives none."""
    from kernelwright import codegen

    if context.backend == "cuda" or graph.operators > codegen.MOST_OPERATORS:
        return None
    entry, seed = (
        (codegen.INDUCTOR_TRITON_ENTRY, codegen.triton_seed)
        if context.backend == "triton"
        else (codegen.INDUCTOR_ENTRY, codegen.inductor_seed)
    )
    try:
        return seed(graph, _ask(context, entry, "compiled by TorchInductor"))
    except (CoderError, codegen.CodegenError):
        return None


def _variants(context: StepContext) -> list[Mapping[str, Any]]:
    """The shape variants that kernels are for. An interpreter has small ones, also where the problem declares none."""
    problem, classes = context.problem, CLASSES[context.backend]
    found: list[Mapping[str, Any]] = [variant for name in classes for variant in problem.meta.variants_for(name)]
    if "interpreter" in classes and "interpreter" not in problem.meta.variants:
        small = small_sizes(problem, context.bench.call)
        wanted = found if small is None else [*found[:-1], small]
        found = wanted if _have_a_graph(context, wanted) else found
    return found


def _have_a_graph(context: StepContext, variants: list[Mapping[str, Any]]) -> bool:
    """Whether one graph stands for all variants. A constant may depend on another that a variant sets."""
    from kernelwright import codegen

    try:
        codegen.Graph.from_json(context.bench.call(codegen.CAPTURE_ENTRY, _payload(context.problem, variants)))
    except (WorkerFailed, codegen.CodegenError):
        return False
    return True


def _payload(problem: Problem, variants: list[Mapping[str, Any]]) -> dict[str, Any]:
    asked: dict[str, Any] = {"source": problem.source, "variant": variants[0], "variants": variants}
    return asked | {"mode": problem.meta.mode, "backward": problem.meta.backward}


def _ask(context: StepContext, entry: str, what: str, *, most: int | None = None) -> dict[str, Any]:
    """The reply of a sandboxed tool for the problem's shape variants, or the first ``most`` of them."""
    problem = context.problem
    try:
        return context.bench.call(entry, _payload(problem, _variants(context)[:most]))
    except WorkerFailed as error:
        raise CoderError(
            f"the reference cannot be {what}: {error.message}",
            hint="the offline coder needs a reference that torch.export accepts",
            problem=problem.id,
        ) from error
