"""The stages of a candidate that passed the screen: build, check, races, own kernels, time, confirm, profile."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

from kernelwright import inline
from kernelwright.errors import MachineError, SandboxError
from kernelwright.evaluator.accuracy.trials import CheckSet
from kernelwright.evaluator.cpu.races import RaceStage
from kernelwright.evaluator.host.client import Builder
from kernelwright.evaluator.host.device import CPU
from kernelwright.evaluator.host.host import Host
from kernelwright.evaluator.host.seat import WorkerSeat
from kernelwright.evaluator.profile.winner import Winner
from kernelwright.evaluator.timing.clock import Clock
from kernelwright.evaluator.timing.slots import Slots
from kernelwright.evaluator.timing.turns import Plan
from kernelwright.evaluator.verdict.clocks import Clocks
from kernelwright.evaluator.verdict.failures import note_builds, refuse
from kernelwright.evaluator.verdict.interface import Check, Confirm, Search
from kernelwright.evaluator.verdict.launch import Launcher
from kernelwright.evaluator.verdict.own_kernels import ask_for_own_kernels
from kernelwright.evaluator.verdict.progress import Progress, Refused
from kernelwright.evaluator.verdict.search_and_confirm import Timekeeper
from kernelwright.evaluator.verdict.static_profile import StaticProfiler
from kernelwright.evaluator.wire.claims import WorkerFailed
from kernelwright.records import Candidate, Problem, Stage, Status


class Stages:
    """Takes candidates of one problem through the stages.

    Args:
        beside: a thread that compiles in the background while candidates are checked.
    """

    def __init__(
        self,
        host: Host,
        clocks: Clocks,
        launcher: Launcher,
        problem: Problem,
        baselines: Sequence[str],
        on_stage: Callable[[str], None],
        static: StaticProfiler,
        beside: ThreadPoolExecutor,
    ) -> None:
        self._host = host
        self._clocks = clocks
        self._launcher = launcher
        self._problem = problem
        self._baselines = tuple(baselines)
        self._on_stage = on_stage
        self._static = static
        self._beside = beside
        self._races: RaceStage | None = None

    def run(
        self, candidate: Candidate, check_set: CheckSet, progress: Progress, depth: Check, *, control: bool
    ) -> None:
        """Build, check, and time a candidate as far as ``depth`` says.

        Raises:
            Refused: one of the stages refuses it.
            MachineError: the referee or the machine is at fault.
        """
        began, clock = monotonic(), self._clocks.of(candidate.backend)
        timed = progress.timeable and isinstance(depth, Search | Confirm)
        compiled_only = depth.static and not progress.timeable
        if compiled_only:
            self._static.begin(candidate, progress)
        with contextlib.ExitStack() as ending:
            replay = None
            if not control:
                replay = ending.enter_context(self._launcher.replay(candidate, check_set, progress))
            with progress.timed("build"):
                self._on_stage("build")
                side = self._launcher.start(candidate, check_set, "build", progress, replay)
                ending.callback(self._launcher.put_away, side, progress)
                progress.stage = Stage.COMPILED
            races = self._race_stage() if candidate.backend == "cpp" and not control else None
            if races is not None:
                ending.callback(races.build_beside(side, self._beside, confirm=isinstance(depth, Confirm)))
            if compiled_only:
                self._static.begin_built(candidate, side, progress)
            with progress.timed("check"):
                self._on_stage("check")
                windows = self._check(clock, side, check_set, progress)
            if races is not None:
                with progress.timed("races"):
                    self._look_for_races(races, candidate, side, check_set, progress)
            progress.stage = Stage.CHECKED
            if replay is not None:
                with progress.timed("ghost"):
                    self._on_stage("ghost")
                    ask_for_own_kernels(clock, self._problem, candidate, side, check_set, windows, replay, progress)
            if timed and isinstance(depth, Search):
                with progress.timed("time"), _state_noted(clock, progress):
                    self._on_stage("time")
                    self._timekeeper(clock).search(candidate, side, check_set, progress, depth.rivals)
                    progress.stage = Stage.TIMED
                if told := clock.own_times(side):
                    progress.note("device-events", told)
            if timed and _replays(depth):
                progress.device_kernels = clock.device_kernels(side)
        if timed and isinstance(depth, Confirm):
            with progress.timed("confirm"), _state_noted(clock, progress):
                self._on_stage("confirm")
                until = math.inf if depth.within_s is None else began + depth.within_s
                self._timekeeper(clock).confirm(candidate, check_set, progress, depth.rivals, until=until)
                progress.stage = Stage.CONFIRMED if progress.timing and progress.timing.confirmed else Stage.TIMED
        if timed:
            self._explain(clock, candidate, check_set, progress, depth)

    # ------------------------------------------------------------------------------------------ check

    def _check(self, clock: Clock, side: WorkerSeat, check_set: CheckSet, progress: Progress) -> tuple[Slots, Plan]:
        try:
            report = clock.checks.run(side, check_set, timeable=progress.timeable)
        except WorkerFailed as failed:
            refuse(self._problem.id, failed, side, "check", progress)
        finally:
            note_builds(side.client.built, side.client.outcomes, progress)
        progress.correctness = report.correctness
        progress.note_all(report.notes)
        if report.refused is not None:
            status, reason = report.refused
            raise Refused(status, "check", reason)
        return report.windows

    def _look_for_races(
        self, races: RaceStage, candidate: Candidate, side: WorkerSeat, check_set: CheckSet, progress: Progress
    ) -> None:
        found = races.run(candidate, side, check_set)
        progress.note_all(found.notes)
        if found.reason:
            raise Refused(Status.RUNTIME_ERROR, "check", found.reason)

    def _race_stage(self) -> RaceStage:
        """The search for data races, made on first use. It runs on this CPU, whatever device times the candidates."""
        if self._races is None:
            clock = self._clocks.on(CPU)

            def start(candidate: Candidate, builds: Builder) -> WorkerSeat:
                program = self._launcher.program(candidate, threads=RaceStage.most_threads)
                side = clock.workers.candidate({}, builds)
                try:
                    side.load(self._host, program._replace(device=CPU, checked_by="", tf32=False))
                except BaseException:
                    side.end()
                    raise
                return side

            self._races = RaceStage(self._host, clock.clockwork, start)
        return self._races

    # ------------------------------------------------------------------------------------------ time

    def _timekeeper(self, clock: Clock) -> Timekeeper:
        return Timekeeper(self._host.settings, self._problem, clock, self._launcher, self._baselines)

    # ------------------------------------------------------------------------------------------ profile

    def _explain(
        self, clock: Clock, candidate: Candidate, check_set: CheckSet, progress: Progress, depth: Check
    ) -> None:
        """Profile a kernel that was timed. Only faulty memory accesses on a device can still refuse it."""
        replay = _replays(depth)
        evidence, timing = progress.evidence, progress.timing
        if timing is None:
            return
        winner = Winner(
            problem=self._problem,
            source=inline.apply_knobs(candidate.source, candidate.knobs),
            check_set=check_set,
            timing=timing,
            built=progress.built,
            products=progress.products,
            calls=None if evidence is None else evidence.calls,
            own_share=None if evidence is None or evidence.share is None else evidence.share.own,
            device_kernels=progress.device_kernels,
        )
        if clock.sanitizes and isinstance(depth, Confirm) and replay:
            with progress.timed("sanitize"):
                self._on_stage("sanitize")
                self._sanitize(clock, winner, progress)
        if not replay:
            self._profile(clock, candidate, winner, progress, replay=False)
            return
        with progress.timed("profile"):
            self._on_stage("profile")
            self._profile(clock, candidate, winner, progress, replay=True)

    def _profile(self, clock: Clock, candidate: Candidate, winner: Winner, progress: Progress, *, replay: bool) -> None:
        static = self._static.profile(candidate, progress) if replay and candidate.backend != "cpp" else None
        try:
            progress.profile = clock.explain(winner, static, replay=replay)
        except (SandboxError, MachineError) as error:
            progress.artifacts["profile"] = error.message

    @staticmethod
    def _sanitize(clock: Clock, winner: Winner, progress: Progress) -> None:
        """Look for faulty memory accesses.

        Raises:
            Refused: there are some; the timing is dropped.
        """
        found = clock.faults(winner)
        if found.unsure:
            progress.note("memory-not-checked", "; ".join(found.unsure)[:400])
        if found.faults:
            progress.timing = None
            raise Refused(Status.QUARANTINED, "confirm", f"compute-sanitizer: {found.faults[0]}")


def _replays(depth: Check) -> bool:
    """Whether a timed kernel is profiled by running it again, which takes seconds."""
    confirmed = isinstance(depth, Confirm) and depth.within_s is None
    return confirmed or (isinstance(depth, Search) and depth.explain)


@contextlib.contextmanager
def _state_noted(clock: Clock, progress: Progress) -> Iterator[None]:
    """Keep the device's clocks, temperature and power before and after timing, as an artifact."""
    before = clock.state()
    yield
    if before:
        states = {"before": before, "after": clock.state()}
        progress.artifacts["device state"] = "\n".join(
            f"{when}: {', '.join(f'{name} {value}' for name, value in state.items())}" for when, state in states.items()
        )
