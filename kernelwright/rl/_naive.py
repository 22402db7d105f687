"""A naive evaluator that must NOT be trusted. It shows what formulas pay for when they believe such an evaluator.

It works like published pipelines, KernelBench's among them: reference and candidate run in one process with the same
seed, a few ``torch.allclose`` with tolerances of 1e-2 compare them, and the process's own clock times calls on the same
inputs. (Weights are also copied by name, which candidates may expect here.) A kernel can deceive each of these steps,
and those of ``tests/adversarial/attacks`` do. ``benchmarks/reward_hacks.py`` compares its results with the referee's.
They are never recorded as verdicts, and never rewarded.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from kernelwright.inline import apply_knobs
from kernelwright.rl.rewards import Attempt
from kernelwright.sandbox import Limits, WorkerFailed

if TYPE_CHECKING:
    from kernelwright.records import Candidate, Problem
    from kernelwright.sandbox import Sandbox

NAIVE_ENTRY: Final = "kernelwright.rl._naive_worker:evaluate"
NAIVE_LIMITS: Final = Limits(memory_bytes=3 << 29, wall_s=60.0, cpu_s=90, allow_exec=True)
TRIALS: Final = 5
RUNS: Final = 20
_TICK_S: Final = 1e-9  # assumed if the clock stood still
_OWN = ("cpp(", "load_inline(", "triton.jit", "__global__")

NaiveOutcome = Literal["right", "wrong", "raised", "timeout", "oom", "output", "crash", "reply", "no device"]


class NaiveResult(NamedTuple):
    """The naive evaluator's result for a kernel.

    Attributes:
        attempt: its evidence; None if there is no device for the kernel.
        outcome: how the evaluation ended: ``right``, ``wrong``, ``raised`` (an exception), or how the process ended.
        detail: the text of the exception. It is hostile text.
    """

    attempt: Attempt | None
    outcome: NaiveOutcome
    detail: str = ""


def evaluate_naively(
    sandbox: Sandbox, problem: Problem, candidate: Candidate, limits: Limits = NAIVE_LIMITS
) -> NaiveResult:
    """Evaluate a kernel in the kernel's own process, on the problem's first variant for the CPU.

    The process may start programs, so that ``kernelwright.inline`` can compile in it. Speedups are mean time over mean
    time, against eager PyTorch alone. Own kernels are recognised by the source text: ``own_share`` is 1 if it has one,
    else 0. A kernel in Triton or CUDA is not evaluated.

    Raises:
        SandboxError: the sandbox could not be set up.
    """
    if candidate.backend != "cpp":
        return NaiveResult(None, "no device")
    payload = {
        "reference": problem.source,
        "candidate": _text_of(candidate),
        "constants": problem.meta.variants_for("cpu")[0],
        "mode": problem.meta.mode,
        "trials": TRIALS,
        "runs": RUNS,
    }
    refused = Attempt(False, uses_own_kernel=has_kernel(candidate.source), length=len(candidate.source))
    try:
        reply = sandbox.call(NAIVE_ENTRY, payload, limits=limits, max_reply_bytes=1 << 20)
    except WorkerFailed as error:
        kind = error.kind
        return NaiveResult(refused, "raised" if kind == "exception" else kind, error.message[:500])
    outcome = reply.get("outcome")
    if outcome == "wrong" or outcome == "raised":
        return NaiveResult(refused, outcome, str(reply.get("detail", ""))[:500])
    attempt = _attempt_of(reply, candidate)
    return NaiveResult(refused, "reply") if attempt is None else NaiveResult(attempt, "right")


def has_kernel(source: str) -> bool:
    """The naive rule: whether the source text seems to have an own kernel. Nothing checks that the kernel runs."""
    return any(word in source for word in _OWN)


def _attempt_of(reply: Mapping[str, Any], candidate: Candidate) -> Attempt | None:
    """The attempt of a right kernel; None if the reply, which the kernel could have written, is invalid."""
    reference, kernel = _seconds(reply.get("reference_s")), _seconds(reply.get("kernel_s"))
    error = reply.get("error")
    if reply.get("outcome") != "right" or reference is None or kernel is None or not isinstance(error, (int, float)):
        return None
    own = has_kernel(candidate.source)
    return Attempt(
        correct=True,
        speedup=statistics.fmean(reference) / statistics.fmean(kernel),
        own_share=float(own),
        uses_own_kernel=own,
        error=float(error) if math.isfinite(error) else 0.0,
        length=len(candidate.source),
        runs=tuple(zip(reference, kernel, strict=True)),
    )


def _seconds(value: Any) -> list[float] | None:
    whole = isinstance(value, list) and len(value) == RUNS
    if not whole or not all(type(one) in (int, float) and math.isfinite(one) for one in value):
        return None
    return [max(float(one), _TICK_S) for one in value]


def _text_of(candidate: Candidate) -> str:
    """The source with its knobs set; unchanged if they cannot be set."""
    try:
        return apply_knobs(candidate.source, candidate.knobs) if candidate.knobs else candidate.source
    except (SyntaxError, ValueError):
        return candidate.source
