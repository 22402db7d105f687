"""Exports one drop-in with the winners of several shape variants, and decides which kernel serves which shape."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kernelwright.errors import UsageError
from kernelwright.export._file import (
    RUNTIME_NAMES,
    bound_kernel,
    class_name,
    embedded,
    kernel_device,
    literal,
    plain,
    runtime_of,
    section,
    shapes_of,
)
from kernelwright.records import Candidate, Environment, KnobValue, Problem, Speedup, Verdict
from kernelwright.records.verdicts import constants_in_words

__all__ = ["Measured", "Route", "assign_routes", "export_dispatch"]

_ANOTHER = 1e6  # distance of settings that are not sizes: another dtype is further away than any size
_DIGITS = 12


class Measured(NamedTuple):
    """A kernel and its verdict with one variant of the problem timed. ``variant`` is the number of that variant."""

    variant: int
    candidate: Candidate
    verdict: Verdict


class Route(NamedTuple):
    """The kernel or reference that serves one variant.

    Attributes:
        constants: the settings of the variant.
        inputs: the inputs of a call, in words; empty if the variant was not measured.
        evidence: the measurement that decided, on this variant or on the nearest one.
        kernel: the kernel that serves; None if the reference serves, since the best kernel is slower.
        measured_on: the name of the evidence's variant, if it is another one.
    """

    number: int
    constants: Mapping[str, KnobValue]
    inputs: tuple[str, ...]
    evidence: Measured
    kernel: Candidate | None
    measured_on: str


def assign_routes(
    problem: Problem, measured: Sequence[Measured], environment: Environment, baseline: str
) -> tuple[Route, ...]:
    """Choose for each declared variant the fastest kernel on it, or on the nearest variant if none was timed on it.

    All kernels have been checked on all variants. The distance of two sizes is their ratio. Among kernels on one
    variant, confirmed ones come first, then the greatest lower bound of the speedup decides. If the best kernel is
    surely slower than the baseline, the reference serves.

    Args:
        problem: as its file declares it.
        measured: the measurements, at least one.
        environment: the environment of all measurements. Its shapes are the ones to serve.
    """
    declared = problem.declared.meta.variants_for(shapes_of(measured[0].candidate.backend, environment))
    inputs = {m.variant: m.verdict.variant.inputs for m in measured if m.verdict.variant is not None}
    timed = [m for m in measured if m.verdict.speedup(baseline) is not None]
    routes = []
    for number, constants in enumerate(declared):
        near = min(timed or measured, key=lambda m: (_distance(constants, declared[m.variant]), m.variant)).variant
        best = max((m for m in timed or measured if m.variant == near), key=lambda m: _standing(m.verdict, baseline))
        speedup = best.verdict.speedup(baseline)
        slower = speedup is not None and speedup.high < 1.0
        routes.append(
            Route(
                number=number,
                constants=constants,
                inputs=inputs.get(number, ()),
                evidence=best,
                kernel=None if slower else best.candidate,
                measured_on="" if near == number else _called(near, declared[near], inputs.get(near, ())),
            )
        )
    return tuple(routes)


def _distance(a: Mapping[str, KnobValue], b: Mapping[str, KnobValue]) -> float:
    return sum(_apart(a.get(name), b.get(name)) for name in sorted({*a, *b}))


def _apart(x: KnobValue | None, y: KnobValue | None) -> float:
    if x == y:
        return 0.0
    sizes = [v for v in (x, y) if isinstance(v, int | float) and not isinstance(v, bool) and v > 0]
    return abs(math.log(sizes[0] / sizes[1])) if len(sizes) == 2 else _ANOTHER


def _standing(verdict: Verdict, baseline: str) -> tuple[bool, float]:
    speedup = verdict.speedup(baseline)
    confirmed = verdict.timing is not None and verdict.timing.confirmed
    return confirmed, speedup.low if speedup is not None else 0.0


def _called(number: int, constants: Mapping[str, KnobValue], inputs: Sequence[str]) -> str:
    named = f"variant {number}: {constants_in_words(constants)}"
    return f"{', '.join(inputs)} ({named})" if inputs else named


def export_dispatch(
    problem: Problem,
    routes: Sequence[Route],
    environment: Environment,
    baseline: str,
    *,
    today: datetime.date | None = None,
) -> str:
    """A Python file with a drop-in ``nn.Module`` that chooses among kernels by the shape and dtype of its input.

    Like the file of one kernel, it needs torch, and g++ for C++ kernels, but not kernelwright. Each kernel is built
    when a call first needs it. A call without a route runs the reference.

    Raises:
        UsageError: no kernel serves any route, or one cannot be exported.
    """
    kernels: dict[str, Candidate] = {}
    for route in routes:
        if route.kernel is not None:
            kernels.setdefault(route.kernel.sha256, route.kernel)
    if not kernels:
        raise UsageError(
            f"on every variant of {problem.declared.id} the best of these kernels is slower than {baseline}",
            hint="'kernelwright kernels best' shows what was measured",
        )
    name = f"{class_name(problem.name)}s"
    backend = next(iter(kernels.values())).backend
    sources = [
        f"KERNEL_SOURCE_{number} = {literal(bound_kernel(kernel))}"
        for number, kernel in enumerate(kernels.values(), start=1)
    ]
    exports = [
        _EXPORT.format(
            number=number,
            label=sha256[:_DIGITS],
            variants="".join(f"            {dict(r.constants)!r},\n" for r in routes if _serves(r, sha256)),
            device=kernel_device(backend),
            training=problem.meta.mode == "train",
            constant_weights=problem.meta.weights == "constants",
        )
        for number, sha256 in enumerate(kernels, start=1)
    ]
    date = today or datetime.datetime.now(datetime.UTC).date()
    parts = [
        _header(problem.declared, routes, list(kernels.values()), environment, baseline, name, date),
        embedded(runtime_of(problem)),
        section("The reference: what the kernels replace, and what runs outside their guards"),
        f"REFERENCE_SOURCE = {literal(problem.source)}",
        section("The kernels"),
        *sources,
        section("The drop-in"),
        _DROP_IN.format(name=name, runtime=RUNTIME_NAMES, exports="".join(exports)),
    ]
    return "\n\n\n".join(part.strip("\n") for part in parts) + "\n"


def _serves(route: Route, sha256: str) -> bool:
    return route.kernel is not None and route.kernel.sha256 == sha256


_EXPORT = """    Export(
        label="{label}",
        name="kernel_{number}",
        reference=REFERENCE,
        reference_source=REFERENCE_SOURCE,
        kernel_source=KERNEL_SOURCE_{number},
        variants=[  # the settings of the reference's constants for which this kernel is taken
{variants}        ],
        device="{device}",
        training={training},
        constant_weights={constant_weights},
        runtime=RUNTIME,
    ),
