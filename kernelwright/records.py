"""The frozen records that cross rooms.

Units live in the names (``latency_ms``, ``size_bytes``, ``seconds``). A record never changes after it was made; a
rerun is a new record.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

Backend = Literal["cpp", "triton", "cuda"]
KnobValue = int | float | str | bool
DeviceClass = Literal["cpu", "gpu", "interpreter"]


def timed_together(one: Backend, other: Backend) -> bool:
    """Whether kernels of two backends are timed on the same device, where they are timed at all: C++ is on the CPU."""
    return (one == "cpp") == (other == "cpp")


def sha256_text(text: str | bytes) -> str:
    """Hex SHA-256 of ``text`` (UTF-8 where it is a string)."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


class Record(BaseModel):
    """Base of all records: frozen, and closed to unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


def plain(value: Any) -> Any:
    """A value as JSON can hold it: records become objects, infinities and NaN become text."""
    if hasattr(value, "model_dump"):
        return plain(value.model_dump(mode="python"))
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    return str(value)


# --------------------------------------------------------------------------------------------------- problems


class InputDomain(Record):
    """What one input of ``forward`` may hold.

    ``fill`` says how fresh data may be made: ``normal`` and ``uniform`` are element-wise independent (the referee may
    draw any values inside [low, high]); ``structured`` means that only the problem's own ``get_inputs`` makes it.
    ``non_finite``: a float input may hold NaN as well, and an infinity on each side that has no bound.
    """

    fill: Literal["normal", "uniform", "structured"] = "structured"
    low: float = -math.inf
    high: float = math.inf
    non_finite: bool = False

    @model_validator(mode="after")
    def _drawn_by_the_referee(self) -> InputDomain:
        if self.non_finite and self.fill == "structured":
            raise ValueError("non_finite needs a fill that the referee can draw: 'normal' or 'uniform'")
        return self


PatternKind = Literal[
    "alternating",
    "bounds",
    "constant",
    "equal_maxima",
    "normal",
    "offset",
    "one_sided",
    "outliers",
    "scaled",
    "signed_zeros",
    "sorted",
    "sparse",
    "ties",
    "uneven_rows",
]
Place = Literal["first", "last", "random"]


class InputPattern(Record):
    """How the elements of one input are drawn; the referee draws them, inside of the input's declared domain.

    ``z`` is standard normal (or the domain's part of it), rows lie along ``axis``, ``m`` is ``magnitude`` and ``c`` is
    ``count``:

    - ``normal``: z.
    - ``scaled``: m z.
    - ``offset``: m + z.
    - ``one_sided``: m |z|: no element has the other sign.
    - ``constant``: every element is m.
    - ``bounds``: the domain's two bounds (m where it has none).
    - ``alternating``: m, -m, m, ... plus z: terms that nearly cancel.
    - ``ties``: c different numbers m z, each many times.
    - ``equal_maxima``: z, and c + 1 elements of a row hold the same number, the row's largest, m above the others.
    - ``sorted``: m z, each row ascending; descending where ``place`` is ``first``.
    - ``outliers``: z, and c elements of a row are m times as large.
    - ``sparse``: zeros, and c elements of a row are m z.
    - ``signed_zeros``: m z, and half of the elements are 0 or -0.
    - ``uneven_rows``: z times powers of two between 1 and m, one for each run of c elements.

    Args:
        place: where in a row the chosen elements lie.
        axis: along which rows lie, counted from the last one (-1); one that the input lacks is its first one.
    """

    kind: PatternKind
    magnitude: float = Field(default=1.0, ge=-1e30, le=1e30)
    count: int = Field(default=1, ge=1, le=4096)
    place: Place = "random"
    axis: int = Field(default=-1, ge=-8, le=-1)

    @model_validator(mode="after")
    def _has_a_size(self) -> InputPattern:
        if self.magnitude == 0.0 and self.kind != "constant":
            raise ValueError("magnitude 0 is for 'constant' alone")
        return self


class InputGenerator(Record):
    """One way to draw a problem's inputs: a pattern for each input by its name; all others are drawn plainly."""

    inputs: dict[str, InputPattern] = Field(min_length=1)

    def __hash__(self) -> int:
        return hash(self.canonical_json())

    @property
    def id(self) -> str:
        """A name by content, 16 hex digits."""
        return sha256_text(self.canonical_json())[:16]

    def canonical_json(self) -> str:
        """Its JSON with sorted keys."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True)

    def describe(self) -> str:
        """The same in words: ``x: equal_maxima, magnitude 2, count 1``."""
        return "; ".join(f"{name}: {_in_words(pattern)}" for name, pattern in sorted(self.inputs.items()))


def _in_words(pattern: InputPattern) -> str:
    usual = InputPattern(kind="normal")
    given = ((name, getattr(pattern, name)) for name in ("magnitude", "count", "place", "axis"))
    told = [f"{name} {str(value).removesuffix('.0')}" for name, value in given if value != getattr(usual, name)]
    return ", ".join([pattern.kind, *told])


def archive_id(generators: Iterable[InputGenerator]) -> str:
    """The name of an archive of generators by content, 16 hex digits; empty where there is none."""
    ids = sorted({generator.id for generator in generators})
    return sha256_text("\n".join(ids))[:16] if ids else ""


class TolerancePolicy(Record):
    """Error budget of a problem: a factor on the budget, and the reduced precisions that it allows inside float32."""

    scale: float = Field(default=1.0, gt=0)
    reduced_precision: tuple[Literal["tf32", "bfloat16", "float16"], ...] = ()


class ProblemMeta(Record):
    """Optional metadata of a problem file: a literal dict named ``PROBLEM``, read without running the file.

    ``variants`` maps a device class to settings of the file's module-level constants; the first one is timed (unless
    another one is asked for, see :meth:`Problem.at_variant`), the others are checked as well. ``inputs`` is keyed by
    the parameter names of ``Model.forward``.

    ``note`` says why the problem is not trivially gamed: what a kernel might leave out, and how that shows.
    ``backward``: a call is the forward and then the gradients of all float inputs and parameters. ``randomness`` says
    how a forward that draws random numbers is judged: ``seeded`` (torch's generator is seeded before each call, for
    both sides alike) or ``distribution`` (the candidate may draw as it likes; its distribution is tested).
    """

    title: str = ""
    category: str = "other"
    note: str = ""
    dtype: str = "float32"
    mode: Literal["eval", "train"] = "eval"
    backward: bool = False
    randomness: Literal["none", "seeded", "distribution"] = "none"
    weights: Literal["inputs", "constants"] = "inputs"
    heavy_ops: tuple[str, ...] = ()
    inputs: dict[str, InputDomain] = {}
    variants: dict[DeviceClass, tuple[dict[str, KnobValue], ...]] = {}
    tolerance: TolerancePolicy = TolerancePolicy()

    def variants_for(self, device_class: DeviceClass) -> tuple[dict[str, KnobValue], ...]:
        """The variants of a device class; one empty variant (the file's own constants) where none is declared."""
        return self.variants.get(device_class) or ({},)

    def moved(self, source: int, target: int) -> ProblemMeta:
        """With one variant in another place, in each device class that has both places."""
        found: dict[DeviceClass, tuple[dict[str, KnobValue], ...]] = {}
        for name, declared in self.variants.items():
            variants = list(declared)
            if max(source, target) < len(variants):
                variants.insert(target, variants.pop(source))
            found[name] = tuple(variants)
        return self.model_copy(update={"variants": found})


VARIANT_MARK = "@"  # between a problem's id and the number of the variant that is timed


class Problem(Record):
    """A PyTorch reference: source with ``Model``, ``get_inputs``, ``get_init_inputs`` (the KernelBench contract).

    ``variant`` is the number, in the order of the file, of the shape variant that is timed. It comes first in ``meta``,
    and where it is not the file's first one, it is part of the id: results on another variant are results on another
    problem.
    """

    id: str  # "kernelwright/level1/softmax", or "file/<stem>" for a path; "...@2" where another variant is timed
    suite: str
    level: int
    name: str
    number: int | None = None
    source: str
    meta: ProblemMeta = ProblemMeta()
    path: str | None = None
    variant: int = Field(default=0, ge=0)

    @property
    def sha256(self) -> str:
        """Hash of the exact source."""
        return sha256_text(self.source)

    @property
    def declared(self) -> Problem:
        """The problem as its file declares it, whose first variant is timed."""
        if self.variant == 0:
            return self
        known_as = self.id.removesuffix(f"{VARIANT_MARK}{self.variant}")
        return self.model_copy(update={"id": known_as, "meta": self.meta.moved(0, self.variant), "variant": 0})

    def at_variant(self, number: int) -> Problem:
        """The same problem with another variant of its file timed, by its number; all are checked as before."""
        declared = self.declared
        if number == 0:
            return declared
        meta = declared.meta.moved(number, 0)
        return declared.model_copy(
            update={"id": f"{declared.id}{VARIANT_MARK}{number}", "meta": meta, "variant": number}
        )


# --------------------------------------------------------------------------------------------------- candidates


@lru_cache(maxsize=1024)  # asked for dozens of times in each round; no attribute, since copies would inherit it
def _identity(source: str, knobs: str) -> str:
    return sha256_text(source.encode() + b"\0" + knobs.encode())


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
        return _identity(self.source, json.dumps(self.knobs, sort_keys=True) if self.knobs else "{}")


class BuiltCode(Record):
    """What is known of a candidate that was built and not run.

    ``machine_code`` is the fingerprint of what it was built into, empty where nothing can be said; ``metrics`` are
    figures of that code.
    """

    machine_code: str = ""
    metrics: dict[str, float] = {}


# --------------------------------------------------------------------------------------------------- verdicts


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


OwnKernels = Literal["any", "some", "strict"]  # how much of the work a candidate's own kernels have to do
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


# --------------------------------------------------------------------------------------------------- agents and runs


InsightType = Literal["bottleneck", "pitfall", "opportunity"]
Severity = Literal["low", "medium", "high"]
SEVERITIES: tuple[Severity, ...] = ("high", "medium", "low")  # the worst first


class Insight(Record):
    """Something that a Judge found out and that holds beyond one kernel; ``text`` is quoted as data where shown."""

    type: InsightType
    tag: str  # a short slug: what it is about
    severity: Severity
    text: str


class Advice(Record):
    """One structured piece of advice from a Judge: exactly one bottleneck, one method, one plan; and what it found."""

    mode: Literal["repair", "optimise", "stop"]
    bottleneck: str
    method: str
    plan: str
    action: dict[str, Any] = {}  # for the offline Coder, for example {"knob": "UNROLL", "value": 4}
    expected: str = ""
    insights: tuple[Insight, ...] = ()


class LLMCall(Record):
    """One reply of a language model. Unknown cost is None, never 0.

    ``key`` is what the reply is found under when the same question comes again. ``input_tokens`` counts all of the
    prompt, cached or not, and ``output_tokens`` all that was generated.
    """

    role: str
    provider: str
    model: str
    prompt_sha256: str
    reply_sha256: str
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost_usd: float | None = None
    seconds: float = 0.0
    stop: Literal["complete", "length", "refused"] = "complete"  # why it ended
    key: str | None = None
    problem: str | None = None
    sample: int = 0
    attempt: int = 0


def _without_folders(recipe: str) -> str:
    return recipe.rpartition("/")[2] if recipe.endswith(".toml") else recipe


class RunConfig(Record):
    """What a run was asked to do; stored with it, and all that a resume needs.

    Of a recipe that was read from a file, ``recipe`` is the file's name: boards show it, and its folders are nobody's
    business there. ``settings`` has the path.
    """

    problems: tuple[str, ...]
    coder: str = "offline"
    models: tuple[str, ...] = ()  # that write kernels beside the coder
    judge: str = "offline"
    verifier: str = "none"
    backend: Backend = "cpp"
    rounds: int = Field(default=6, ge=1)
    max_minutes: float | None = None
    max_cost_usd: float | None = None
    max_tokens: int | None = None
    max_device_seconds: float | None = None
    sandbox: str = "auto"
    threads: int = Field(default=1, ge=1)
    baselines: tuple[str, ...] = ("eager", "compile")
    recipe: Annotated[str, AfterValidator(_without_folders)] = "default"
    search: Mapping[str, Any] | None = None  # the recipe's plan of an evolutionary search; None where it has none
    every_variant: bool = False  # its problems are all their variants: those too small to time are left alone
    tune: Mapping[str, Any] | None = None  # the plan of a search of one kernel's knobs; None where the run is none
    bench: Mapping[str, Any] | None = None  # the plan of independent samples of each problem; None where it has none
    suite_dirs: tuple[str, ...] = ()
    settings: Mapping[str, Any] = {}
