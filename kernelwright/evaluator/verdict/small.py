"""Small sizes for what runs kernels of a GPU without one: Triton's interpreter and the CUDA emulator.

A problem may declare variants for them (``interpreter``). Where it declares none and its own sizes are too large, its
constants are halved until a check takes seconds. What a candidate's file says as well, such as the layers of its
model, stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kernelwright.datasets import fitted
from kernelwright.errors import MachineError
from kernelwright.records import Evaluation, Finding, Problem
from kernelwright.records.problems import VARIANT_MARK
from kernelwright.sandbox import WorkerFailed

# Above the first two a problem is too large; it is then made as small as the others say. An interpreter takes about a
# millisecond for each program of a launch, and a check some dozens of calls.
_TOO_MANY_BYTES, _TOO_MANY_FLOPS = 4 << 20, 100_000_000
_BYTES, _FLOPS = 64 << 10, 4_000_000
_RULE = "fitted-sizes"

Call = Callable[[str, dict[str, Any]], Mapping[str, Any]]


def small_problem(problem: Problem, call: Call) -> Problem | None:
    """The problem in sizes for an interpreter; None where its own are, or where no smaller ones can be found.

    Args:
        problem: one that declares no variants for it.
        call: runs a function in a sandbox (``Sandbox.call``).
    """
    sizes: dict[str, Any] = {"device_class": "interpreter", "literals": False}
    try:
        if fitted(problem, call, most_bytes=_TOO_MANY_BYTES, most_flops=_TOO_MANY_FLOPS, **sizes).problem == problem:
            return None
        small = fitted(problem, call, most_bytes=_BYTES, most_flops=_FLOPS, **sizes).problem
    except (WorkerFailed, MachineError):
        return None  # its shapes cannot be followed within a worker's limits, or it answered for itself
    variants = {**small.meta.variants, "interpreter": ({},)}
    return small.model_copy(update={"meta": small.meta.model_copy(update={"variants": variants})})


def as_of(evaluation: Evaluation, problem: Problem, small: Problem) -> Evaluation:
    """An evaluation in small sizes as one of the problem itself, which says so."""
    sizes = small.id.rpartition(VARIANT_MARK)[2]
    said = (
        f"checked in fitted sizes ({sizes}), since its own are too large without a GPU; "
        "PROBLEM can declare others as variants for 'interpreter'"
    )
    verdict = evaluation.verdict
    reason = f"{verdict.reason} (in fitted sizes: {sizes})" if verdict.reason else ""
    finding = Finding(rule=_RULE, effect="informs", evidence=said)
    changed = {"problem": problem.id, "reason": reason, "findings": (*verdict.findings, finding)}
    return evaluation.model_copy(update={"verdict": verdict.model_copy(update=changed)})
