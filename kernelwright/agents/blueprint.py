"""The facts that the offline roles use before anything is measured: graph, schedule space and cost of a problem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelwright.agents.roles import CoderError, StepContext
from kernelwright.records import Backend, DeviceClass, KnobValue
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
            payload = _payload(context)
            if context.backend != "cpp" or len(payload["variants"]) == 1:
                raise
            whole = False
            first = {**payload, "variants": payload["variants"][:1]}
            graph = codegen.Graph.from_json(_ask(context, codegen.CAPTURE_ENTRY, "captured", first))
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


def _payload(context: StepContext) -> dict[str, Any]:
    """The problem with all shapes that kernels are for, the timed one first. An interpreter may have a text of its own.

    Kernels are for that text only if one graph stands for it as well.
    """
    problem = context.problem
    small = context.bench.small(context.backend)
    classes = CLASSES[context.backend][: None if small is None else 1]
    variants = [variant for name in classes for variant in problem.meta.variants_for(name)]
    asked: dict[str, Any] = {"source": problem.source, "variant": variants[0], "variants": variants}
    asked |= {"mode": problem.meta.mode, "backward": problem.meta.backward}
    if small is None:
        return asked
    shrunk = {**asked, "small": small.source}
    return shrunk if _has_a_graph(context, shrunk) else asked


def _has_a_graph(context: StepContext, payload: Mapping[str, Any]) -> bool:
    from kernelwright import codegen

    try:
        codegen.Graph.from_json(context.bench.call(codegen.CAPTURE_ENTRY, dict(payload)))
    except (WorkerFailed, codegen.CodegenError):
        return False
    return True


def _ask(context: StepContext, entry: str, what: str, payload: dict[str, Any] | None = None) -> dict[str, Any]:
    """The reply of a sandboxed tool for the problem in all its shapes, or for another ``payload``."""
    try:
        return context.bench.call(entry, payload or _payload(context))
    except WorkerFailed as error:
        raise CoderError(
            f"the reference cannot be {what}: {error.message}",
            hint="the offline coder needs a reference that torch.export accepts",
            problem=context.problem.id,
        ) from error
