"""The stage that measures how much of the work a candidate's own kernels do."""

from __future__ import annotations

from kernelwright.evaluator.accuracy.trials import CheckSet
from kernelwright.evaluator.host.seat import WorkerSeat
from kernelwright.evaluator.own.evidence import Evidence, Shares
from kernelwright.evaluator.own.trace import Trace
from kernelwright.evaluator.screen import screening
from kernelwright.evaluator.timing.clock import Clock
from kernelwright.evaluator.timing.slots import Slots
from kernelwright.evaluator.timing.turns import Plan
from kernelwright.evaluator.verdict.failures import refuse
from kernelwright.evaluator.verdict.progress import Progress, Refused
from kernelwright.evaluator.verdict.replay import Replay
from kernelwright.evaluator.wire.claims import WorkerFailed, readable
from kernelwright.records import Candidate, Problem, Status


def ask_for_own_kernels(
    clock: Clock,
    problem: Problem,
    candidate: Candidate,
    side: WorkerSeat,
    check_set: CheckSet,
    windows: tuple[Slots, Plan],
    replay: Replay,
    progress: Progress,
) -> None:
    """Measure how much of the work own kernels do, once ``side`` has passed its check in ``windows``.

    Raises:
        Refused: own kernels are for show, or do less than is asked for, or the outputs are not nested as expected.
    """
    stubbed = candidate.backend == "cpp"
    try:
        shares = clock.own_shares(side, windows) if stubbed else Shares(None, None)
        trace = Trace.from_claims(clock.trace(side, windows))
    except WorkerFailed as failed:
        refuse(problem.id, failed, side, "ghost", progress)
    progress.launches = trace.seen
    if trace.structure != (wanted := check_set.variants[0].structure):
        reason = f"forward returns {readable(trace.structure)[:200]}, {wanted[:200]} expected"
        raise Refused(Status.INCORRECT_SHAPE, "check", reason)
    first = shares.first

    def asked(worker: WorkerSeat) -> bool:
        nonlocal first
        right = clock.checks.answers_right(worker, check_set)
        first = first if stubbed else clock.share_beside(side, worker, check_set, windows)
        return right

    ghost = replay.result(built=stubbed, is_right=asked)
    progress.evidence = evidence = Evidence(
        share=first,
        again=shares.again,
        launches=trace.launches,
        ghost=ghost.found,
        ghost_reason=ghost.reason,
        torch_flops=trace.flops,
        reference_flops=check_set.flops,
        torch_steps=trace.steps,
        reference_steps=check_set.steps,
        operators=trace.operators,
        calls=trace.calls,
        lengths_ns=shares.lengths_ns,
        claimed=bool(side.client.built or screening.kernel_backends(candidate.source)),
    )
    progress.note("own-kernels", evidence.text())
    if trace.operators:
        progress.note("torch-operators", ", ".join(trace.operators))
    if reason := evidence.objection():
        raise Refused(Status.REWARD_HACK, "ghost", reason)
    if reason := evidence.shortfall():
        progress.fall_short("ghost", reason)
    if progress.own_kernels == "strict" and (reason := evidence.shortfall_of_strict(problem.meta.heavy_ops)):
        raise progress.ineligible("ghost", reason)
