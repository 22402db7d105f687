"""Starts workers of candidates: screened, loaded, built, and set up for the first variant."""

from __future__ import annotations

from kernelwright import inline
from kernelwright.evaluator.accuracy.trials import CheckSet
from kernelwright.evaluator.host.client import Builder
from kernelwright.evaluator.host.host import Host, Program
from kernelwright.evaluator.host.seat import WorkerSeat
from kernelwright.evaluator.screen import screening
from kernelwright.evaluator.verdict.clocks import Clocks, checked_by
from kernelwright.evaluator.verdict.failures import note_builds, refuse
from kernelwright.evaluator.verdict.progress import Progress, Refused
from kernelwright.evaluator.verdict.replay import Replay
from kernelwright.evaluator.wire.claims import WorkerFailed
from kernelwright.records import Candidate, Finding, Problem, Stage, Status
from kernelwright.records.verdicts import FailedStage

_INTERPRETED = {"TRITON_INTERPRET": "1"}


class Launcher:
    """Starts candidates of one problem.

    Attributes:
        screens: whether the screen may refuse; without it, its findings inform only (to test the later stages).
    """

    def __init__(self, host: Host, clocks: Clocks, problem: Problem) -> None:
        self._host = host
        self._clocks = clocks
        self._problem = problem
        self.screens = True

    def progress(self, candidate: Candidate) -> Progress:
        """A fresh record for a candidate, before any stage."""
        timeable = candidate.backend == "cpp" or self._host.device_for(candidate.backend).is_apart
        wanted = self._host.settings.own_kernels_for(self._problem)
        return Progress(own_kernels=wanted, timeable=timeable, screening=self.screens)

    def screen(self, candidate: Candidate, progress: Progress, *, control: bool = False) -> None:
        """Screen a candidate's source text.

        Raises:
            Refused: a rule refuses it.
        """
        result = screening.screen(candidate.source, candidate.backend, control, progress.own_kernels)
        progress.findings = result.findings
        if not progress.screening:
            progress.findings = (
                Finding(rule="screen-off", effect="informs", evidence="the screen was told not to refuse"),
                *(finding.model_copy(update={"effect": "informs"}) for finding in result.findings),
            )
        elif result.status is not None:
            if result.status is not Status.INELIGIBLE:
                raise Refused(result.status, "screen", result.reason)
            progress.eligible = False
            reason = f"{result.reason}: not eligible with own_kernels={progress.own_kernels}"
            raise Refused(result.status, "screen", reason)
        progress.stage = Stage.SCREENED

    def start(
        self,
        candidate: Candidate,
        check_set: CheckSet,
        stage: FailedStage,
        progress: Progress,
        builds: Builder | None = None,
        role: str = "candidate",
    ) -> WorkerSeat:
        """A worker that has loaded the candidate and built its kernels, constructed for the first variant.

        Raises:
            Refused: loading, building or constructing fails.
        """
        side = self._bare(candidate, builds, role)
        try:
            progress.layers = side.client.worker.layers
            self.load(side, self.program(candidate, compiled=progress.compiled), check_set)
            note_builds(side.client.built, side.client.outcomes, progress)
        except WorkerFailed as failed:
            try:
                refuse(self._problem.id, failed, side, stage, progress)
            finally:
                side.end()
        except BaseException:
            side.end()
            raise
        return side

    def start_rival(self, rival: Candidate, check_set: CheckSet, role: str) -> WorkerSeat:
        """A worker for a rival. Only its failure is recorded.

        Raises:
            Refused: the rival is screened out, or its worker does not start.
        """
        progress = self.progress(rival)
        progress.screening = True
        self.screen(rival, progress)
        return self.start(rival, check_set, "time", progress, role=role)

    def replay(self, candidate: Candidate, check_set: CheckSet, progress: Progress) -> Replay:
        """The ghost replay of a candidate: does it answer right although its kernels do nothing?"""

        def load(side: WorkerSeat) -> None:
            self.load(side, self.program(candidate, ghost=True, compiled=progress.compiled), check_set)

        return Replay(self._host.builds, lambda builds: self._bare(candidate, builds), load)

    def program(
        self, candidate: Candidate, *, ghost: bool = False, compiled: bytes = b"", threads: int | None = None
    ) -> Program:
        """The program that a candidate's worker loads.

        Raises:
            Refused: its knobs cannot be applied.
        """
        try:
            source = inline.apply_knobs(candidate.source, candidate.knobs)
        except (ValueError, SyntaxError) as error:
            raise Refused(Status.RUNTIME_ERROR, "build", str(error)) from None
        clock = self._clocks.of(candidate.backend)
        return Program(
            source,
            role="candidate",
            mode=self._problem.meta.mode,
            checked_by=checked_by(candidate.backend, clock.device),
            ghost=ghost,
            device=clock.device,
            tf32=clock.workers.allows_tf32,
            compiled=compiled,
            threads=threads,
        )

    def load(self, side: WorkerSeat, program: Program, check_set: CheckSet) -> None:
        """Hand a worker its program and set it up for the first variant.

        Raises:
            WorkerFailed: its code raises, its build fails, or its parameters do not correspond.
        """
        side.load(self._host, program)
        side.set_up(check_set.variants[0])

    def put_away(self, side: WorkerSeat, progress: Progress) -> None:
        """End a candidate's worker. Keep its build requests, their products and its output."""
        progress.built = side.client.built
        products = (outcome.product for outcome in side.client.outcomes if outcome.product is not None)
        progress.products = {request.key: made for request, made in zip(progress.built, products, strict=False)}
        if tail := side.client.tail():
            progress.artifacts["worker output"] = tail
        side.end()

    def _bare(self, candidate: Candidate, builds: Builder | None = None, role: str = "candidate") -> WorkerSeat:
        clock = self._clocks.of(candidate.backend)
        interpreted = checked_by(candidate.backend, clock.device) == "interpreter"
        return clock.workers.candidate(_INTERPRETED if interpreted else {}, builds, role)
