"""The views that fill the templates: a device, a task, kernels with their own evidence, and measured moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import Field, model_validator

from kernelwright.prompts._metrics import Metric, metrics_for
from kernelwright.records import (
    Backend,
    Candidate,
    DeviceClass,
    Finding,
    InputDomain,
    Interval,
    KernelResources,
    KnobValue,
    Problem,
    ProblemMeta,
    Profile,
    Record,
    Speedup,
    Stage,
    Status,
    Verdict,
)
from kernelwright.records.problems import OwnKernels
from kernelwright.records.verdicts import FailedStage

__all__ = ["DeviceFacts", "KernelView", "Move", "Task"]

_MESSAGES = ("compiler", "worker output")


class DeviceFacts(Record):
    """The device that kernels are judged on. ``facts`` maps labels to values with units, in the order shown."""

    name: str
    device_class: DeviceClass
    facts: dict[str, str] = Field(default_factory=dict)


class Task(Record):
    """The problem to make fast, and its conditions.

    ``variants`` are the settings of the reference's constants that are checked, the timed one first. For a GPU that is
    not here, they are the settings to write for, and ``checked_here`` has the small ones that are checked.
    ``baselines`` maps each baseline to its measured latency in ms, None if it is not known yet. ``own_kernels``: how
    much of the work own kernels have to do. ``reduced_precision``: formats that may be used inside of float32.
    """

    problem_id: str
    source: str
    title: str = ""
    category: str = "other"
    dtype: str = "float32"
    variants: tuple[dict[str, KnobValue], ...] = ({},)
    checked_here: tuple[dict[str, KnobValue], ...] = ()
    inputs: dict[str, InputDomain] = Field(default_factory=dict)
    tolerance_scale: float = 1.0
    reduced_precision: tuple[str, ...] = ()
    mode: str = "eval"
    backward: bool = False
    randomness: str = "none"
    weights: str = "inputs"
    heavy_ops: tuple[str, ...] = ()
    own_kernels: OwnKernels = "some"
    backend: Backend
    threads: int = 1
    baselines: dict[str, float | None] = Field(default_factory=dict)

    @classmethod
    def of(
        cls,
        problem: Problem,
        backend: Backend,
        *,
        device_class: DeviceClass = "cpu",
        threads: int = 1,
        baselines: Mapping[str, float | None] | None = None,
        own_kernels: OwnKernels = "some",
        allow_precision: Sequence[str] = (),
    ) -> Task:
        """The task of a problem for one backend.

        Args:
            device_class: class whose shapes are used; "interpreter" for GPU kernels on a machine without a GPU.
            allow_precision: reduced precision that the run allows besides that of the problem.
        """
        meta: ProblemMeta = problem.meta
        without_gpu = device_class == "interpreter"
        return cls(
            problem_id=problem.id,
            source=problem.source,
            title=meta.title,
            category=meta.category,
            dtype=meta.dtype,
            variants=meta.variants_for("gpu" if without_gpu else device_class),
            checked_here=meta.variants_for("interpreter") if without_gpu else (),
            inputs=meta.inputs,
            tolerance_scale=meta.tolerance.scale,
            reduced_precision=tuple(dict.fromkeys([*meta.tolerance.reduced_precision, *allow_precision])),
            mode=meta.mode,
            backward=meta.backward,
            randomness=meta.randomness,
            weights=meta.weights,
            heavy_ops=meta.heavy_ops,
            own_kernels=own_kernels,
            backend=backend,
            threads=threads,
            baselines=dict(baselines or {}),
        )


class KernelView(Record):
    """One kernel and the evidence on exactly this kernel. There is none (``status`` is None) if it was not judged yet.

    ``messages`` has the output of its compiler, and its own output. ``note`` is its author's rationale.
    """

    sha256: str
    source: str
    backend: Backend
    knobs: dict[str, KnobValue] = Field(default_factory=dict)
    note: str = ""
    status: Status | None = None
    stage: Stage | None = None
    failed_stage: FailedStage | None = None
    reason: str = ""
    findings: tuple[Finding, ...] = ()
    max_error: float | None = None  # in units of honest rounding, as is the budget
    error_budget: float | None = None
    latency_ms: Interval | None = None
    speedup: dict[str, Speedup] = Field(default_factory=dict)
    own_kernel_share: float | None = None
    profile: Profile | None = None
    messages: str = ""

    @model_validator(mode="after")
    def _unjudged_has_no_evidence(self) -> KernelView:
        evidence = (self.stage, self.reason, self.findings, self.latency_ms, self.speedup, self.profile)
        if self.status is None and any(evidence):
            raise ValueError("evidence without a status")
        return self

    @classmethod
    def of(
        cls, candidate: Candidate, verdict: Verdict | None = None, artifacts: Mapping[str, str] | None = None
    ) -> KernelView:
        """A candidate with the verdict on it.

        Args:
            artifacts: artifacts of its evaluation, which contain the messages.

        Raises:
            ValueError: the verdict is on another candidate.
        """
        said = artifacts or {}
        own = cls(
            sha256=candidate.sha256,
            source=candidate.source,
            backend=candidate.backend,
            knobs=candidate.knobs,
            note=candidate.note,
            messages="\n".join(said[name].rstrip() for name in _MESSAGES if said.get(name, "").strip()),
        )
        if verdict is None:
            return own
        if verdict.candidate != candidate.sha256:
            raise ValueError(f"the verdict is on {verdict.candidate[:12]}, the candidate is {candidate.sha256[:12]}")
        correctness, timing = verdict.correctness, verdict.timing
        return own.model_copy(
            update={
                "status": verdict.status,
                "stage": verdict.stage,
                "failed_stage": verdict.failed_stage,
                "reason": verdict.reason,
                "findings": verdict.findings,
                "max_error": None if correctness is None else correctness.max_error,
                "error_budget": None if correctness is None else correctness.error_budget,
                "latency_ms": None if timing is None else timing.latency_ms,
                "speedup": {} if timing is None else timing.speedup,
                "own_kernel_share": verdict.own_kernel_share,
                "profile": verdict.profile,
            }
        )

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The numbers of its profile that are relevant to its bottleneck."""
        return metrics_for(self.profile)

    @property
    def resources(self) -> tuple[KernelResources, ...]:
        """The resources that its GPU kernels take, for one architecture if the profile has several."""
        kernels = () if self.profile is None else self.profile.kernels
        architectures = [kernel.architecture for kernel in kernels]
        shown = "sm_90" if "sm_90" in architectures else next(iter(architectures), "")
        return tuple(kernel for kernel in kernels if kernel.architecture == shown)


