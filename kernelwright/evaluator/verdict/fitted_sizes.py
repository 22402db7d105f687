"""Small problem sizes for running GPU kernels without a GPU, in Triton's interpreter or the CUDA emulator.

A problem may declare variants for them (``interpreter``). If it declares none and its own sizes are too large, its
constants are halved until a check takes seconds. Numbers that a candidate's file repeats, such as the layers of its
model, are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kernelwright.datasets import fitted
from kernelwright.errors import MachineError
from kernelwright.records import Evaluation, Finding, Problem
from kernelwright.records.problems import VARIANT_MARK
from kernelwright.sandbox import WorkerFailed

# A problem above the first two limits is too large, and is shrunk below the last two. An interpreter takes about a
# millisecond for each program of a launch, and a check makes some dozens of calls. Many kernels are written for sizes
# that are multiples of a warp's 32 threads, as the problem's own are: smaller ones are worth _SLACK times the limits.
_TOO_MANY_BYTES, _TOO_MANY_FLOPS = 4 << 20, 100_000_000
_BYTES, _FLOPS = 64 << 10, 4_000_000
_TILE, _SLACK = 32, 8.0
_RULE = "fitted-sizes"

Call = Callable[[str, dict[str, Any]], Mapping[str, Any]]


def small_problem(problem: Problem, call: Call) -> Problem | None:
    """The problem in sizes for an interpreter; None if its own sizes are small enough, or no smaller ones are found.

    Args:
        problem: declares no variants for an interpreter.
        call: runs a function in a sandbox (``Sandbox.call``).
    """
    sizes: dict[str, Any] = {"device_class": "interpreter", "literals": False}
    try:
        if fitted(problem, call, most_bytes=_TOO_MANY_BYTES, most_flops=_TOO_MANY_FLOPS, **sizes).problem == problem:
            return None
        sizes |= {"tile": _TILE, "slack": _SLACK, "alike": True}
        small = fitted(problem, call, most_bytes=_BYTES, most_flops=_FLOPS, **sizes).problem
    except (WorkerFailed, MachineError):
        return None  # its shapes cannot be computed within a worker's limits, or it forged the reply
    variants = {**small.meta.variants, "interpreter": ({},)}
    return small.model_copy(update={"meta": small.meta.model_copy(update={"variants": variants})})


def as_of(evaluation: Evaluation, problem: Problem, small: Problem) -> Evaluation:
    """An evaluation in small sizes, as one of the problem itself. A finding says so."""
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
