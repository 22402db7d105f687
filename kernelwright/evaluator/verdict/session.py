"""One problem being judged: its check sets, its live twins, and the stages that a candidate goes through."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from kernelwright.errors import MachineError
from kernelwright.evaluator.accuracy.trials import CheckSet
from kernelwright.evaluator.cpu.instruments import Instruments
from kernelwright.evaluator.host.host import Host
from kernelwright.evaluator.profile.static import fingerprint
from kernelwright.evaluator.verdict.background import Beside
from kernelwright.evaluator.verdict.build_ahead import BuildAhead
from kernelwright.evaluator.verdict.clocks import Clocks
from kernelwright.evaluator.verdict.fitted_sizes import as_of, small_problem
from kernelwright.evaluator.verdict.interface import Check, GeneratedTrials, Search
from kernelwright.evaluator.verdict.launch import Launcher
from kernelwright.evaluator.verdict.progress import Progress, Refused, status_of
from kernelwright.evaluator.verdict.references import References
from kernelwright.evaluator.verdict.ruling import Ruling
from kernelwright.evaluator.verdict.stages import Stages
from kernelwright.evaluator.verdict.static_profile import StaticProfiler
from kernelwright.evaluator.wire.claims import WorkerFailed
from kernelwright.records import Backend, Candidate, Evaluation, InputGenerator, Problem, Status
from kernelwright.records.verdicts import BuiltCode

_MAY_HAVE_BROKEN_DEVICE = (Status.RUNTIME_ERROR, Status.TIMEOUT)
_WRONG_ANYWHERE = (Status.COMPILE_ERROR, Status.RUNTIME_ERROR, Status.INCORRECT_SHAPE)
_NOT_ASKED_AGAIN = (Status.UNCHECKED, Status.TIMEOUT)


class ProblemSession:
    """Judges candidates of one problem. A context manager; made by :meth:`Referee.open`.

    Attributes:
        problem: the problem that candidates solve.
    """

    def __init__(
        self,
        host: Host,
        instruments: Instruments,
        problem: Problem,
        *,
        baselines: Sequence[str],
        on_stage: Callable[[str], None] | None = None,
        archive: Sequence[InputGenerator] = (),
        whole: Problem | None = None,
    ) -> None:
        """``archive``: generators whose draws candidates are checked on as well.

        ``whole``: the problem in its own sizes, if ``problem`` is in sizes for an interpreter. Profiles are of those.
        """
        self.problem = problem
        self._host = host
        self._instruments = instruments
        self._settings = host.settings
        self._on_stage = on_stage or (lambda stage: None)
        self._options: dict[str, Any] = {"baselines": baselines, "on_stage": on_stage, "archive": archive}
        self._baselines = tuple(baselines)
        self._beside = Beside(host)
        self._clocks = clocks = Clocks(host, instruments, problem, self._on_stage)
        self._references = References(host, clocks, problem, archive, self._on_stage)
        self._launcher = Launcher(host, clocks, problem)
        self._static = StaticProfiler(host, whole or problem, self._on_stage, self._beside.thread)
        given = host, clocks, self._launcher, problem, baselines, self._on_stage, self._static, self._beside.thread
        self._stages = Stages(*given)
        self._ahead = BuildAhead(host, problem, lambda candidate: self._references.variant(candidate.backend))
        self._smaller: ProblemSession | None = None  # in small sizes, for kernels of a device that is not here
        self._smaller_wanted = True  # until it is known whether one is needed

    @property
    def screens(self) -> bool:
        """Whether the screen may refuse. Set it to False to test the later stages: then its findings only inform."""
        return self._launcher.screens

    @screens.setter
    def screens(self, value: bool) -> None:
        self._launcher.screens = value

    def __enter__(self) -> ProblemSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the twins and free their memory."""
        if self._smaller is not None:
            self._smaller.close()
        self._beside.close()
        self._ahead.close()
        self._clocks.end()

    def restart_twins(self) -> None:
        """End the live twins and free their memory. The next timing starts fresh processes of the reference."""
        self._clocks.close()

    def call(self, entry: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Run a function over the problem's code in a sandboxed worker of its own; see :meth:`Sandbox.call`."""
        limits = self._host.limits(wall_s=self._settings.capture_timeout_s, allow_exec=True)
        return self._host.sandbox.call(entry, payload, limits=limits)

    def small(self, backend: Backend) -> Problem | None:
        """The problem in the sizes in which a backend's candidates are checked here; None if in its own."""
        serving = self._serving(backend)
        return None if serving is self else serving.problem

    # ------------------------------------------------------------------------------------------ the reference

    def prepare_for(self, backend: Backend) -> CheckSet:
        """The check set for candidates of a backend on this machine.

        Raises:
            InvalidReferenceError: the reference cannot be used.
        """
        return self._serving(backend)._references.check_set(backend)

    def _serving(self, backend: Backend) -> ProblemSession:
        """The session that judges a backend's candidates here: this one, or one in small sizes for an interpreter."""
        declared = "interpreter" in self.problem.meta.variants
        if declared or self._host.class_for(backend) != "interpreter":
            return self
        if self._smaller_wanted:
            self._smaller_wanted = False
            self._on_stage("sizes")
            small = small_problem(self.problem, self.call)
            if small is not None:
                options = self._options | {"whole": self.problem}
                self._smaller = ProblemSession(self._host, self._instruments, small, **options)
        return self._smaller or self

    def empty_call_ms(self, backend: Backend) -> tuple[float, float]:
        """What a call that computes nothing takes on a backend's clock: mean and upper limit in ms.

        Raises:
            InvalidReferenceError: the reference cannot be used.
            MachineError: it cannot be measured.
        """
        check_set = self.prepare_for(backend)
        with self._beside.lane():
            return self._clocks.of(backend).clockwork.empty_call_ms(check_set)

    def compile_ahead(self, backend: Backend) -> None:
        """Begin to compile the torch.compile baselines that a backend's candidates are timed beside; returns at once.

        A failure shows up when the baselines are used.
        """
        clock = self._clocks.of(backend)
        compiled = [name for name in self._baselines if name.startswith("compile")]
        if compiled and backend == "cpp" and not clock.device.is_apart:
            self._beside.compile(clock, compiled, lambda: self.prepare_for(backend))

    def admit(self, wanted: Sequence[InputGenerator], backend: Backend = "cpp") -> GeneratedTrials:
        """Find where the reference is well defined on the draws of generators, and make trials of those draws.

        Raises:
            InvalidReferenceError: the reference cannot be used.
        """
        return self._serving(backend)._references.admit(wanted, backend)

    # ------------------------------------------------------------------------------------------ verdicts

    def caught_by(self, candidate: Candidate, trials: GeneratedTrials) -> frozenset[str]:
        """Ids of the generators on whose draws a candidate's kernel is wrong. Nothing is timed or kept.

        A candidate that fails the screen, its build or its construction is caught by none: the fixed check reports it.
        """
        if (serving := self._serving(candidate.backend)) is not self:
            return serving.caught_by(candidate, trials)
        progress = self._launcher.progress(candidate)
        names = {admission.generator.describe(): admission.generator.id for admission in trials.admissions}
        with self._beside.lane():
            try:
                self._launcher.screen(candidate, progress)
                side = self._launcher.start(candidate, trials.checks, "build", progress)
            except Refused:
                return frozenset()
            try:
                found = self._clocks.of(candidate.backend).checks.caught_by(side, trials.checks)
            finally:
                self._launcher.put_away(side, progress)
        return frozenset(names[described] for described, caught in found.items() if caught)

    def judge(self, candidate: Candidate, depth: Check | None = None, *, control: bool = False) -> Evaluation:
        """Take a candidate through all stages. Its faults become the status of the verdict.

        Args:
            depth: how far: a :class:`Check`, a :class:`Search` (the default), or a :class:`Confirm`.
            control: the file is no candidate (the reference itself, a library call) and needs no own kernels.

        Raises:
            InvalidReferenceError: the reference cannot be used.
            MachineError: the referee or the machine is at fault; this says nothing about the candidate.
        """
        depth = Search() if depth is None else depth
        if (serving := self._serving(candidate.backend)) is not self:
            return as_of(serving.judge(candidate, depth, control=control), self.problem, serving.problem)
        progress, ruling = self._launcher.progress(candidate), Ruling()
        try:
            with progress.timed("screen"):
                self._launcher.screen(candidate, progress, control=control)
            self._build_beforehand(candidate, progress)
            with self._beside.lane():
                check_set = self.prepare_for(candidate.backend)
                self._stages.run(candidate, check_set, progress, depth, control=control)
        except Refused as refused:
            ruling.refuse(refused.status, refused.stage, refused.reason)
            if refused.stage != "screen":
                rule = f"{refused.stage}-{refused.status.value.lower().replace('_', '-')}"
                progress.refused_by(rule, refused.reason)
        if depth.static and not progress.timeable and ruling.failed_stage != "screen" and not progress.profile:
            self._add_static_profile(candidate, progress, ruling)
        if ruling.failed_stage not in (None, "screen") and ruling.status in _MAY_HAVE_BROKEN_DEVICE:
            self._clocks.of(candidate.backend).see_works()
        environment = self._host.environment_for(candidate.backend)
        verdict = ruling.verdict(
            candidate,
            self.problem,
            progress,
            control=control,
            environment=environment.id,
            variant=self._references.timed_variant(candidate.backend),
            layers=self._host.sandbox.layers,
        )
        return Evaluation(
            candidate=candidate,
            verdict=verdict,
            samples=tuple(progress.samples),
            environment=environment,
            artifacts=progress.artifacts,
        )

    def _add_static_profile(self, candidate: Candidate, progress: Progress, ruling: Ruling) -> None:
        """Add the compiler's report on GPU kernels. Refuse a passed candidate if no GPU can launch its kernels."""
        reason = self._static.note(candidate, progress)
        if reason and ruling.status is Status.PASSED:
            ruling.refuse(Status.COMPILE_ERROR, "build", reason)
            progress.refused_by("build-cannot-launch", reason)

    def as_kernelbench(self, evaluation: Evaluation) -> Evaluation:
        """The evaluation with KernelBench's own verdict on the candidate added; see ``Verdict.as_kernelbench``.

        A refused candidate is started once more for that.
        """
        said = self._serving(evaluation.candidate.backend)._by_kernelbenchs_rule(evaluation)
        return evaluation.model_copy(update={"verdict": evaluation.verdict.model_copy(update={"as_kernelbench": said})})

    def _by_kernelbenchs_rule(self, evaluation: Evaluation) -> bool | None:
        candidate, verdict = evaluation.candidate, evaluation.verdict
        if self.problem.meta.randomness == "distribution" or verdict.status in _NOT_ASKED_AGAIN:
            return None
        if verdict.status is Status.COMPILE_ERROR:
            return False
        if verdict.status is Status.PASSED and verdict.correctness and verdict.correctness.kernelbench_allclose:
            return True  # on more trials than KernelBench makes
        progress = self._launcher.progress(candidate)
        progress.screening = False
        try:
            with self._beside.lane():
                check_set, checks = self.prepare_for(candidate.backend), self._clocks.of(candidate.backend).checks
                side = self._launcher.start(candidate, check_set, "build", progress)
                try:
                    return checks.allclose_on_its_own(side, check_set)
                finally:
                    self._launcher.put_away(side, progress)
        except Refused as refused:
            return False if refused.status in _WRONG_ANYWHERE else None
        except WorkerFailed as failed:
            return False if status_of(failed.failure)[0] in _WRONG_ANYWHERE else None
        except MachineError:
            return None  # no reason to lose the verdict

    # ------------------------------------------------------------------------------------------ builds

    def machine_code(self, candidate: Candidate) -> str:
        """Fingerprint of the machine code that a candidate's sources compile to; nothing is checked or timed.

        Two candidates with the same Python and the same fingerprint are the same kernel. It is empty if the candidate
        is refused, does not build or has nothing built, and for Triton, which compiles anew for each launch.

        Raises:
            InvalidReferenceError: the reference cannot be used.
            MachineError: the referee or the machine is at fault.
        """
        return self._built(candidate, self._beside.building).machine_code

    def build_all(self, candidates: Sequence[Candidate]) -> tuple[BuiltCode, ...]:
        """Build candidates side by side, on all processors, while nothing is timed; their products are kept.

        Raises:
            InvalidReferenceError: the reference cannot be used.
            MachineError: the referee or the machine is at fault.
        """
        for backend in {candidate.backend for candidate in candidates}:
            self.prepare_for(backend)
        with self._beside.lane(pin=False), ThreadPoolExecutor(len(os.sched_getaffinity(0)), "build") as threads:
            return tuple(threads.map(lambda candidate: self._built(candidate, contextlib.nullcontext), candidates))

    def _built(self, candidate: Candidate, room: Callable[[], AbstractContextManager[None]]) -> BuiltCode:
        """Build a candidate within ``room``, in a worker that has no other use."""
        if candidate.backend == "triton":
            return BuiltCode()
        progress = self._launcher.progress(candidate)
        try:
            self._launcher.screen(candidate, progress)
            self._build_beforehand(candidate, progress)
            with room():
                side = self._launcher.start(candidate, self.prepare_for(candidate.backend), "build", progress)
                self._launcher.put_away(side, progress)
        except Refused:
            return BuiltCode()
        products = tuple(progress.products.values())
        built = self._instruments.code.fingerprint(products)
        if candidate.backend == "cuda":
            return BuiltCode(machine_code=fingerprint(self._host.builds, progress.built, built))
        return BuiltCode(machine_code=built, metrics=self._instruments.code.metrics(products))

    def builds_ahead(self, backend: Backend) -> bool:
        """Whether candidates of a backend can be built while others are timed; see :meth:`build_ahead`."""
        return self._host.device_for(backend).is_apart and self._host.compile_lanes.count > 0

    def build_ahead(self, candidate: Candidate) -> None:
        """Begin to build a candidate that may be judged later, on cores that nothing is timed on; returns at once.

        Does nothing if its kernels do not run on a device, or if no cores are left for builds.
        """
        if self._host.device_for(candidate.backend).is_apart:
            self._ahead.submit(candidate)

    def _build_beforehand(self, candidate: Candidate, progress: Progress) -> None:
        """Build a candidate before it gets its device, which another candidate may use until then."""
        if not self._host.device_for(candidate.backend).is_apart:
            return
        with progress.timed("build"):
            self._on_stage("build")
            found = self._ahead.take(candidate)
        if found is not None:
            progress.compiled = found.compiled
