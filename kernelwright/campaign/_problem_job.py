"""One problem of a run: open its session, run the step, confirm the winner, write the row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from kernelwright.agents import (
    Attempt,
    Coder,
    CoderError,
    Judge,
    ModelRole,
    Scratchpad,
    StepContext,
    Verifier,
    Workbench,
)
from kernelwright.agents.nodes import attempts_of, context_of
from kernelwright.agents.offline_judge import OfflineJudge
from kernelwright.agents.static_rank import describe_static
from kernelwright.agents.step import run_step
from kernelwright.agents.step_state import AttemptState, Judged, StepState, StepTools
from kernelwright.agents.strategy import (
    BranchFromBest,
    OneAtATime,
    Strategy,
    Trajectories,
    rounds_without_gain,
    share_of_roofline,
)
from kernelwright.campaign._confirm import choose_winner
from kernelwright.campaign._lane import Lane, LaneSession
from kernelwright.campaign._results import CampaignEvent, EventKind, RankedKernel, RunResult
from kernelwright.campaign.attempts import (
    Awaiting,
    ProblemFault,
    Stopped,
    attempted,
    note_fault,
    row_of_fault,
)
from kernelwright.campaign.ledger import StoreLedger
from kernelwright.campaign.memory import ProblemMemory
from kernelwright.campaign.searched import languages_of, make_search
from kernelwright.campaign.stopping import StopWatch
from kernelwright.config import CAPTURED, Settings
from kernelwright.datasets import TOO_SMALL, LintFinding, LintRecords, fitted, lint
from kernelwright.evaluator import Confirm, Search, Session
from kernelwright.records import Candidate, Evaluation, Problem, RunConfig, Status
from kernelwright.records.base import timed_together
from kernelwright.sandbox import WorkerFailed

if TYPE_CHECKING:
    from kernelwright.store import Store

_PASSED_OVER = ("verifier", "duplicate")  # roles of failures that leave a candidate unjudged


def _judged_by(
    session: LaneSession,
    candidate: Candidate,
    *,
    explain: bool,
    rivals: tuple[Candidate, ...] = (),
    known: frozenset[str] | None = None,
) -> Judged:
    return session.judge_unless(known, candidate, Search(rivals=rivals, explain=explain))


def _asked_ahead(
    session: LaneSession,
    candidate: Candidate,
    rivals: tuple[Candidate, ...],
    known: frozenset[str],
    *,
    explain: bool,
) -> None:
    session.judge_ahead(known, candidate, Search(rivals=rivals, explain=explain))


@dataclass(frozen=True)
class ProblemJob:
    """The work on one problem. ``run`` returns its row. A resumed job continues where the last one stopped."""

    run_id: str
    problem: Problem
    config: RunConfig
    settings: Settings
    store: Store
    lane: Lane
    coder: Coder
    judge: Judge
    verifier: Verifier | None
    scratchpad: Scratchpad | None
    memory: ProblemMemory
    watch: StopWatch
    lints: LintRecords
    tell: Callable[[CampaignEvent], None]
    begun: list[float] = field(default_factory=list)
    told: set[tuple[Any, ...]] = field(default_factory=set)  # parts of rounds, proposals, failures

    @property
    def baseline(self) -> str:
        """The baseline whose speedup decides: the first one."""
        return self.config.baselines[0]

    def run(self) -> RunResult:
        """Work on the problem until it is done.

        Returns:
            The row. Its state is ``failed`` if a fault of the problem itself ended the work.

        Raises:
            Stopped: a stop was asked for; the problem stays ``running``.
            Awaiting: replies are still to be written; the problem stays ``running``, too.
            KernelwrightError: a fault that concerns the whole run, such as a full disk or a broken sandbox.
        """
        self.begun.append(self.watch.seconds)  # a job that waited for something runs again
        started = self.begun[0]
        session = self.lane.session(self.problem, self.config.backend, self._stage)
        goes_on = False
        try:
            return self._attempts(session, started)
        except Awaiting:
            goes_on = True
            raise
        finally:
            if not goes_on:
                session.close()

    def _attempts(self, session: LaneSession, started: float) -> RunResult:
        def told(fault: ProblemFault, said: str) -> None:
            if fault.retry:
                session.close()  # the next try gets a new one
            note_fault(self.store, self.run_id, self.problem, fault)
            if not fault.invalid:
                self._emit("note", text=said)

        def work() -> RunResult:
            try:
                return self._work(session, started)
            except CoderError as error:
                return self._failed(started, str(error))

        return attempted(work, failed=lambda fault: self._ended(started, fault), told=told, watch=self.watch)

    def _work(self, session: LaneSession, started: float) -> RunResult:
        session.compile_ahead(self.config.backend)
        findings = self._lint(session)
        if reason := self._not_worth_timing(findings):
            return self._skipped(started, reason)
        ledger = StoreLedger(self.store, self.run_id, self.problem.id)
        strategy = self._strategy()
        explains = isinstance(self.judge, ModelRole)  # a profile helps a model, but not the rules of the offline Judge
        tools = StepTools(
            problem=self.problem,
            coder=self.coder,
            judge=None if isinstance(self.judge, OfflineJudge) and self._many_lines else self.judge,
            evaluate=partial(_judged_by, session, explain=explains),
            ledger=ledger,
            bench=Workbench(session.call, session.small),
            backend=self.config.backend,
            baseline=self.baseline,
            should_stop=self.watch.reason,
            build_ahead=session.build_ahead if any(map(session.builds_ahead, languages_of(self.config))) else None,
            strategy=strategy,
            finished=self._finished,
            verifier=self.verifier,
            ask_ahead=partial(_asked_ahead, session, explain=explains) if session.judges_ahead else None,
            scratchpad=self.scratchpad,
            scratchpad_every=self.settings.recipe.scratchpad_every,
        )
        result = run_step(
            tools,
            run_id=self.run_id,
            problem_id=self.problem.id,
            rounds=self.config.rounds,
            samples=self._samples,
            on_update=lambda part, state: self._told(ledger, part, state),
        )
        if result.stopped_early:
            raise Stopped(result.stopped_early)
        if result.awaited:
            raise Awaiting(result.awaited)
        ranked = strategy.ranking(context_of(tools, result.state))
        return self._finish(session, ledger, result.state, ranked, started)

    @property
    def _samples(self) -> int:
        """The number of candidates in a round; it is 1 for a coder without a model."""
        return self.settings.recipe.samples if isinstance(self.coder, ModelRole) else 1

    @property
    def _evolves(self) -> bool:
        """Whether the recipe sets up an evolutionary search."""
        return self.config.search is not None

    @property
    def _many_lines(self) -> bool:
        """Whether the search follows several lines of kernels. The offline Judge's rules are for a single line."""
        return self._evolves or (isinstance(self.coder, ModelRole) and self.settings.recipe.branch_from == "own")

    def _strategy(self) -> Strategy:
        if self.config.search is not None:
            moves = partial(self.memory.transfers, self.coder)
            return make_search(
                self.config, self.problem.id, samples=self._samples, moves=moves, ranks=self.memory.ranks
            )
        if self._many_lines:
            return Trajectories(self._samples)
        if isinstance(self.coder, ModelRole):
            return BranchFromBest(
                self._samples, self.settings.recipe.repairs, latest=self.settings.recipe.branch_from == "latest"
            )
        return OneAtATime()

    def _finished(self, context: StepContext) -> str:
        """The reason to end the search because no more gain is likely; empty while more gain is possible."""
        if not (self._evolves or isinstance(self.coder, ModelRole)):
            return ""  # the offline Judge says itself when to stop
        share, enough = share_of_roofline(context), self.settings.recipe.speed_of_light
        if enough is not None and share is not None and share >= enough:
            return f"the best kernel is at {share:.0%} of the speed that the machine allows"
        most = self.settings.recipe.stall_rounds
        if most is not None and rounds_without_gain(context) >= most:
            return f"{most} rounds without a gain"
        return ""

    def _lint(self, session: Session) -> Sequence[LintFinding]:
        """Run the lint if it never ran on this problem. Tables show its findings; the run goes on in any case.

        A captured module has no author who could use the findings, so it is not linted. A CPU runs the lint, so a
        problem with no other sizes than a GPU's is made smaller for it.
        """
        if self.problem.suite == CAPTURED:
            return ()
        if (known := self.lints.get(self.problem)) is not None:
            return known
        self._stage("lint")
        try:
            large = self.config.backend != "cpp" and "cpu" not in self.problem.meta.variants
            sized = fitted(self.problem, session.call).problem if large else None
            return lint(self.problem, session.call, records=self.lints, sized=sized)
        except WorkerFailed as error:
            self._emit("note", text=f"the lint could not run this problem: {error}")
            return ()

    def _not_worth_timing(self, findings: Sequence[LintFinding]) -> str:
        """The reason to skip this variant in a run over every variant; empty if it is worth a search."""
        if not self.config.every_variant or self.problem.variant == 0 or self.config.backend != "cpp":
            return ""
        return next((finding.message for finding in findings if finding.rule == TOO_SMALL), "")

    def _skipped(self, started: float, reason: str) -> RunResult:
        said = f"left alone: {reason}"
        self._emit("note", text=f"{said} (--variant {self.problem.variant} searches it all the same)")
        seconds = self.watch.seconds - started
        return RunResult(problem=self.problem.id, state="done", seconds=seconds, reason=said, skipped=True)

    def _finish(
        self, session: Session, ledger: StoreLedger, state: StepState, ranked: Sequence[Attempt], started: float
    ) -> RunResult:
        attempts = attempts_of(ledger, state)

        def confirm(candidate: Candidate, beside: tuple[Candidate, ...]) -> tuple[str, Evaluation]:
            found = ledger.find_confirmation(candidate)
            if found is None:
                self._stage("confirm")
                found = ledger.record(session.judge(candidate, Confirm(rivals=beside)), step=len(attempts))
            evaluation = ledger.evaluation(found)
            self._emit("confirmed", **verdict_summary(evaluation))
            return found, evaluation

        winner = choose_winner(attempts, ranked, self.baseline, confirm, ledger.evaluation)
        if winner.evaluation is None:
            last = attempts[-1].verdict.status if attempts else None
            reason = winner.reason if attempts else _why_nothing(state) or winner.reason
            return self._failed(started, reason, rounds=len(attempts), last=last)
        verdict = winner.evaluation.verdict
        return RunResult(
            problem=self.problem.id,
            state="done",
            candidate=verdict.candidate,
            evaluation=winner.evaluation_id,
            stage=verdict.stage,
            status=verdict.status,
            confirmed=verdict.timing is not None and verdict.timing.confirmed,
            latency_ms=verdict.timing.latency_ms if verdict.timing else None,
            speedup=dict(verdict.timing.speedup) if verdict.timing else {},
            own_kernel_label=verdict.own_kernel_label,
            eligible=verdict.eligible,
            rounds=len(attempts),
            seconds=self.watch.seconds - started,
            sandbox=verdict.sandbox,
            environment=verdict.environment,
            reason=state["stop"],
            variant=verdict.variant,
            too_small=verdict.too_small,
            denied=verdict.timing.denial(self.baseline) if verdict.timing else "",
            ranked=_with_evidence(ranked) if verdict.timing is None else (),
        )

    def _failed(
        self,
        started: float,
        reason: str,
        *,
        rounds: int = 0,
        last: Status | None = None,
    ) -> RunResult:
        return RunResult(
            problem=self.problem.id,
            state="failed",
            status=last,
            rounds=rounds,
            seconds=self.watch.seconds - started,
            reason=reason,
        )

    def _ended(self, started: float, fault: ProblemFault) -> RunResult:
        return row_of_fault(self.problem, fault, seconds=self.watch.seconds - started)

    def _stage(self, name: str) -> None:
        self._emit("stage", stage=name)

    def _told(self, ledger: StoreLedger, part: str, state: StepState) -> None:
        """Turn a finished part of a round into a progress event, once.

        A part may be done again after a fault. After a kill it may find the evaluation that was told then.
        """
        done = part, state["round"], len(state["attempts"]), len(state["failures"])
        if part != "propose":
            if done in self.told:
                return
            self.told.add(done)
        if part == "propose":
            for proposal in state["proposals"]:
                place = (self.problem.id, state["round"], proposal["sample"])
                if place not in self.told:
                    self.told.add(place)
                    self._emit("proposed", round=state["round"], text=proposal["reason"])
        elif part == "judge" and self._passed_over(state):
            self._emit("note", text=f"round {state['round'] + 1}/{state['rounds']}: {state['failures'][-1]['reason']}")
        elif part in ("judge", "again") and state["attempts"][-1]["evaluation"] not in ledger.recorded:
            return
        elif part == "judge":
            evaluation = ledger.evaluation(state["attempts"][-1]["evaluation"])
            self._emit(
                "judged",
                round=state["round"],
                rounds=state["rounds"],
                competes=timed_together(evaluation.candidate.backend, self.config.backend),
                **verdict_summary(evaluation),
            )
        elif part == "again":
            self._emit("note", text=_race_summary(ledger, state["attempts"][-1]))
        elif part == "conclude" and state["attempts"]:
            last = state["attempts"][-1]
            if last["advice"] and last["round"] == state["round"] - 1:
                self._emit("advised", round=last["round"], **last["advice"])
        elif part == "summarise" and state["scratchpad"]:
            said = "".join(c if c.isprintable() else " " for c in " ".join(state["scratchpad"].split()))
            self._emit("note", text=f"noted after round {state['round']}: {said}")

    def _passed_over(self, state: StepState) -> bool:
        """Whether the judging node just left a candidate unjudged. True only once for each such failure."""
        last = state["failures"][-1] if state["failures"] else None
        place = (self.problem.id, -1, len(state["failures"]))
        if last is None or last["role"] not in _PASSED_OVER or last["round"] != state["round"] or place in self.told:
            return False
        self.told.add(place)
        return True

    def _emit(self, kind: EventKind, **data: Any) -> None:
        self.tell(CampaignEvent(kind, self.problem.id, data))


