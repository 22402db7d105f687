"""What the stages have found out about a candidate so far, and the exception that refuses it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future

from kernelwright import inline
from kernelwright.evaluator.accuracy.redraws import Redraws
from kernelwright.evaluator.builds.gpu_resources import Launch
from kernelwright.evaluator.own.evidence import Evidence
from kernelwright.evaluator.profile.events import KernelEvents
from kernelwright.evaluator.timing.turns import ReadTimes
from kernelwright.evaluator.wire.claims import Failure
from kernelwright.records import Correctness, Finding, Profile, Stage, Status, Timing, TimingSample
from kernelwright.records.problems import OwnKernels
from kernelwright.records.verdicts import FailedStage


class Refused(Exception):
    """The candidate is refused. Carries the status, the stage and the reason."""

    def __init__(self, status: Status, stage: FailedStage, reason: str) -> None:
        super().__init__(reason)
        self.status, self.stage, self.reason = status, stage, reason


class Progress:
    """Everything known about a candidate so far. It becomes the verdict. Only this package writes into it.

    own_kernels: how much of the work its own kernels have to do. timeable: whether its kernels run natively here, so
    that they can be timed. screening: whether the screen may refuse.
    """

    def __init__(self, *, own_kernels: OwnKernels, timeable: bool, screening: bool) -> None:
        self.own_kernels: OwnKernels = own_kernels
        self.timeable = timeable
        self.screening = screening
        self.eligible = True
        self.stage: Stage | None = None
        self.findings: tuple[Finding, ...] = ()
        self.correctness: Correctness | None = None
        self.timing: Timing | None = None
        self.samples: list[TimingSample] = []
        self.read_times = ReadTimes()
        self.redraws = Redraws()
        self.seconds: dict[str, float] = {}
        self.artifacts: dict[str, str] = {}
        self.layers: tuple[str, ...] = ()
        self.evidence: Evidence | None = None
        self.built: list[inline.BuildRequest] = []
        self.products: dict[str, bytes] = {}  # build products by the request's key
        self.compiled = b""  # what Triton compiled in its build pass
        self.launches: tuple[Launch, ...] = ()  # of emulated kernels
        self.device_kernels: tuple[KernelEvents, ...] = ()  # kernels of one call on a device, as its worker claims
        self.profile: Profile | None = None
        self.beside: Future[Profile | None] | None = None  # its static profile; None for CUDA, once compiled

    def fall_short(self, stage: FailedStage, reason: str) -> None:
        """Mark the candidate as not eligible for boards, since libraries do too much of the work.

        Raises:
            Refused: always, unless ``own_kernels`` is "any".
        """
        self.eligible = False
        if self.own_kernels != "any":
            raise self.ineligible(stage, reason)
        self.note("not-eligible", f"{reason}; allowed here, and on no board")

    def ineligible(self, stage: FailedStage, reason: str) -> Refused:
        """The refusal of a correct candidate that leaves more of the work to libraries than is allowed."""
        return Refused(
            Status.INELIGIBLE, stage, f"{reason}: right, and not eligible with own_kernels={self.own_kernels}"
        )

    def note(self, rule: str, evidence: str) -> None:
        """Add a finding that informs."""
        self.findings = (*self.findings, Finding(rule=rule, effect="informs", evidence=evidence))

    def note_once(self, rule: str, evidence: str) -> None:
        """Add a finding that informs, in place of an earlier one of the same rule."""
        self.findings = tuple(finding for finding in self.findings if finding.rule != rule)
        self.note(rule, evidence)

    def note_all(self, notes: Iterable[tuple[str, str]]) -> None:
        """Add findings that inform, as (rule, evidence)."""
        for rule, evidence in notes:
            self.note(rule, evidence)

    def refused_by(self, rule: str, evidence: str) -> None:
        """Add the finding that refuses, before all others."""
        self.findings = (Finding(rule=rule, effect="refuses", evidence=evidence[:400]), *self.findings)

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the time spent inside to the seconds of ``name``."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started


def status_of(failure: Failure) -> tuple[Status, str]:
    """The status and the reason for a failure of a candidate's worker."""
    if failure.kind == "timeout":
        return Status.TIMEOUT, failure.message
    if failure.kind == "fault" and failure.phase in ("door", "digest"):
        return Status.REWARD_HACK, failure.message
    if failure.kind == "fault" and failure.phase == "shape":
        return Status.INCORRECT_SHAPE, failure.message
    if failure.kind == "fault" and failure.message.startswith("NotCheckable"):
        return Status.UNCHECKED, failure.message
    where = f" ({failure.phase})" if failure.kind == "fault" else ""
    line = f" at line {failure.line}" if failure.line is not None else ""
    return Status.RUNTIME_ERROR, f"{failure.message}{line}{where}"
