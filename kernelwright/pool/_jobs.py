"""Jobs for a referee that may be elsewhere, and their answers. Both are plain JSON and need nothing else."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field

import kernelwright
from kernelwright import errors
from kernelwright.config import Settings
from kernelwright.evaluator import Check, Confirm, Search, Session
from kernelwright.records import Backend, Candidate, Environment, Evaluation, InputGenerator, Problem, Record, Status
from kernelwright.records.base import sha256_text
from kernelwright.records.codec import dump_json
from kernelwright.records.verdicts import Verdict

# The settings that a verdict depends on. Those of places, models and budgets stay with the run; whether there is an
# accelerator, and how many cores build, is up to the machine that judges.
_OF_THE_METHOD: Final = (
    "sandbox",
    "threads",
    "baselines",
    "memory_bytes",
    "call_timeout_s",
    "build_timeout_s",
    "capture_timeout_s",
    "measurement",
    "race_check",
    "own_kernels",
    "allow_precision",
)
_ID_DIGITS: Final = 32
_RAISED: Final[tuple[type[errors.KernelwrightError], ...]] = (
    errors.SandboxError,
    errors.MachineError,
    errors.MissingToolError,
    errors.InvalidReferenceError,
    errors.UsageError,
    errors.KernelwrightError,
)


@functools.cache
def version() -> str:
    """The version of kernelwright with 12 digits of the hash of its sources, which tell checkouts apart."""
    folder = Path(kernelwright.__file__).parent
    sources = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        sources.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{kernelwright.__version__}+{sources.hexdigest()[:12]}"


class Depth(Record):
    """A depth of judgement as data; see :class:`~kernelwright.evaluator.Check` and its subclasses."""

    kind: Literal["check", "search", "confirm"]
    static: bool = True
    rivals: tuple[Candidate, ...] = ()
    explain: bool = False
    within_s: float | None = None

    @classmethod
    def of(cls, depth: Check | None) -> Depth:
        """The depth as data. None is a search."""
        if isinstance(depth, Confirm):
            return cls(kind="confirm", static=depth.static, rivals=depth.rivals, within_s=depth.within_s)
        if isinstance(depth, Search) or depth is None:
            depth = depth or Search()
            return cls(kind="search", static=depth.static, rivals=depth.rivals, explain=depth.explain)
        return cls(kind="check", static=depth.static)

    def asked(self) -> Check:
        """The depth as a session takes it."""
        if self.kind == "confirm":
            return Confirm(self.static, self.rivals, self.within_s)
        return Search(self.static, self.rivals, self.explain) if self.kind == "search" else Check(self.static)


def judged_unless(
    known: Collection[str] | None, session: Session, candidate: Candidate, depth: Check | None, *, control: bool = False
) -> tuple[Evaluation | None, str]:
    """Judge a candidate, unless the fingerprint of its machine code is known; gives the fingerprint as well.

    With ``known`` None no fingerprint is asked for, and it is "".
    """
    code = "" if known is None else session.machine_code(candidate)
    if code and code in (known or ()):
        return None, code
    return session.judge(candidate, depth, control=control), code


class Job(Record):
    """A question to a referee with all that it needs. The referee draws its secrets itself.

    Attributes:
        version: of the kernelwright that asks; see :func:`version`. No other one answers.
        environment: id of the environment that must judge; empty for any.
        candidate: the candidate to judge.
        kernelbench: whether KernelBench's own verdict is wanted besides.
        settings: the settings that a verdict depends on.
        asking: how many earlier evaluations of this candidate the run has. It tells repeated questions apart.
        known: fingerprints of machine code; a candidate that has one of them is not judged. None: none is looked for.
            They are no part of the job's name, since more may be known when it is asked again.
    """

    version: str
    run: str
    problem: Problem
    backend: Backend
    environment: str = ""
    candidate: Candidate
    depth: Depth = Depth(kind="search")
    control: bool = False
    kernelbench: bool = False
    archive: tuple[InputGenerator, ...] = ()
    settings: dict[str, Any] = Field(default_factory=dict)
    asking: int = 0
    known: tuple[str, ...] | None = None

    @property
    def threads(self) -> int:
        """The number of threads of the candidate and of the referee while timed."""
        return int(self.settings.get("threads", 1))

    @functools.cached_property
    def text(self) -> str:
        """The job as JSON."""
        return dump_json(self)

    @functools.cached_property
    def id(self) -> str:
        """The job's name: 32 hex digits of the hash of its content. A resumed run asks under the same name."""
        named = self.text if self.known is None else dump_json(self.model_copy(update={"known": None}))
        return sha256_text(named)[:_ID_DIGITS]

    def answered_in(self, session: Session) -> dict[str, Any]:
        """Do the job in a session on its problem; gives fields of the answer."""
        evaluation, code = judged_unless(self.known, session, self.candidate, self.depth.asked(), control=self.control)
        if self.kernelbench and evaluation is not None:
            evaluation = session.as_kernelbench(evaluation)
        return {"machine_code": code, "evaluation": evaluation}

    def quarantined(self, environment: Environment, reason: str) -> Evaluation:
        """The evaluation of a candidate that must not be tried again."""
        verdict = Verdict(
            candidate=self.candidate.sha256,
            problem=self.problem.id,
            backend=self.candidate.backend,
            control=self.control,
            stage=None,
            failed_stage="confirm" if self.depth.kind == "confirm" else None,
            status=Status.QUARANTINED,
            reason=reason,
            environment=environment.id,
        )
        return Evaluation(candidate=self.candidate, verdict=verdict, environment=environment)


