"""One problem being judged: its check set, its live twins, and the stages that a candidate goes through."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Event, Lock
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelwright import inline
from kernelwright.datasets import no_variant
from kernelwright.errors import MachineError, SandboxError
from kernelwright.evaluator.cpu.check_stage import CheckStage
from kernelwright.evaluator.cpu.clockwork import Clockwork
from kernelwright.evaluator.cpu.pool import Pool
from kernelwright.evaluator.cpu.races import RaceStage
from kernelwright.evaluator.cpu.sampling import sample_shares
from kernelwright.evaluator.cpu.side import Side
from kernelwright.evaluator.cpu.turns import Plan, pinned
from kernelwright.evaluator.cpu.workers import Workers
from kernelwright.evaluator.device.examine import Examination, note_events, state_noted
from kernelwright.evaluator.host.client import Builder
from kernelwright.evaluator.host.device import Device
from kernelwright.evaluator.own.evidence import Evidence, Shares
from kernelwright.evaluator.own.trace import Trace, kernel_names
from kernelwright.evaluator.profile.ceilings import kept_ceilings, measure_ceilings
from kernelwright.evaluator.profile.cpu import place_cpu, profile_cpu
from kernelwright.evaluator.profile.static import (
    fingerprint,
    objection,
    profile_cuda,
    profile_triton,
    read_machine_code,
)
from kernelwright.evaluator.screen import screening
from kernelwright.evaluator.truth import truth
from kernelwright.evaluator.verdict.ahead import BuildAhead
from kernelwright.evaluator.verdict.progress import Progress, Refused, status_of
from kernelwright.evaluator.verdict.refusals import note_builds, refuse
from kernelwright.evaluator.verdict.replay import Replay
from kernelwright.evaluator.verdict.small import as_of, small_problem
from kernelwright.evaluator.verdict.timekeeping import Timekeeper
from kernelwright.evaluator.wire.claims import WorkerFailed, readable
from kernelwright.records import (
    Backend,
    BuiltCode,
    Candidate,
    DeviceClass,
    Evaluation,
    FailedStage,
    Finding,
    InputGenerator,
    Problem,
    Profile,
    Stage,
    Status,
    TimedVariant,
    Verdict,
)

if TYPE_CHECKING:
    from kernelwright.evaluator.verdict.referee import Referee

_WHAT_A_FAULT_LEAVES = (Status.RUNTIME_ERROR, Status.TIMEOUT)  # may be a device that does not answer any more
_WRONG_ANYWHERE = (Status.COMPILE_ERROR, Status.RUNTIME_ERROR, Status.INCORRECT_SHAPE)
_NOT_ASKED_AGAIN = (Status.UNCHECKED, Status.TIMEOUT)
_CHECKED_BY = {"triton": "interpreter", "cuda": "emulator"}  # kernels of a device that is not here


class _Bench(NamedTuple):
    """Where candidates run: workers of one device, their clock, and the check."""

    workers: Workers
    clockwork: Clockwork
    timekeeper: Timekeeper
    checks: CheckStage


class GeneratedTrials(NamedTuple):
    """What came of generators: where each was admitted, and trials that :meth:`ProblemSession.caught_by` reveals."""

    admissions: tuple[truth.Admission, ...]
    checks: truth.CheckSet


class ProblemSession:
    """Judges candidates of one problem. A context manager; made by :meth:`Referee.open`.

    Attributes:
        problem: what is judged.
        archive: generators of inputs that candidates are checked on besides the fixed distributions.
    """

    def __init__(
        self,
        referee: Referee,
        problem: Problem,
        *,
        baselines: Sequence[str],
        on_stage: Callable[[str], None] | None = None,
        archive: Sequence[InputGenerator] = (),
    ) -> None:
        self.problem = problem
        self.archive = tuple(archive)
        self._referee = referee
        self._settings = referee.settings
        self._on_stage = on_stage or (lambda stage: None)
        self._baselines = tuple(baselines)
        self._check_sets: dict[DeviceClass, truth.CheckSet] = {}
        self._benches: dict[Device | None, _Bench] = {}
        self._ahead = BuildAhead(referee, problem, self._known_variant)
        self._races: RaceStage | None = None
        self._smaller: ProblemSession | None = None  # in small sizes, for kernels of a device that is not here
        self._smaller_wanted = True  # until it is known whether there is such a session
        self._begun: Future[None] | None = None  # compiles baselines
        self._compiling = Event()  # while that has the lane
        self._building = Lock()  # held by a build that shares the lane with it
        self._beside = ThreadPoolExecutor(1, "beside")  # compiles what is looked at later, while others check

    def __enter__(self) -> ProblemSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the twins, give the memory back."""
        if self._smaller is not None:
            self._smaller.close()
        if self._begun is not None and not self._begun.cancel():
            wait([self._begun])
        self._beside.shutdown(cancel_futures=True)
        self._ahead.close()
        self.restart_twins()

    def restart_twins(self) -> None:
        """End the live twins, so that the next timing meets fresh processes of the reference; gives memory back."""
        for bench in self._benches.values():
            bench.workers.close()
            bench.clockwork.close()

    def call(self, entry: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Run a function over the problem's code in a sandboxed worker of its own; see :meth:`Sandbox.call`."""
        limits = self._referee.limits(wall_s=self._settings.capture_timeout_s, allow_exec=True)
        return self._referee.sandbox.call(entry, payload, limits=limits)

    def prepare_for(self, backend: Backend) -> truth.CheckSet:
        """The check set that candidates of a backend meet here.

        Raises:
            InvalidReferenceError: the reference cannot be used.
        """
        small = self._small_session(backend)
        return (self if small is None else small).prepare(_class_of(backend, self._device_for(backend)))

    def _small_session(self, backend: Backend) -> ProblemSession | None:
        """The session in small sizes that judges candidates of a backend here; None where this one does it."""
        declared = "interpreter" in self.problem.meta.variants
        if declared or _class_of(backend, self._device_for(backend)) != "interpreter":
            return None
        if self._smaller_wanted:
            self._smaller_wanted = False
            self._on_stage("sizes")
            small = small_problem(self.problem, self.call)
            if small is not None:
                self._smaller = ProblemSession(
                    self._referee, small, baselines=self._baselines, on_stage=self._on_stage, archive=self.archive
                )
        return self._smaller

    def compile_ahead(self, backend: Backend) -> None:
        """Begin to compile the torch.compile baselines that a backend's candidates are timed beside; returns at once.

        What goes wrong comes to light when they are wanted.
        """
        device = self._device_for(backend)
        compiled = [name for name in self._baselines if name.startswith("compile")]
        if self._begun is not None or not compiled or backend != "cpp" or device is not None:
            return
        bench, prepared = self._bench(device), Future[truth.CheckSet]()

        def compile_all() -> None:
            with self._referee.lane():
                self._compiling.set()
                try:
                    bench.workers.import_compiler()
                    for name in compiled:
                        bench.clockwork.compile_ahead(name, prepared.result())
                finally:
                    self._compiling.clear()
                    with self._building:
                        pass  # a build that began meanwhile ends before another process may time something

        self._begun = self._beside.submit(compile_all)
        try:
            prepared.set_result(self.prepare_for(backend))
        except BaseException as error:
            prepared.set_exception(error)
            raise

    def prepare(self, device_class: DeviceClass = "cpu") -> truth.CheckSet:
        """The check set, made on first use by an oracle that is gone afterwards.

        Raises:
            InvalidReferenceError: the reference cannot be used.
            UsageError: the problem has no such variant for this class of devices.
        """
        if device_class not in self._check_sets:
            if self.problem.variant >= len(self.problem.meta.variants_for(device_class)):
                raise no_variant(self.problem, device_class)
            self._on_stage("reference")
            device = self._referee.device if device_class == "gpu" else None
            client, settings = self._bench(device).workers.oracle(), self._settings
            try:
                oracle = truth.OracleSession(client, self.problem, settings.check_trials, settings.allow_precision)
                self._check_sets[device_class] = oracle.check_set(device_class, self.archive)
            except WorkerFailed as failed:
                raise truth.reference_error(self.problem, failed, output=client.tail()) from None
            finally:
                client.close()
        return self._check_sets[device_class]

    @contextlib.contextmanager
    def _lane(self) -> Iterator[None]:
        """The referee's lane, once nothing that was begun ahead needs it any more."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.result()
        with self._referee.lane():
            yield

    def admit(self, wanted: Sequence[InputGenerator], backend: Backend = "cpp") -> GeneratedTrials:
        """Where the reference is well defined on what generators draw, and trials of those where it is.

        Raises:
            InvalidReferenceError: the reference cannot be used.
        """
        if (small := self._small_session(backend)) is not None:
            return small.admit(wanted, backend)
        device = self._device_for(backend)
        client, settings = self._bench(device).workers.oracle(), self._settings
        try:
            oracle = truth.OracleSession(client, self.problem, settings.check_trials, settings.allow_precision)
            checks, admissions = oracle.admit(wanted, _class_of(backend, device))
        except WorkerFailed as failed:
            raise truth.reference_error(self.problem, failed, output=client.tail()) from None
        finally:
            client.close()
        return GeneratedTrials(admissions, checks)

    def caught_by(self, candidate: Candidate, trials: GeneratedTrials) -> frozenset[str]:
        """Ids of the generators on whose draws a candidate's kernel is wrong; nothing is timed, nothing is kept.

        A candidate that cannot be screened, built or constructed is caught by none: the fixed check sees that.
        """
        if (small := self._small_session(candidate.backend)) is not None:
            return small.caught_by(candidate, trials)
        progress = self._progress(candidate)
        names = {admission.generator.describe(): admission.generator.id for admission in trials.admissions}
        bench = self._bench(progress.device)
        with self._lane(), pinned(self._referee.own_cpu):
            try:
                self._screen(candidate, progress, control=False, refuse=True)
                side = self._start(candidate, trials.checks, "build", progress)
            except Refused:
                return frozenset()
            try:
                found = bench.checks.caught_by(side, trials.checks)
            finally:
                self._put_away(side, progress)
        return frozenset(names[described] for described, caught in found.items() if caught)

    def judge(
        self,
        candidate: Candidate,
        *,
        control: bool = False,
        time: bool = True,
        confirm: bool = False,
        screen: bool = True,
        profile: bool = True,
        explain: bool = False,
        rivals: Sequence[Candidate] = (),
        within_s: float | None = None,
        as_kernelbench: bool = False,
    ) -> Evaluation:
        """Take a candidate through all stages; whatever it does wrong is a status of the verdict.

        Args:
            control: the file is no candidate (the reference itself, a library call): own kernels are not asked for.
            time: time it after the check (backend ``cpp`` only; nothing else runs on this device).
            confirm: time it in fresh process pairs instead; what is published is always such a confirmation.
            screen: whether the screen may refuse; without it, its findings inform only (to test the later stages).
            profile: compile a GPU's kernels for its architectures as well, and say what they take.
            explain: say where the time goes of what was timed without a confirmation, too, which takes seconds.
            rivals: other candidates of the backend, each once, to be timed in the same turns; see ``Timing.rivals``.
            within_s: seconds in which a confirmation should end: it takes fewer process pairs where more do not fit,
                though never fewer than five, and is not profiled.
            as_kernelbench: say as well what KernelBench's own rule would have called it; what is refused is started
                once more for that.

        Raises:
            InvalidReferenceError: the reference cannot be used.
            MachineError: a fault of ours or of the machine; nothing is known about the candidate.
        """
        if (small := self._small_session(candidate.backend)) is not None:
            options: dict[str, Any] = {"control": control, "time": time, "screen": screen, "profile": profile}
            judged = small.judge(candidate, **options, as_kernelbench=as_kernelbench)
            return as_of(judged, self.problem, small.problem)
        progress = self._progress(candidate)
        environment = self._referee.environment_of(progress.device)
        status, failed_stage, reason = Status.PASSED, None, ""
        timed = time and progress.runs_for_real
        profile &= candidate.backend != "cpp"
        try:
            with progress.timed("screen"):
                self._screen(candidate, progress, control=control, refuse=screen)
            self._build_beforehand(candidate, progress)
            with self._lane(), pinned(self._referee.own_cpu):
                self._run(
                    candidate,
                    progress,
                    control=control,
                    timed=timed,
                    confirm=confirm,
                    profile=profile and progress.device is None,
                    explain=explain,
                    rivals=rivals,
                    within_s=within_s,
                )
        except Refused as refused:
            status, failed_stage, reason = refused.status, refused.stage, refused.reason
            if failed_stage != "screen":
                rule = f"{failed_stage}-{status.value.lower().replace('_', '-')}"
                progress.findings = (Finding(rule=rule, effect="refuses", evidence=reason[:400]), *progress.findings)
        if profile and failed_stage != "screen" and progress.profile is None:
            refusal = self._say_what_it_takes(candidate, progress)
            if refusal and status is Status.PASSED and progress.device is None:
                status, failed_stage, reason = Status.COMPILE_ERROR, "build", refusal
                refusing = Finding(rule="build-cannot-launch", effect="refuses", evidence=refusal[:400])
                progress.findings = (refusing, *progress.findings)
        if failed_stage not in (None, "screen") and status in _WHAT_A_FAULT_LEAVES:
            self._see_device_works(progress.device)
        share = None if progress.evidence is None else progress.evidence.share
        verdict = Verdict(
            candidate=candidate.sha256,
            problem=self.problem.id,
            backend=candidate.backend,
            control=control,
            stage=progress.stage,
            failed_stage=failed_stage,
            status=status,
            reason=reason,
            findings=progress.findings,
            correctness=progress.correctness,
            timing=progress.timing,
            own_kernel_share=None if share is None else round(share.own, 4),
            own_kernel_label=None if progress.evidence is None else progress.evidence.label,
            eligible=progress.eligible,
            environment=environment.id,
            variant=self._timed_variant(candidate.backend),
            profile=progress.profile,
            sandbox=progress.layers or self._referee.sandbox.layers,
            seconds={name: round(seconds, 4) for name, seconds in progress.seconds.items()},
            as_kernelbench=self._as_kernelbench(candidate, status, progress) if as_kernelbench else None,
        )
        return Evaluation(
            candidate=candidate,
            verdict=verdict,
            samples=tuple(progress.samples),
            environment=environment,
            artifacts=progress.artifacts,
        )

    def _as_kernelbench(self, candidate: Candidate, status: Status, judged: Progress) -> bool | None:
        """See ``Verdict.as_kernelbench``."""
        if self.problem.meta.randomness == "distribution" or status in _NOT_ASKED_AGAIN:
            return None
        if status is Status.COMPILE_ERROR:
            return False
        if status is Status.PASSED and judged.correctness is not None and judged.correctness.kernelbench_allclose:
            return True  # on more than it looks at
        progress = Progress(candidate.backend, judged.device, candidate.source)
        progress.screening = False
        try:
            with self._lane(), pinned(self._referee.own_cpu):
                check_set, checks = self.prepare_for(candidate.backend), self._bench(judged.device).checks
                side = self._start(candidate, check_set, "build", progress)
                try:
                    return checks.allclose_on_its_own(side, check_set)
                finally:
                    self._put_away(side, progress)
        except Refused as refused:
            return False if refused.status in _WRONG_ANYWHERE else None
        except WorkerFailed as failed:
            return False if status_of(failed.failure)[0] in _WRONG_ANYWHERE else None
        except MachineError:
            return None  # the verdict stands

    def machine_code(self, candidate: Candidate) -> str:
        """Fingerprint of what a candidate's sources are built into; nothing is checked or timed.

        Two candidates whose Python is alike are one kernel where this is the same. Empty where nothing can be said: of
        what is refused, does not build or has nothing built, and of Triton, which compiles for each launch anew.

        Raises:
            InvalidReferenceError: the reference cannot be used.
            MachineError: a fault of ours or of the machine.
        """
        return self._built(candidate, self._alone).machine_code

    def build_all(self, candidates: Sequence[Candidate]) -> tuple[BuiltCode, ...]:
        """Build candidates side by side, on all processors, while nothing is timed; their products are kept.

        Raises:
            InvalidReferenceError: the reference cannot be used.
            MachineError: a fault of ours or of the machine.
        """
        for backend in {candidate.backend for candidate in candidates}:
            self.prepare_for(backend)
        with self._lane(), ThreadPoolExecutor(len(os.sched_getaffinity(0)), "build") as threads:
            return tuple(threads.map(lambda candidate: self._built(candidate, contextlib.nullcontext), candidates))

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Nothing is timed meanwhile, and this thread is on the referee's own core."""
        with pinned(self._referee.own_cpu):
            with self._building:
                if self._compiling.is_set():
                    yield
                    return
            with self._lane():
                yield

    def _built(self, candidate: Candidate, lane: Callable[[], AbstractContextManager[None]]) -> BuiltCode:
        """A candidate built, within ``lane``, by a worker that is not used otherwise."""
        if candidate.backend == "triton":
            return BuiltCode()
        progress = self._progress(candidate)
        try:
            self._screen(candidate, progress, control=False, refuse=True)
            self._build_beforehand(candidate, progress)
            with lane():
                side = self._start(candidate, self.prepare_for(candidate.backend), "build", progress)
                self._put_away(side, progress)
        except Refused:
            return BuiltCode()
        products = tuple(progress.products.values())
        built = self._referee.code.fingerprint(products)
        if candidate.backend == "cuda":
            return BuiltCode(machine_code=fingerprint(self._referee.builds, progress.built, built))
        return BuiltCode(machine_code=built, metrics=self._referee.code.metrics(products))

    def builds_ahead(self, backend: Backend) -> bool:
        """Whether candidates of a backend can be built while others are timed; see :meth:`build_ahead`."""
        return self._device_for(backend) is not None and self._referee.compile_lanes.count > 0

    def build_ahead(self, candidate: Candidate) -> None:
        """Begin to build a candidate that may be judged later, on cores that nothing is timed on; returns at once.

        Nothing happens where its kernels do not run on a device, or where no cores are left for it.
        """
        if self._device_for(candidate.backend) is not None:
            self._ahead.submit(candidate)

    def _build_beforehand(self, candidate: Candidate, progress: Progress) -> None:
        """Have a candidate for a device built before it gets the device, which may be another one's until then."""
        if progress.device is None:
            return
        with progress.timed("build"):
            self._on_stage("build")
            found = self._ahead.take(candidate)
        if found is not None:
            progress.compiled = found.compiled

    def _known_variant(self, candidate: Candidate) -> truth.Variant | None:
        """What candidates of a backend are constructed for, where that is known by now."""
        check_set = self._check_sets.get(_class_of(candidate.backend, self._device_for(candidate.backend)))
        return None if check_set is None else check_set.variants[0]

    def _timed_variant(self, backend: Backend) -> TimedVariant:
        """The variant that candidates of a backend are timed on; what its inputs are, where that is known by now."""
        device_class = _class_of(backend, self._device_for(backend))
        constants = self.problem.meta.variants_for(device_class)[0]
        check_set = self._check_sets.get(device_class)
        inputs = () if check_set is None else check_set.variants[0].inputs_in_words()
        return TimedVariant(number=self.problem.variant, constants=constants, inputs=inputs)

    def _see_device_works(self, device: Device | None) -> None:
        """After a fault or a hang on a device: whether it still computes, before the next candidate gets it.

        Raises:
            MachineError: it does not.
        """
        if device is None:
            return
        try:
            self._bench(device).workers.probe()
        except WorkerFailed as failed:
            raise MachineError(
                f"{device.name} does not compute any more after a candidate's fault: {failed.failure.message}",
                hint="see nvidia-smi; the device may need a reset, or the machine a restart",
            ) from None

    def _say_what_it_takes(self, candidate: Candidate, progress: Progress) -> str:
        """Put the static profile of a GPU's kernels into ``progress``; why none can run, where none can."""
        with progress.timed("static"):
            self._on_stage("static")
            begun = None if progress.beside is None else progress.beside.result()
            progress.profile = begun or self._static_profile(candidate, progress)
        return objection(progress.profile) if progress.profile else ""

    def _static_profile(self, candidate: Candidate, progress: Progress) -> Profile | None:
        """What a candidate's kernels take of a GPU; None where nothing was built."""
        if candidate.backend == "cuda":
            return profile_cuda(self._referee.builds, progress.built, progress.launches)
        limits = self._referee.limits(wall_s=self._settings.capture_timeout_s, allow_exec=True)
        source = inline.apply_knobs(candidate.source, candidate.knobs)
        return profile_triton(self._referee.sandbox, self._referee.builds, source, self.problem, limits=limits)

    # ------------------------------------------------------------------------------------------ stages

    def _run(
        self,
        candidate: Candidate,
        progress: Progress,
        *,
        control: bool,
        timed: bool,
        confirm: bool,
        profile: bool,
        explain: bool,
        rivals: Sequence[Candidate],
        within_s: float | None,
    ) -> None:
        began = monotonic()
        if profile and candidate.backend == "triton":  # nothing is timed meanwhile
            progress.beside = self._beside.submit(self._static_profile, candidate, progress)
        check_set = self.prepare_for(candidate.backend)
        bench = self._bench(progress.device)
        with contextlib.ExitStack() as ending:
            replay = None if control else ending.enter_context(self._replay(candidate, check_set, progress))
            with progress.timed("build"):
                self._on_stage("build")
                side = self._start(candidate, check_set, "build", progress, replay)
                ending.callback(self._put_away, side, progress)
                progress.stage = Stage.COMPILED
            races = self._race_stage() if candidate.backend == "cpp" and not control else None
            if races is not None:
                ending.callback(races.build_beside(side, self._beside, confirm=confirm))
            if profile and candidate.backend == "cuda":
                progress.beside = self._beside.submit(read_machine_code, self._referee.builds, side.client.built[:])
            with progress.timed("check"):
                self._on_stage("check")
                windows = bench.checks.run(side, check_set, progress)
            if races is not None:
                with progress.timed("races"):
                    races.run(candidate, side, check_set, progress)
            progress.stage = Stage.CHECKED
            if replay is not None:
                with progress.timed("ghost"):
                    self._on_stage("ghost")
                    self._own_kernels(side, check_set, windows, replay, progress)
            if timed and not confirm:
                with progress.timed("time"), state_noted(progress):
                    self._on_stage("time")
                    bench.timekeeper.search(candidate, side, check_set, progress, rivals)
                    progress.stage = Stage.TIMED
                note_events(side, progress, self._settings.call_timeout_s)
        if timed and confirm:
            with progress.timed("confirm"), state_noted(progress):
                self._on_stage("confirm")
                until = math.inf if within_s is None else began + within_s
                bench.timekeeper.confirm(candidate, check_set, progress, rivals, until=until)
                progress.stage = Stage.CONFIRMED if progress.timing and progress.timing.confirmed else Stage.TIMED
        if timed and ((confirm and within_s is None) or explain):
            if progress.device is not None:
                self._examine(progress.device, candidate, check_set, progress, sanitize=confirm)
            else:
                with progress.timed("profile"):
                    self._on_stage("profile")
                    self._profile(check_set, progress, replay=True)
        elif timed and progress.device is None:
            self._profile(check_set, progress, replay=False)

    def _race_stage(self) -> RaceStage:
        """The search for data races, on this CPU whatever candidates are timed on; made on first use."""
        if self._races is None:
            workers, clockwork, *_ = self._bench(None)

            def start(candidate: Candidate, builds: Builder) -> Side:
                side = workers.candidate({}, builds)
                source = inline.apply_knobs(candidate.source, candidate.knobs)
                try:
                    mode = self.problem.meta.mode
                    self._referee.load(
                        side.client, side.door, source, role="candidate", mode=mode, threads=RaceStage.most_threads
                    )
                except BaseException:
                    side.end()
                    raise
                return side

            self._races = RaceStage(self._referee, clockwork, start)
        return self._races

    def _progress(self, candidate: Candidate) -> Progress:
        """What is known of a candidate before anything was tried."""
        wanted = self._settings.own_kernels_for(self.problem)
        return Progress(candidate.backend, self._device_for(candidate.backend), candidate.source, wanted)

    def _put_away(self, side: Side, progress: Progress) -> None:
        """End the worker of a candidate, keeping what it leaves behind."""
        progress.built = side.client.built
        products = (outcome.product for outcome in side.client.outcomes if outcome.product is not None)
        progress.products = {request.key: made for request, made in zip(progress.built, products, strict=False)}
        if tail := side.client.tail():
            progress.artifacts["worker output"] = tail
        side.end()

    def _screen(self, candidate: Candidate, progress: Progress, *, control: bool, refuse: bool) -> None:
        result = screening.screen(candidate.source, candidate.backend, control, progress.own_kernels)
        progress.screening = refuse
        progress.findings = result.findings
        if not refuse:
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

    def _start(
        self,
        candidate: Candidate,
        check_set: truth.CheckSet,
        stage: FailedStage,
        progress: Progress,
        builds: Builder | None = None,
        role: str = "candidate",
    ) -> Side:
        """A worker that has loaded the candidate and built its kernels, constructed for the first variant."""
        side = self._contestant(candidate, builds, role)
        try:
            progress.layers = side.client.worker.layers
            self._load(side, candidate, check_set, compiled=progress.compiled)
            note_builds(side.client.built, side.client.outcomes, progress)
        except WorkerFailed as failed:
            try:
                refuse(self.problem.id, failed, side, stage, progress)
            finally:
                side.end()
        except BaseException:
            side.end()
            raise
        return side

    def _start_rival(self, rival: Candidate, check_set: truth.CheckSet, role: str) -> Side:
        """A worker for a candidate that another one is timed beside; nothing is noted of it but its failure."""
        progress = self._progress(rival)
        self._screen(rival, progress, control=False, refuse=True)
        return self._start(rival, check_set, "time", progress, role=role)

    def _contestant(self, candidate: Candidate, builds: Builder | None = None, role: str = "candidate") -> Side:
        device = self._device_for(candidate.backend)
        interpreted = candidate.backend == "triton" and device is None
        return self._bench(device).workers.candidate({"TRITON_INTERPRET": "1"} if interpreted else {}, builds, role)

    def _device_for(self, backend: Backend) -> Device | None:
        """The device that candidates of a backend run on; None for this CPU, with or without help."""
        device = self._referee.device
        return device if device is not None and device.serves(backend) else None

    def _bench(self, device: Device | None) -> _Bench:
        """Workers and clock for a device; made on first use."""
        if device not in self._benches:
            workers = Workers(self._referee, self.problem, self._on_stage, device)
            clockwork = Clockwork(self._referee, workers, self.problem, device)
            timekeeper = Timekeeper(
                self._referee.settings,
                self.problem,
                workers,
                clockwork,
                self._baselines,
                sampler=self._referee.share_sampler,
                start=self._start,
                start_rival=self._start_rival,
                refuse=lambda *failure: refuse(self.problem.id, *failure),
            )
            checks = CheckStage(self._referee, self.problem, clockwork)
            self._benches[device] = _Bench(workers, clockwork, timekeeper, checks)
        return self._benches[device]

    def _load(
        self, side: Side, candidate: Candidate, check_set: truth.CheckSet, *, ghost: bool = False, compiled: bytes = b""
    ) -> None:
        """Hand a worker the candidate and set it up for the first variant.

        Raises:
            WorkerFailed: its code raises, its build fails, or its parameters do not correspond.
        """
        try:
            source = inline.apply_knobs(candidate.source, candidate.knobs)
        except (ValueError, SyntaxError) as error:
            raise Refused(Status.RUNTIME_ERROR, "build", str(error)) from None
        device = self._device_for(candidate.backend)
        here = "device" if device is not None else _CHECKED_BY.get(candidate.backend, "")
        self._referee.load(
            side.client,
            side.door,
            source,
            role="candidate",
            mode=self.problem.meta.mode,
            checked_by=here,
            ghost=ghost,
            device=device,
            tf32=self._bench(device).workers.allows_tf32,
            compiled=compiled,
        )
        side.set_up(check_set.variants[0])

    def _own_kernels(
        self,
        side: Side,
        check_set: truth.CheckSet,
        windows: tuple[Pool, Plan],
        replay: Replay,
        progress: Progress,
    ) -> None:
        """What the right answer owes to the candidate's own kernels. ``side`` has passed its check."""
        timeout_s, stubbed = self._settings.call_timeout_s, progress.backend == "cpp"
        try:
            shares = Shares(None, None)
            if stubbed and progress.device is None:
                side.enter(windows[0])
                side.freeze()
                shares = sample_shares(self._referee.share_sampler, side, *windows, call_timeout_s=timeout_s)
                side.leave(timeout_s=timeout_s)
            side.freeze()
            windows[0].refill([0])  # the slot that is traced
            side.thaw()
            trace = Trace.from_claims(side.client.request("trace", timeout_s=timeout_s))
        except WorkerFailed as failed:
            refuse(self.problem.id, failed, side, "ghost", progress)
        progress.launches = trace.seen
        if trace.structure != (wanted := check_set.variants[0].structure):
            reason = f"forward returns {readable(trace.structure)[:200]}, {wanted[:200]} expected"
            raise Refused(Status.INCORRECT_SHAPE, "check", reason)
        checks = self._bench(progress.device).checks
        ghost = replay.result(built=stubbed, is_right=lambda worker: checks.answers_right(worker, check_set))
        first, launches = shares.first, trace.launches
        built = [request.source for request in side.client.built]
        progress.device_kernels = trace.device[0] if trace.device else ()
        on_device = trace.shares_on_device(kernel_names(built, progress.source))
        if on_device is not None:
            first, launches = on_device
        progress.evidence = evidence = Evidence(
            share=first,
            again=shares.again,
            launches=launches,
            ghost=ghost.found,
            ghost_reason=ghost.reason,
            torch_flops=trace.flops,
            reference_flops=check_set.flops,
            torch_steps=trace.steps,
            reference_steps=check_set.steps,
            operators=trace.operators,
            calls=trace.calls,
            lengths_ns=shares.lengths_ns,
            claimed=bool(side.client.built or screening.kernel_backends(progress.source)),
        )
        operators = trace.operators
        progress.note("own-kernels", evidence.text())
        if operators:
            progress.note("torch-operators", ", ".join(operators))
        if reason := evidence.objection():
            raise Refused(Status.REWARD_HACK, "ghost", reason)
        if reason := evidence.shortfall():
            progress.fall_short("ghost", reason)
        if progress.own_kernels == "strict" and (reason := evidence.shortfall_of_strict(self.problem.meta.heavy_ops)):
            raise progress.ineligible("ghost", reason)

    def _replay(self, candidate: Candidate, check_set: truth.CheckSet, progress: Progress) -> Replay:
        """Whether the candidate answers right although its kernels do nothing: asked later, got ready from now on."""
        return Replay(
            self._referee.builds,
            lambda builds: self._contestant(candidate, builds),
            lambda side: self._load(side, candidate, check_set, ghost=True, compiled=progress.compiled),
        )

    def _profile(self, check_set: truth.CheckSet, progress: Progress, *, replay: bool) -> None:
        """Where the time goes of a kernel that was timed; costs no verdict.

        Its place on the roofline and the look of its machine code take milliseconds. ``replay``: its kernels are run
        again in a sandbox of their own as well, which takes seconds.
        """
        evidence, timing = progress.evidence, progress.timing
        if evidence is None or timing is None or not progress.built:
            return
        variant, sandbox, cache = check_set.variants[0], self._referee.sandbox, Path(self._settings.cache_dir)
        own_share = None if evidence.share is None else evidence.share.own
        try:
            kept = None if replay else kept_ceilings(cache)
            ceilings = kept or measure_ceilings(sandbox, cache)
            figures = self._referee.code.metrics(progress.products.values())
            figures |= {"kernel_calls": float(len(evidence.calls))}
            figures |= {} if own_share is None else {"own_share": own_share}
            placed: dict[str, Any] = {
                "latency_ms": timing.latency_ms.median,
                "bytes_moved": variant.bytes_moved,
                "flops": check_set.flops,
                "ceilings": ceilings,
                "working_set_bytes": self._bench(progress.device).clockwork.pool_bytes(check_set),
                "figures": figures,
            }
            if replay:
                progress.profile = profile_cpu(sandbox, progress.built, evidence.calls, own_share=own_share, **placed)
            else:
                progress.profile = place_cpu(calls=len(evidence.calls), **placed)
        except (SandboxError, MachineError) as error:
            progress.artifacts["profile"] = error.message

    def _examine(
        self, device: Device, candidate: Candidate, check_set: truth.CheckSet, progress: Progress, *, sanitize: bool
    ) -> None:
        """Let the tools of a device look at a winner; what is wrong with it costs it its time as well."""
        examination = Examination(
            examiner=self._referee.examiner(device),
            problem=self.problem,
            source=inline.apply_knobs(candidate.source, candidate.knobs),
            check_set=check_set,
            working_set_bytes=self._bench(device).clockwork.pool_bytes(check_set),
        )
        if sanitize:
            with progress.timed("sanitize"):
                self._on_stage("sanitize")
                examination.sanitize(progress)
        with progress.timed("profile"):
            self._on_stage("profile")
            static = None if candidate.backend == "cpp" else self._static_profile(candidate, progress)
            progress.profile = examination.profile(progress, static)


def _class_of(backend: Backend, device: Device | None) -> DeviceClass:
    """Which shapes of a problem a candidate meets."""
    if backend == "cpp":
        return "cpu"
    return "interpreter" if device is None else "gpu"
