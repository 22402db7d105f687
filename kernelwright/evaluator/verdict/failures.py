"""Refusals other than for wrong answers: failed builds, forbidden source texts, failed workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from kernelwright import inline
from kernelwright.errors import MachineError
from kernelwright.evaluator.builds.builder import BuildOutcome
from kernelwright.evaluator.host.seat import Seat
from kernelwright.evaluator.screen import screening
from kernelwright.evaluator.verdict.progress import Progress, Refused, status_of
from kernelwright.evaluator.wire.claims import WorkerFailed, readable
from kernelwright.evaluator.wire.roles import is_foreign
from kernelwright.records import Status
from kernelwright.records.verdicts import FailedStage

__all__ = ["note_builds", "refuse"]


def note_builds(built: Sequence[inline.BuildRequest], outcomes: Sequence[BuildOutcome], progress: Progress) -> None:
    """Keep the compiler's messages. A failed build refuses the candidate, even if its code handles the failure."""
    if progress.screening:
        _screen_built(built, progress)
    _note_options(built, progress)
    messages = [o.log for o in outcomes if o.log]
    if messages:
        progress.artifacts["compiler"] = "\n".join(messages)[:16_000]
    failed = next((o for o in outcomes if o.product is None), None)
    if failed is not None and failed.uncheckable:
        raise Refused(Status.UNCHECKED, "build", failed.uncheckable)
    if failed is not None:
        first = next((line for line in failed.log.splitlines() if "error" in line), failed.log[:200])
        status = Status.TIMEOUT if failed.problem == "timeout" else Status.COMPILE_ERROR
        raise Refused(status, "build", f"the build failed: {first.strip()[:400]}")


def _note_options(built: Sequence[inline.BuildRequest], progress: Progress) -> None:
    """Note compiler options that were left out or replaced. Asking for them is no fault of the candidate."""
    found = [inline.cuda_flags(request.flags) for request in built if "cuda" in request.language]
    told = dict.fromkeys(flag for flags in found for flag in flags.told)
    replaced = dict.fromkeys(flag for flags in found for flag in flags.replaced)
    said = [f"left out, since they change no kernel: {', '.join(told)}"] if told else []
    said += [f"replaced by the referee's own device: {', '.join(replaced)}"] if replaced else []
    if said and not any(finding.rule == "compiler-options" for finding in progress.findings):
        progress.note("compiler-options", readable("; ".join(said))[:400])


def _screen_built(built: Sequence[inline.BuildRequest], progress: Progress) -> None:
    """Screen the texts that were compiled: a candidate may have put them together at run time."""
    for request in built:
        result = screening.screen_source(request.source)
        new = tuple(f for f in result.findings if f.rule not in {seen.rule for seen in progress.findings})
        progress.findings += new
        if result.status is not None:
            raise Refused(result.status, "build", f"in what it had built: {result.reason}")


def refuse(problem_id: str, failed: WorkerFailed, side: Seat, stage: FailedStage, progress: Progress) -> NoReturn:
    """Refuse the candidate whose worker failed. A failing twin is the machine's fault."""
    if not is_foreign(failed.worker):
        raise MachineError(
            f"the worker of baseline {failed.worker!r} failed while {problem_id} was timed: {failed.failure.message}",
            hint="run it again; if it fails again, the reference needs more memory or time than the limits allow",
        )
    if tail := side.client.tail():
        progress.artifacts["worker output"] = tail
    note_builds(side.client.built, side.client.outcomes, progress)
    status, reason = status_of(failed.failure)
    raise Refused(Status.QUARANTINED if stage == "confirm" else status, stage, reason)