"""

_DROP_IN = '''
REFERENCE = load_source("reference", REFERENCE_SOURCE, {{}})
{runtime}
EXPORTS = (
{exports})


class {name}(DropIn, REFERENCE.Model):
    """Drop-in for the reference's Model: same constructor, same parameters, same results, a kernel for each shape."""

    dropin_exports = EXPORTS
    dropin_reference = REFERENCE.Model


Model = {name}
from_reference = {name}.from_reference
get_inputs = REFERENCE.get_inputs
get_init_inputs = REFERENCE.get_init_inputs


def compare():
    """Run the kernels and the reference on the problem's own inputs in every shape and print how far they are apart."""
    for constants, init, inputs in (example for export in EXPORTS for example in export.examples()):
        model = {name}(*init).train(EXPORTS[0].training)
        with torch.no_grad():
            print(constants, "kernel %s active: %s (%s)" % (model.kernel_for(*inputs), *model.kernel_active(*inputs)))
            expected, actual = REFERENCE.Model.forward(model, *inputs), model(*inputs)
        for a, b in zip(*([x] if isinstance(x, torch.Tensor) else x for x in (expected, actual))):
            print("largest difference:", (a.double() - b.double()).abs().max().item())


if __name__ == "__main__":
    compare()
'''


def _header(
    problem: Problem,
    routes: Sequence[Route],
    kernels: Sequence[Candidate],
    environment: Environment,
    baseline: str,
    name: str,
    today: datetime.date,
) -> str:
    """The file's docstring: which kernel serves which shape, and its measurements."""
    count = f"{len(kernels)} kernel{'s' * (len(kernels) != 1)}"
    lines = [
        f'"""{name}: {count} for {plain(problem.id)}, chosen by the shape. Needs torch and, to build, g++.',
        "",
        f"    problem      {plain(problem.id)} (source sha256 {problem.sha256})",
        f"    backend      {kernels[0].backend}",
        f"    environment  {plain(environment.id)}: {plain(environment.device)}, {plain(environment.cpu)}",
        f"    exported     {today.isoformat()}",
        *(f"    kernel {n}     {plain(kernel.sha256)}{_knobs(kernel)}" for n, kernel in enumerate(kernels, start=1)),
        "",
        f"Which kernel serves which shape, with its speedup over {plain(baseline)} (95% interval):",
        "",
    ]
    for route in routes:
        lines.append(f"    {plain(_called(route.number, route.constants, route.inputs))}")
        lines += [f"        {line}" for line in _reasons(route, kernels, baseline)]
    lines += [
        "",
        "It replaces the reference, with the same constructor arguments and state dict. To share the weights of a live",
        f"module, call {name}.from_reference(model). A kernel runs for the shapes, dtypes, layouts and constructor",
        "arguments above, in the mode that was checked and without gradients. Any other call runs the reference.",
        "model.kernel_active(*inputs) tells whether a kernel runs and why, model.kernel_for(*inputs) tells which one.",
        "Kernels are compiled on first use, for the machine that runs them. Speeds were measured elsewhere and may",
        "differ here.",
        "",
        "Verify: run this file, or `kernelwright kernels verify HASH` for each of its kernels.",
        '"""',
    ]
    return "\n".join(lines)


def _knobs(kernel: Candidate) -> str:
    return f", knobs {plain(str(dict(sorted(kernel.knobs.items()))))}" if kernel.knobs else ""


def _reasons(route: Route, kernels: Sequence[Candidate], baseline: str) -> list[str]:
    """The lines that say which kernel serves a route, and the measurement that decided."""
    best, timing = route.evidence, route.evidence.verdict.timing
    number = next((n for n, kernel in enumerate(kernels, start=1) if _serves(route, kernel.sha256)), None)
    who = f"kernel {number} ({best.candidate.sha256[:_DIGITS]})"
    if number is None:
        who = f"the reference: the best kernel, {best.candidate.sha256[:_DIGITS]}, is slower"
    speedup = best.verdict.speedup(baseline)
    if timing is None or speedup is None:
        return [f"{who}: checked here, nothing was timed"]
    found = f"{who}: {_interval(speedup)}, {'confirmed' if timing.confirmed else 'not confirmed'}"
    if best.verdict.too_small:
        found += ", too small to time"
    return (
        [f"{found}, measured here"]
        if not route.measured_on
        else [
            f"{found},",
            "checked here and not timed; measured on the nearest shape,",
            plain(route.measured_on),
        ]
    )


def _interval(speedup: Speedup) -> str:
    return f"{speedup.median:.3f}x [{speedup.low:.3f}, {speedup.high:.3f}]"
