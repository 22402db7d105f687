"""Candidates and the referee's results about them: timings, profiles, environments, verdicts."""

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
    """One kernel: immutable, identified by the hash of its exact bytes and its knob settings."""

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
    """Facts about a candidate that was built but not run.

    ``machine_code`` is the fingerprint of its machine code, empty if unknown. ``metrics`` are figures of that code.
    """

    machine_code: str = ""
    metrics: dict[str, float] = {}


class Stage(StrEnum):
    """The last completed stage."""

    SCREENED = "screened"
    COMPILED = "compiled"
    CHECKED = "checked"
    TIMED = "timed"
    CONFIRMED = "confirmed"


_ORDER = {stage: place for place, stage in enumerate(Stage)}


class Status(StrEnum):
    """The outcome of a verdict. Only ``PASSED`` earns a reward.

    ``INELIGIBLE`` is neither fraud nor a fault: libraries do more of the work than ``own_kernels`` allows.
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
    """One observation of the referee. ``evidence`` may quote hostile text, truncated; escape it before display."""

    rule: str
    effect: Literal["refuses", "informs"]
    where: str = ""
    evidence: str = ""


TOO_SMALL_TO_TIME = "too-small-to-time"  # the rule for times that say nothing about a kernel


class Correctness(Record):
    """The results of the check. Errors are dimensionless, in units of the error budget's scale (1.0 is the budget).

    ``archive`` names the archive of input generators used in addition to the fixed distributions; empty for none.
    ``loads``: the largest error found, as a share of the budget, by distribution of the inputs.
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
    """Baseline time over candidate time. ``faster`` claims that the lower bound exceeds the noise bound."""

    faster: bool


