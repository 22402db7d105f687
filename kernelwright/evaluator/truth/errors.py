"""Why a reference cannot be used, in words for its author."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

from kernelwright.datasets import smaller_sizes
from kernelwright.errors import InvalidReferenceError, KernelwrightError, MachineError
from kernelwright.evaluator.wire.claims import WorkerFailed, readable
from kernelwright.records import KnobValue, Problem
from kernelwright.sandbox import over_memory


def most_kept_bytes() -> int:
    """The referee's memory that a check set may take: a quarter of the machine's, because workers need some, too."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4


def reference_error(
    problem: Problem, failed: WorkerFailed, constants: Mapping[str, KnobValue] | None = None, output: str = ""
) -> KernelwrightError:
    """The error for a failed oracle or twin: the problem's fault with its line, or the machine's fault.

    It is the machine's fault if the worker died before any of the problem's code ran, or was killed, but not by our
    limits. ``output`` is the tail of the worker's output. It is quoted if the worker died without giving a reason.
    """
    failure = failed.failure
    last = output.strip().rpartition("\n")[2][-300:].strip()
    said = f": {readable(last)}" if last and failure.kind == "died" else ""
    if failure.kind == "died" and failure.exit is not None:
        killed = failure.exit.reason == "signal" and failure.exit.signal == signal.SIGKILL
        if killed or failure.phase == "load":
            return MachineError(
                f"the reference's worker {failure.message}{said}",
                hint="is there memory to spare? 'kernelwright doctor' says what this machine can do",
            )
    where = "" if failure.line is None else f", line {failure.line}"
    whose = "the reference's worker " if failure.kind == "died" else ""
    variant = f" (variant {dict(constants)})" if constants else ""
    message, hint = f"{whose}{failure.message}{said}", "the reference itself does not work; mend the problem file"
    if failure.kind == "died" and failure.exit is not None and failure.exit.reason == "oom":
        needs, raised = over_memory(failure.exit.memory_bytes)
        message, hint = f"the reference {needs}: {raised}, or {smaller_sizes(problem)}", ""
    return InvalidReferenceError(
        f"{problem.id}{where}: {message}{variant}",
        hint=hint,
        problem=problem.id,
        line=failure.line,
        stage=failure.phase,
    )
