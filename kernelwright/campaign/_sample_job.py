"""One problem of a bench: write independent samples and judge them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kernelwright.agents import Assignment, Coder, CoderError, RoleFailed, StepContext, Workbench
from kernelwright.agents.llm import AwaitingReply, ModelFault
from kernelwright.campaign._lane import Lane, LaneSession
from kernelwright.campaign._locks import RunLock
from kernelwright.campaign._problem_job import verdict_summary
from kernelwright.campaign._results import CampaignEvent, EventKind, RunResult
from kernelwright.campaign._sample_results import SamplePlan
from kernelwright.campaign.attempts import Awaiting, ProblemFault, Stopped, attempted, note_fault, row_of_fault
from kernelwright.campaign.stopping import StopWatch
from kernelwright.errors import NotYet, UsageError
from kernelwright.records import Candidate, Problem, RunConfig, sha256_text
from kernelwright.store import Sample

if TYPE_CHECKING:
    from kernelwright.store import Store, StoredEvaluation


class _NoAnswer(Exception):
    """A request for a sample that got no answer. ``final``: the same request would fail again."""

    def __init__(self, message: str, *, final: bool) -> None:
        ending = "no more samples of this problem are requested now" if final else "the next run requests it again"
        super().__init__(f"{message}; {ending}")
        self.final = final


def lock_of(run_id: str, problem_id: str) -> str:
    """The name of the lock that a process holds while it works on a problem of a bench."""
    return f"{run_id}.{sha256_text(problem_id)[:16]}"


@dataclass(frozen=True)
class SampleJob:
    """The work on one problem. Several processes may share a bench, but only one works on a problem at a time.

    Attributes:
        coder: writes missing samples; None to write none.
        judges: whether to judge samples that were not judged yet in ``environment``.
        environment: returns the id of the environment that judges a candidate.
    """

    run_id: str
    problem: Problem
    config: RunConfig
    plan: SamplePlan
    store: Store
    lane: Lane
    coder: Coder | None
    judges: bool
    environment: Callable[[Candidate], str]
    watch: StopWatch
    tell: Callable[[CampaignEvent], None]

    def run(self) -> RunResult | None:
        """Do the remaining work; returns the problem's row, or None if another process works on the problem.

        Raises:
            Stopped: a stop was asked for.
            Awaiting: replies are still to be written.
            KernelwrightError: a fault that concerns the whole run.
        """
        with ExitStack() as held:
            try:
                held.enter_context(RunLock(self.store.path, lock_of(self.run_id, self.problem.id)))
            except UsageError as error:
                self._emit("note", text=f"another process works on {self.problem.id} ({error.message})")
                return None
            return self._attempts()

    def _attempts(self) -> RunResult:
        started = self.watch.seconds
        session = self.lane.session(self.problem, self.config.backend, partial(self._stage))

        def told(fault: ProblemFault, said: str) -> None:
            note_fault(self.store, self.run_id, self.problem, fault)
            self._emit("note", text=f"{self.problem.id}: {said}")

        def work() -> RunResult:
            try:
                awaited = self._write(session) + self._judge(session)
            finally:
                session.close()  # another try gets a new one
            if awaited:
                raise Awaiting(awaited)
            return self._row(self.watch.seconds - started)

        def failed(fault: ProblemFault) -> RunResult:
            return row_of_fault(self.problem, fault, seconds=self.watch.seconds - started)

        return attempted(work, failed=failed, told=told, watch=self.watch)

    # -------------------------------------------------------------------------------------------- writing

    def _write(self, session: LaneSession) -> tuple[str, ...]:
        """Write the missing samples; returns the paths at which replies are awaited."""
        if self.coder is None:
            return ()
        have = {sample.number for sample in self.store.run_samples(self.run_id, self.problem.id)}
        bench = Workbench(session.call, session.small)
        awaited = []
        for number in sorted(set(range(self.plan.samples)) - have):
            self._stop_if_asked()
            try:
                sample = self._sample(self.coder, bench, number)
            except AwaitingReply as waiting:
                awaited.append(str(waiting.data["path"]))
                continue
            except _NoAnswer as fault:
                self._emit("note", text=f"{self.problem.id}, sample {number}: {fault}")
                if fault.final:
                    break
                continue
            self.store.add_sample(self.run_id, sample)
            self._emit("proposed", round=number, text=sample.reason or "written")
        return tuple(awaited)

    def _sample(self, coder: Coder, bench: Workbench, number: int) -> Sample:
        """One sample, written without knowledge of the others.

        Raises:
            _NoAnswer: the model could not be reached or the request was rejected. Neither counts against the model.
        """
        seed = int(sha256_text(f"{self.plan.seed}:{self.problem.id}:{number}")[:12], 16) + 1
        context = StepContext(
            problem=self.problem,
            backend=self.config.backend,
            round=0,
            rounds=1,
            bench=bench,
            baseline=self.config.baselines[0],
            assignment=Assignment(sample=number, seed=seed),
        )
        try:
            proposal = coder.propose(context)
        except (RoleFailed, CoderError) as failed:
            if isinstance(failed.__cause__, ModelFault):
                raise _NoAnswer(failed.message, final=failed.__cause__.kind == "rejected") from failed
            return Sample(problem=self.problem.id, number=number, candidate=None, reason=failed.message)
        if proposal.candidate is None:
            return Sample(problem=self.problem.id, number=number, candidate=None, reason=proposal.rationale)
        return Sample(problem=self.problem.id, number=number, candidate=proposal.candidate)

    # ------------------------------------------------------------------------------------------- judging

    def _judge(self, session: LaneSession) -> tuple[str, ...]:
        """Judge the samples without a verdict; returns the paths at which verdicts are awaited."""
        if not self.judges:
            return ()
        awaited: list[str] = []
        samples = self.store.run_samples(self.run_id, self.problem.id)
        for sample in samples:
            if sample.candidate is None or self._verdict_on(sample.candidate) is not None:
                continue
            self._stop_if_asked()
            try:
                evaluation = session.judge_sample(sample.candidate, control=self.plan.control)
            except NotYet as later:
                awaited.append(str(later.data["path"]))
                continue
            self.store.record_evaluation(evaluation, run_id=self.run_id, step=sample.number)
            self._emit("judged", round=sample.number, rounds=len(samples), **verdict_summary(evaluation))
        return tuple(awaited)

    def _verdict_on(self, candidate: Candidate) -> StoredEvaluation | None:
        return self.store.find_evaluation(
            candidate=candidate.sha256,
            problem=self.problem.id,
            run_id=self.run_id,
            environment=self.environment(candidate),
            control=self.plan.control,
        )

    # --------------------------------------------------------------------------------------------- telling

    def _row(self, seconds: float) -> RunResult:
        """The problem's row: its best sample, or the reason why no sample passed."""
        samples = self.store.run_samples(self.run_id, self.problem.id)
        candidates = [sample.candidate for sample in samples if sample.candidate is not None]
        judged = [found for found in map(self._verdict_on, candidates) if found is not None]
        missing = self.plan.samples - len(samples) if self.plan.origin == "written" else 0
        if missing > 0 or len(judged) < len(candidates):
            return RunResult(problem=self.problem.id, state="pending", rounds=len(samples), seconds=seconds)
        passed = [found for found in judged if found.verdict.passed]
        if not passed:
            last = judged[-1].verdict if judged else None
            reason = last.reason if last else next((s.reason for s in reversed(samples) if s.reason), "no sample")
            return RunResult(
                problem=self.problem.id,
                state="failed",
                status=None if last is None else last.status,
                reason=reason,
                rounds=len(samples),
                seconds=seconds,
            )
        best = max(passed, key=self._lower_bound)
        timing = best.verdict.timing
        return RunResult(
            problem=self.problem.id,
            state="done",
            candidate=best.verdict.candidate,
            evaluation=best.id,
            stage=best.verdict.stage,
            status=best.verdict.status,
            confirmed=timing is not None and timing.confirmed,
            latency_ms=None if timing is None else timing.latency_ms,
            speedup={} if timing is None else dict(timing.speedup),
            own_kernel_label=best.verdict.own_kernel_label,
            eligible=best.verdict.eligible,
            rounds=len(samples),
            seconds=seconds,
            sandbox=best.verdict.sandbox,
            environment=best.verdict.environment,
            variant=best.verdict.variant,
            too_small=best.verdict.too_small,
            denied=best.verdict.timing.denial(self.config.baselines[0]) if best.verdict.timing else "",
        )

    def _lower_bound(self, found: StoredEvaluation) -> float:
        speedup = found.verdict.speedup(self.config.baselines[0])
        return 0.0 if speedup is None else speedup.low

    def _stop_if_asked(self) -> None:
        if reason := self.watch.reason():
            raise Stopped(reason)

    def _stage(self, name: str) -> None:
        self._emit("stage", stage=name)

    def _emit(self, kind: EventKind, **data: Any) -> None:
        facts: Mapping[str, Any] = data
        self.tell(CampaignEvent(kind, self.problem.id, facts))