def _race_summary(ledger: StoreLedger, attempt: AttemptState) -> str:
    """The outcome of judging a known kernel again, in words."""
    verdict = ledger.evaluation(attempt["evaluation"]).verdict
    name = f"kernel {verdict.candidate[:12]}"
    if not verdict.passed:
        return f"judged again: {name}: {verdict.status.value}: {verdict.reason}"
    found = {} if verdict.timing is None else verdict.timing.rivals
    for rival, ratio in found.items():
        said = f"{ratio.median:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]"
        outcome = "takes its place" if ratio.faster else "no faster"
        return f"raced again: {name}, {said} beside {rival[:12]}: {outcome}"
    return f"timed again: {name}"


def _why_nothing(state: StepState) -> str:
    """The reason why no round gave a candidate; empty if no role failed."""
    if not state["failures"]:
        return ""
    rounds = f"{state['round']} round{'s' * (state['round'] != 1)}"
    return f"no candidate in {rounds}: {state['failures'][-1]['reason']}"


def _with_evidence(ranked: Sequence[Attempt]) -> tuple[RankedKernel, ...]:
    return tuple(
        RankedKernel(candidate=attempt.candidate.sha256, evidence=describe_static(attempt.verdict.profile))
        for attempt in ranked
    )


def verdict_summary(evaluation: Evaluation) -> Mapping[str, Any]:
    """The facts of a verdict that progress events show, as plain JSON."""
    verdict = evaluation.verdict
    speedup = {} if verdict.timing is None else verdict.timing.speedup
    return {
        "candidate": verdict.candidate,
        "backend": verdict.backend,
        "status": verdict.status.value,
        "stage": verdict.stage.value if verdict.stage else None,
        "reason": verdict.reason,
        "latency_ms": verdict.timing.latency_ms.median if verdict.timing else None,
        "speedup": {name: value.model_dump(mode="json") for name, value in speedup.items()},
    }
