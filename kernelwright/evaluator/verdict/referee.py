"""The referee: judges candidates on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from kernelwright.config import Settings
from kernelwright.errors import InvalidReferenceError, UsageError
from kernelwright.evaluator.cpu.instruments import Instruments
from kernelwright.evaluator.host.device import Device
from kernelwright.evaluator.host.host import Host
from kernelwright.evaluator.verdict.interface import Check
from kernelwright.evaluator.verdict.session import ProblemSession
from kernelwright.records import Backend, Candidate, Environment, Evaluation, InputGenerator, Problem, Status, Verdict
from kernelwright.sandbox import Sandbox

BASELINES = (
    "eager",
    "compile",
    "compile-max-autotune",
    "compile-max-autotune-no-cudagraphs",
    "compile-reduce-overhead",
)


class Referee:
    """Judges candidates on this machine. A context manager.

    It never executes problem or candidate code: that happens in workers of a sandbox.

    Attributes:
        settings: as given.
        host: this machine as the settings let it be used.
    """

    def __init__(self, settings: Settings, sandbox: Sandbox | None = None, device: Device | None = None) -> None:
        """``device``: instead of the one that the settings choose."""
        self.settings = settings
        self.host = Host(settings, sandbox, device)
        self._instruments = Instruments(self.host)

    def __enter__(self) -> Referee:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the sandbox, if this referee opened it."""
        self._instruments.close()
        self.host.close()

    @property
    def device(self) -> Device:
        """The accelerator of this machine, or this CPU if there is none."""
        return self.host.device

    def environment_for(self, backend: Backend) -> Environment:
        """The environment that results of a backend depend on: the device if it runs them, else this CPU."""
        return self.host.environment_for(backend)

    def open(
        self,
        problem: Problem,
        *,
        backend: Backend = "cpp",
        baselines: Sequence[str] = ("eager", "compile"),
        on_stage: Callable[[str], None] | None = None,
        archive: Sequence[InputGenerator] = (),
        ready: bool = True,
    ) -> ProblemSession:
        """A session on ``problem``. Its reference has been run on the shapes of ``backend`` and is usable.

        Args:
            ready: False leaves the reference alone until it is needed, for sessions that only run tools.
            archive: generators of inputs that candidates are checked on as well, wherever the reference is well
                defined on them.

        Raises:
            InvalidReferenceError: the reference is not usable; ``data["line"]`` is the faulty line, if known.
            UsageError: an unknown baseline, or a problem that this version cannot judge.
        """
        for name in baselines:
            if name not in BASELINES:
                raise UsageError(f"unknown baseline {name!r}", hint=f"use some of {', '.join(BASELINES)}")
        options: dict[str, Any] = {"baselines": baselines, "on_stage": on_stage, "archive": archive}
        session = ProblemSession(self.host, self._instruments, problem, **options)
        try:
            if ready:
                session.prepare_for(backend)
        except BaseException:
            session.close()
            raise
        return session

    def evaluate(
        self,
        candidate: Candidate,
        problem: Problem,
        depth: Check | None = None,
        *,
        baselines: Sequence[str] = ("eager", "compile"),
        control: bool = False,
        on_stage: Callable[[str], None] | None = None,
        archive: Sequence[InputGenerator] = (),
    ) -> Evaluation:
        """Judge one candidate in a session of its own. An unusable reference is status INVALID_REFERENCE."""
        try:
            opened = self.open(
                problem, backend=candidate.backend, baselines=baselines, on_stage=on_stage, archive=archive
            )
            with opened as session:
                return session.judge(candidate, depth, control=control)
        except InvalidReferenceError as error:
            environment = self.host.environment
            verdict = Verdict(
                candidate=candidate.sha256,
                problem=problem.id,
                backend=candidate.backend,
                control=control,
                stage=None,
                failed_stage="check",
                status=Status.INVALID_REFERENCE,
                reason=error.message,
                environment=environment.id,
                sandbox=self.host.sandbox.layers,
            )
            return Evaluation(candidate=candidate, verdict=verdict, environment=environment)