class Timing(Record):
    """Times that the referee measures from outside. ``pairs`` counts window pairs (search) or process pairs (confirm).

    ``rivals``: other candidates timed in the same turns, by hash: their time over this candidate's. ``control``: in a
    confirmation, the time of one process of the reference over that of another. ``control_scatter``: the difference
    of these two in a typical pair, as a ratio minus one.
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
        """Why a confirmation does not claim its measured speedup; empty if it claims it or measured none."""
        found = self.speedup.get(baseline)
        least = 1.0 + self.noise_bound
        if found is None or self.control is None or found.faster or not found.low <= least < found.median:
            return ""
        return (
            f"{found.median:.2f}x measured [{found.low:.2f}, {found.high:.2f}]; "
            f"two processes of the same code differed by {self.control_scatter:.1%} meanwhile"
        )


class TimingSample(Record):
    """One raw window: the mean latency per call of one role in one pair. All windows of a timing are stored."""

    role: str  # "candidate", "eager", "compile", ...
    process: int
    pair: int
    order: int  # position of this window within its turn
    calls: int
    latency_ms: float
    phase: Literal["search", "confirm", "control"] = "search"


class KernelResources(Record):
    """GPU resources used by one kernel, read from its machine code for one architecture. Nothing here is a time.

    ``occupancy`` is the bound on resident warps over the maximum; None if no launch is known. ``problem`` says why a
    launch is impossible; empty if it is possible. Values that need machine code are None if it was not assembled.
    """

    kernel: str
    architecture: str  # "sm_90"
    registers: int | None = None  # per thread
    spilled_bytes: int | None = None  # stored per thread for lack of registers
    stack_bytes: int | None = None  # per thread
    shared_bytes: int = 0  # per block: static, and dynamic if a launch is known
    instructions: int | None = None
    looped_instructions: int | None = None  # those that a loop repeats
    looped_bytes: int | None = None  # of global memory, that a thread moves in one pass over them
    barriers: int | None = None  # instructions that wait for the block
    matrix_instructions: dict[str, int] = {}
    global_accesses: dict[str, int] = {}  # counts by instruction with width ("LDG.E.128")
    shared_accesses: dict[str, int] = {}  # the same for shared memory ("LDS.128")
    knobs: dict[str, KnobValue] = {}  # the configuration of an autotuned kernel
    block: int | None = None  # threads per block
    blocks_per_processor: int | None = None
    occupancy: float | None = None
    limiter: Literal["registers", "shared memory", "warps", "blocks"] | None = None
    problem: str = ""


class Profile(Record):
    """Evidence about where the time goes. ``rung`` names the best profiling method that was available."""

    rung: str
    bound: Literal["memory", "compute", "latency", "launch", "unknown"] = "unknown"
    metrics: dict[str, float] = {}
    notes: tuple[str, ...] = ()
    kernels: tuple[KernelResources, ...] = ()  # GPU kernels, if rung is "static"


class TimedVariant(Record):
    """The problem's variant that was timed, or would have been. The other variants were only checked.

    Attributes:
        number: its place in the problem's file, counted from 0 in its device class.
        constants: the constants that it sets; empty for the file's own constants.
        inputs: the inputs of a call in words, such as ``x float32[2048, 128]``.
    """

    number: int = 0
    constants: dict[str, KnobValue] = {}
    inputs: tuple[str, ...] = ()

    def describe(self) -> str:
        """The variant in words, such as ``x float32[7, 13] (variant 2: ROWS=7,COLUMNS=13)``."""
        named = f"variant {self.number}: {constants_in_words(self.constants)}"
        return f"{', '.join(self.inputs)} ({named})" if self.inputs else named


def constants_in_words(constants: Mapping[str, KnobValue]) -> str:
    """The constants of a variant as written on the command line: ``ROWS=7,COLUMNS=13``."""
    return ",".join(f"{name}={value}" for name, value in constants.items()) or "the constants of the file"


class Environment(Record):
    """The hardware and software that a result depends on. Verdicts refer to it by ``id``."""

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
        """The device class whose shapes are used for a backend here. Without a GPU, GPU kernels are interpreted."""
        return "cpu" if backend == "cpp" else "gpu" if self.device_class == "gpu" else "interpreter"


class Verdict(Record):
    """The referee's answer about exactly one candidate in exactly one environment.

    ``as_kernelbench`` says whether KernelBench's own rule would call the candidate correct, whatever the status is: on
    inputs that the problem itself draws at its first sizes, the outputs have the reference's shapes and are
    ``allclose`` to its outputs. None if this was not checked or cannot be. It affects no decision.

    ``eligible`` is False if libraries do so much of the work that the candidate counts on no board and earns no reward.
    With ``own_kernels=any`` it still passes; with ``some`` and ``strict`` it is INELIGIBLE. A candidate that only
    ``strict`` refuses is INELIGIBLE, but ``eligible`` is True.
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
    variant: TimedVariant | None = None  # None in old records, made before variants could be chosen: the first one
    sandbox: tuple[str, ...] = ()
    seconds: dict[str, float] = {}
    as_kernelbench: bool | None = None

    @model_validator(mode="after")
    def _status_allows_its_fields(self) -> Verdict:
        position = -1 if self.stage is None else _ORDER[self.stage]
        if self.timing is not None and position < _ORDER[Stage.TIMED]:
            raise ValueError("only a timed or confirmed verdict carries timing")
        if self.status is Status.PASSED and position < _ORDER[Stage.CHECKED]:
            raise ValueError("PASSED needs at least stage 'checked'")
        if self.status is Status.PASSED and self.failed_stage is not None:
            raise ValueError("a passed verdict has no failed stage")
        if self.status is not Status.PASSED and not self.reason:
            raise ValueError("a verdict that did not pass needs a reason")
        return self

    @property
    def passed(self) -> bool:
        """Whether the candidate is correct and does as much of the work itself as required."""
        return self.status is Status.PASSED

    @property
    def earns(self) -> bool:
        """Whether the candidate may be on a board and earn a reward."""
        return self.passed and self.eligible

    @property
    def too_small(self) -> str:
        """Why the call is too short for a meaningful time; empty if it is not."""
        return next((found.evidence for found in self.findings if found.rule == TOO_SMALL_TO_TIME), "")

    def speedup(self, baseline: str = "eager") -> Speedup | None:
        """The measured speedup over a baseline, or None if none was measured."""
        return None if self.timing is None else self.timing.speedup.get(baseline)


class Evaluation(Record):
    """A verdict with its raw evidence. The store writes it in one transaction."""

    candidate: Candidate
    verdict: Verdict
    samples: tuple[TimingSample, ...] = ()
    environment: Environment
    artifacts: dict[str, str] = {}  # name -> text: compiler messages, vectorisation report, worker output
