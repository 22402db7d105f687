"""Candidates, and what the referee says of them: timings, profiles, environments, verdicts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

from pydantic import model_validator

from kernelwright.records.base import Backend, DeviceClass, KnobValue, Record, sha256_text
from kernelwright.records.problems import identity

# --------------------------------------------------------------------------------------------------- candidates


class Candidate(Record):
    """One kernel: immutable, named by the hash of its exact bytes and its knob settings."""

    problem_id: str
    source: str
    backend: Backend
    knobs: dict[str, KnobValue] = {}
    parents: tuple[str, ...] = ()
    operator: str = "new"  # new | repair | improve | knob | seed | given ...
    author: str = "unknown"  # "offline", "openai:gpt-..."; "user" for a file from the command line
    prompt_sha256: str | None = None
    note: str = ""  # the author's rationale, quoted as data wherever it is shown

    @property
    def sha256(self) -> str:
        """Identity: SHA-256 over the exact source bytes, a NUL, and the knobs as canonical JSON."""
        return identity(self.source, json.dumps(self.knobs, sort_keys=True) if self.knobs else "{}")


class BuiltCode(Record):
    """What is known of a candidate that was built and not run.

    ``machine_code`` is the fingerprint of what it was built into, empty where nothing can be said; ``metrics`` are
    figures of that code.
    """

    machine_code: str = ""
    metrics: dict[str, float] = {}


class Stage(StrEnum):
    """The furthest stage that was completed."""

    SCREENED = "screened"
    COMPILED = "compiled"
    CHECKED = "checked"
    TIMED = "timed"
    CONFIRMED = "confirmed"


class Status(StrEnum):
    """How a verdict ended. Only ``PASSED`` earns anything.

    ``INELIGIBLE`` is no fraud and no fault: more of the work was left to libraries than ``own_kernels`` allows.
    """

    PASSED = "PASSED"
    UNCHECKED = "UNCHECKED"
    COMPILE_ERROR = "COMPILE_ERROR"
    RUNTIME_ERROR = "RUNTIME_ERROR"
    TIMEOUT = "TIMEOUT"
    INCORRECT_SHAPE = "INCORRECT_SHAPE"
    INCORRECT_DTYPE = "INCORRECT_DTYPE"
    INCORRECT_NUMERICAL = "INCORRECT_NUMERICAL"
    INELIGIBLE = "INELIGIBLE"
    REWARD_HACK = "REWARD_HACK"
    QUARANTINED = "QUARANTINED"
    INVALID_REFERENCE = "INVALID_REFERENCE"


FailedStage = Literal["screen", "build", "check", "ghost", "time", "confirm", "floor"]


class Finding(Record):
    """One observation of the referee. ``evidence`` may quote hostile text: already cut, to be escaped where shown."""

    rule: str
    effect: Literal["refuses", "informs"]
    where: str = ""
    evidence: str = ""


TOO_SMALL_TO_TIME = "too-small-to-time"  # the rule by which a time was found to say nothing of a kernel


class Correctness(Record):
    """What the check saw. Errors are in units of the error budget's scale, dimensionless (1.0 is the budget).

    ``archive`` names the archive of input generators that was used besides the fixed distributions; empty for none.
    ``loads``: by distribution of the inputs, the largest error as a share of the budget, as far as it was checked.
    """

    trials: int
    variants: int
    check_set: str
    max_error: float
    error_budget: float
    kernelbench_allclose: bool
    archive: str = ""
    loads: dict[str, float] = {}


class Interval(Record):
    """A point estimate with its 95% interval (latencies in ms, speedups as ratios)."""

    median: float
    low: float
    high: float


class Speedup(Interval):
    """Baseline time over candidate time. ``faster`` is the claim: the lower bound clears the noise bound."""

    faster: bool


class Timing(Record):
    """The referee's outside clock. ``pairs`` counts window pairs (search) or process pairs (confirmation).

    ``rivals``: other candidates timed in the same turns, by hash: their time over the candidate's. ``control``: in a
    confirmation, the time of one process of the reference over that of another; ``control_scatter``: how far the two
    were apart in a typical pair, as a ratio minus one.
    """

    latency_ms: Interval
    processes: int
    pairs: int
    threads: int
    confirmed: bool
    noise_bound: float  # delta, as a ratio minus one
    speedup: dict[str, Speedup]
    rivals: dict[str, Speedup] = {}
    control: Interval | None = None
    control_scatter: float = 0.0

    def denial(self, baseline: str) -> str:
        """Why a confirmation that measured a speedup does not claim it; empty where it does, or measured none."""
        found = self.speedup.get(baseline)
        least = 1.0 + self.noise_bound
        if found is None or self.control is None or found.faster or not found.low <= least < found.median:
            return ""
        return (
            f"{found.median:.2f}x measured [{found.low:.2f}, {found.high:.2f}]; "
            f"two processes of the same code differed by {self.control_scatter:.1%} meanwhile"
        )


class TimingSample(Record):
    """One raw window: mean latency per call of one role in one pair. Stored for every timing, never averaged away."""

    role: str  # "candidate", "eager", "compile", ...
    process: int
    pair: int
    order: int  # position of this window within its turn
    calls: int
    latency_ms: float
    phase: Literal["search", "confirm", "control"] = "search"


class KernelResources(Record):
    """What one kernel takes of a GPU, read off its machine code for one architecture. No time is in here.

    ``occupancy`` is the bound on resident warps over the most that fit; None where no launch is known. ``problem`` says
    why a launch cannot happen; it is empty where it can. What is not known of a kernel that is not assembled is None.
    """

    kernel: str
    architecture: str  # "sm_90"
    registers: int | None = None  # a thread
    spilled_bytes: int | None = None  # stored by a thread for want of registers
    stack_bytes: int | None = None  # a thread
    shared_bytes: int = 0  # a block: static, and dynamic where a launch is known
    instructions: int | None = None
    barriers: int | None = None  # instructions that wait for the block
    matrix_instructions: dict[str, int] = {}
    global_accesses: dict[str, int] = {}  # instruction with its width ("LDG.E.128"): how many
    knobs: dict[str, KnobValue] = {}  # of an autotuned kernel: the configuration
    block: int | None = None  # threads
    blocks_per_processor: int | None = None
    occupancy: float | None = None
    limiter: Literal["registers", "shared memory", "warps", "blocks"] | None = None
    problem: str = ""


class Profile(Record):
    """Evidence about where the time goes. ``rung`` names the best means that was available."""

    rung: str
    bound: Literal["memory", "compute", "latency", "launch", "unknown"] = "unknown"
    metrics: dict[str, float] = {}
    notes: tuple[str, ...] = ()
    kernels: tuple[KernelResources, ...] = ()  # of a GPU, where rung is "static"


class TimedVariant(Record):
    """Which of a problem's variants was timed, or would have been: the others were checked alone.

    Attributes:
        number: its place in the problem's file, counted from 0 in its device class.
        constants: what it sets; empty for the file's own constants.
        inputs: what a call was given, in words: ``x float32[2048, 128]``.
    """

    number: int = 0
    constants: dict[str, KnobValue] = {}
    inputs: tuple[str, ...] = ()

    def describe(self) -> str:
        """The same in words: ``x float32[7, 13] (variant 2: ROWS=7, COLUMNS=13)``."""
        named = f"variant {self.number}: {constants_in_words(self.constants)}"
        return f"{', '.join(self.inputs)} ({named})" if self.inputs else named


def constants_in_words(constants: Mapping[str, KnobValue]) -> str:
    """What a variant sets, as it is named on the command line: ``ROWS=7,COLUMNS=13``."""
    return ",".join(f"{name}={value}" for name, value in constants.items()) or "the constants of the file"


class Environment(Record):
    """What a result depends on. Its ``id`` names it in every verdict."""

    device: str
    device_class: DeviceClass
    cpu: str
    cores: int
    os: str
    python: str
    torch: str
    compiler: str
    threads: int
    extra: dict[str, str] = {}

    @property
    def id(self) -> str:
        """First 16 hex digits of the hash of all fields."""
        return sha256_text(self.model_dump_json())[:16]

    def class_for(self, backend: Backend) -> DeviceClass:
        """Whose shapes candidates of a backend are judged on here: without a GPU, kernels of one are interpreted."""
        return "cpu" if backend == "cpp" else "gpu" if self.device_class == "gpu" else "interpreter"


class Verdict(Record):
    """The referee's answer about exactly one candidate in exactly one environment.

    ``as_kernelbench`` says whether KernelBench's own rule would have called it correct, whatever the status is: its
    outputs have the reference's shapes and are ``allclose`` to them, on inputs that the problem itself draws at its
    first sizes. None where nobody asked, or where it cannot be asked. It decides nothing.

    ``eligible`` is False where libraries do so much of the work that the candidate counts on no board and earns no
    reward. With ``own_kernels=any`` it passes all the same, with ``some`` and ``strict`` it is INELIGIBLE. What only
    ``strict`` refuses is INELIGIBLE and might stand on a board.
    """

    candidate: str
    problem: str
    backend: Backend
    control: bool = False
    stage: Stage | None  # None: refused before any stage was completed
    failed_stage: FailedStage | None = None
    status: Status
    reason: str = ""
    findings: tuple[Finding, ...] = ()
    correctness: Correctness | None = None
    timing: Timing | None = None
    own_kernel_share: float | None = None
    own_kernel_label: Literal["kernel", "hybrid", "library"] | None = None
    eligible: bool = True
    profile: Profile | None = None
    environment: str
    variant: TimedVariant | None = None  # None in what was recorded before there was a choice: the first one
    sandbox: tuple[str, ...] = ()
    seconds: dict[str, float] = {}
    as_kernelbench: bool | None = None

    @model_validator(mode="after")
    def _status_allows_its_fields(self) -> Verdict:
        reached = list(Stage)
        position = -1 if self.stage is None else reached.index(self.stage)
        if self.timing is not None and position < reached.index(Stage.TIMED):
            raise ValueError("only a timed or confirmed verdict carries timing")
        if self.status is Status.PASSED and position < reached.index(Stage.CHECKED):
            raise ValueError("PASSED needs at least stage 'checked'")
        if self.status is Status.PASSED and self.failed_stage is not None:
            raise ValueError("a passed verdict has no failed stage")
        if self.status is not Status.PASSED and not self.reason:
            raise ValueError("a verdict that did not pass needs a reason")
        return self

    @property
    def passed(self) -> bool:
        """True where the candidate is right, and does as much of the work itself as was asked for."""
        return self.status is Status.PASSED

    @property
    def earns(self) -> bool:
        """True where it may stand on a board, and earn a reward."""
        return self.passed and self.eligible

    @property
    def too_small(self) -> str:
        """Why its time says nothing, where a call takes too little of it; empty elsewhere."""
        return next((found.evidence for found in self.findings if found.rule == TOO_SMALL_TO_TIME), "")

    def speedup(self, baseline: str = "eager") -> Speedup | None:
        """The measured speedup over a baseline, or None where none was measured."""
        return None if self.timing is None else self.timing.speedup.get(baseline)


class Evaluation(Record):
    """A verdict with the raw evidence behind it: what the store writes in one transaction."""

    candidate: Candidate
    verdict: Verdict
    samples: tuple[TimingSample, ...] = ()
    environment: Environment
    artifacts: dict[str, str] = {}  # name -> text: compiler messages, vectorisation report, worker output