class Move(Record):
    """One measured step of the search: the parent and the child kernel, the change, and its result.

    ``ratio`` is the child's speed over its parent's, above 1 if the child is faster; None if one of them has no time.
    ``speedup`` is the child's speedup over the first baseline.
    """

    child: str
    parent: str | None = None
    plan: str = ""
    operator: str = "new"
    status: Status
    failed_stage: FailedStage | None = None
    reason: str = ""
    ratio: Interval | None = None
    speedup: Speedup | None = None

    @classmethod
    def of(
        cls,
        candidate: Candidate,
        verdict: Verdict,
        *,
        parent: Verdict | None = None,
        plan: str = "",
        baseline: str = "eager",
    ) -> Move:
        """A judged candidate as a move.

        Args:
            parent: the verdict on the parent kernel, the first one if there are two.
            plan: the intended change; if empty, the candidate's own note.
        """
        speedup = verdict.speedup(baseline)
        return cls(
            child=candidate.sha256,
            parent=candidate.parents[0] if candidate.parents else None,
            plan=plan or candidate.note,
            operator=candidate.operator,
            status=verdict.status,
            failed_stage=verdict.failed_stage,
            reason=verdict.reason,
            ratio=_ratio_to(parent, verdict, baseline),
            speedup=speedup,
        )

    @property
    def passed(self) -> bool:
        """Whether the child passed."""
        return self.status is Status.PASSED

    @property
    def outcome(self) -> str:
        """The measurement, or the failure with its reason, which is untrusted text."""
        if not self.passed:
            stage = f" at {self.failed_stage}" if self.failed_stage else ""
            return f"{self.status.value}{stage}: {self.reason}"
        if self.speedup is None:
            return "right, not timed"
        own = f"{self.speedup.median:.2f}x [{self.speedup.low:.2f}, {self.speedup.high:.2f}] over the baseline"
        if self.ratio is None:
            return own
        return f"{self.ratio.low:.2f}x to {self.ratio.high:.2f}x of its parent, {own}"


def _ratio_to(parent: Verdict | None, verdict: Verdict, baseline: str) -> Interval | None:
    """The speed of a kernel over that of its parent, from a race of the two if there was one."""
    if parent is None:
        return None
    if verdict.timing is not None and (raced := verdict.timing.rivals.get(parent.candidate)) is not None:
        return Interval(median=raced.median, low=raced.low, high=raced.high)
    return _ratio(verdict.speedup(baseline), parent.speedup(baseline))


def _ratio(child: Speedup | None, parent: Speedup | None) -> Interval | None:
    """The ratio of two speedups over one baseline, with the widest interval that both allow."""
    if child is None or parent is None or min(child.low, parent.low) <= 0:
        return None
    return Interval(median=child.median / parent.median, low=child.low / parent.high, high=child.high / parent.low)