class Fault(Record):
    """An error of a judgement, as data."""

    kind: str
    message: str
    hint: str = ""
    problem: str = ""
    line: int | None = None

    @classmethod
    def of(cls, error: Exception) -> Fault:
        """The fault of an error. One that kernelwright did not foresee is named by its type."""
        if not isinstance(error, errors.KernelwrightError):
            said = f"{type(error).__name__}: {error}".strip(": ")[:500]
            return cls(kind="KernelwrightError", message=f"an error of kernelwright: {said}")
        kind = next(known.__name__ for known in _RAISED if isinstance(error, known))
        line = error.data.get("line")
        return cls(
            kind=kind,
            message=error.message,
            hint=error.hint,
            problem=str(error.data.get("problem", "")),
            line=line if isinstance(line, int) else None,
        )

    @property
    def of_the_machine(self) -> bool:
        """Whether another try, or another machine, may do better."""
        return self.kind in ("MachineError", "SandboxError", "MissingToolError")

    @property
    def of_the_seat(self) -> bool:
        """Whether the machine that answered can judge nothing at all."""
        return self.kind in ("SandboxError", "MissingToolError")

    def error(self, seat: str) -> errors.KernelwrightError:
        """The error to raise where the job was asked."""
        kind = next((known for known in _RAISED if known.__name__ == self.kind), errors.MachineError)
        data = {"problem": self.problem, "line": self.line} if self.problem or self.line is not None else {}
        at = f" (on {seat})" if seat and self.of_the_machine else ""
        return kind(f"{self.message}{at}", hint=self.hint, **data)


class Answer(Record):
    """The answer to a job: an evaluation or a fault, or only the fingerprint of machine code that the job knows.

    ``seat``: who answered; ``seconds``: how long it took.
    """

    job: str = Field(pattern=r"^[0-9a-f]{32}$")
    version: str
    evaluation: Evaluation | None = None
    fault: Fault | None = None
    machine_code: str = ""
    seat: str = ""
    seconds: float = 0.0

    def refusal(self, job: Job) -> str:
        """Why this cannot be the answer to a job; empty if it can be."""
        if self.job != job.id:
            return "it answers another job"
        if self.version != job.version:
            return f"it was made by kernelwright {self.version}, and the job by {job.version}"
        outcomes = (self.evaluation is not None) + (self.fault is not None)
        if outcomes != 1 and not (outcomes == 0 and self.machine_code in (job.known or ())):
            return "it has no single outcome"
        if self.evaluation is None:
            return ""
        verdict = self.evaluation.verdict
        if (verdict.candidate, verdict.problem) != (job.candidate.sha256, job.problem.id):
            return "its verdict is about another candidate"
        if job.environment and verdict.environment != job.environment:
            return f"it was judged in environment {verdict.environment}, and {job.environment} was asked for"
        return ""


def quarantine(job: Job, environment: Environment, losses: int) -> Answer:
    """The answer to a job whose candidate has cost several seats."""
    reason = f"{losses} workers were lost while they judged it"
    return Answer(job=job.id, version=job.version, evaluation=job.quarantined(environment, reason), seat="the pool")


class Card(Record):
    """What a seat is: its name, its version, and the environment in which it judges each language.

    The number of threads is a job's, not a seat's; see :meth:`in_threads`.
    """

    seat: str
    version: str
    environments: dict[Backend, Environment]

    def in_threads(self, threads: int) -> dict[Backend, Environment]:
        """The environments of judgements with so many threads."""
        return {name: found.model_copy(update={"threads": threads}) for name, found in self.environments.items()}


def method_of(settings: Settings) -> dict[str, Any]:
    """The settings that a verdict depends on, as plain data."""
    known = settings.model_dump(mode="json", include=set(_OF_THE_METHOD))
    return {name: known[name] for name in _OF_THE_METHOD}


def with_method(settings: Settings, method: Mapping[str, Any]) -> Settings:
    """The settings of a seat with those of a job.

    A job may ask for a sandbox where the seat leaves the choice open. It cannot take one away.

    Raises:
        UsageError: the seat's sandbox is another one, or the method has a value that this version does not know.
    """
    unknown = sorted(set(method) - set(_OF_THE_METHOD))
    if unknown:
        raise errors.UsageError(f"a job asks for the setting {unknown[0]!r}", hint="use one version everywhere")
    own, asked = settings.sandbox, method.get("sandbox", "auto")
    if asked not in ("auto", own) and (own != "auto" or asked == "none"):
        raise errors.UsageError(
            f"a job asks for sandbox {asked}, and this machine judges with sandbox {own}",
            hint="start the worker with the same --sandbox, or the run without one",
        )
    return settings.with_values("a job", **{**method, "sandbox": own if asked == "auto" else asked})
