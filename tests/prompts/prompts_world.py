"""Views for every prompt: a problem, a kernel for each backend, what the referee said of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernelwright.datasets import find_problem
from kernelwright.prompts import DeviceFacts, KernelView, Move, Task, exemplar_for, read_exemplar, render
from kernelwright.records import (
    Advice,
    Backend,
    Candidate,
    Correctness,
    Finding,
    Interval,
    KernelResources,
    Problem,
    Profile,
    Speedup,
    Stage,
    Status,
    Timing,
    Verdict,
)

SCHEMA = '{"type": "object", "properties": {"marks_the_schema": {"type": "string"}}}'
NEEDS = {
    "coder-cross": ("device", "parents", "history", "exemplar", "advice", "inspirations", "insights", "scratchpad"),
    "coder-edit": (
        "device",
        "kernel",
        "history",
        "exemplar",
        "advice",
        "inspirations",
        "insights",
        "scratchpad",
        "paid",
    ),
    "coder-improve": (
        "device",
        "kernel",
        "history",
        "exemplar",
        "advice",
        "inspirations",
        "insights",
        "scratchpad",
        "paid",
    ),
    "coder-new": ("device", "history", "exemplar", "advice", "inspirations", "insights", "scratchpad", "paid"),
    "coder-repair": ("device", "kernel", "history", "exemplar", "advice", "inspirations", "insights", "scratchpad"),
    "coder-simplify": ("device", "kernel", "history", "exemplar", "advice", "inspirations", "insights", "scratchpad"),
    "coder-transfer": (
        "device",
        "kernel",
        "history",
        "exemplar",
        "advice",
        "inspirations",
        "insights",
        "scratchpad",
        "moves",
        "diff",
    ),
    "judge-optimise": ("device", "kernel", "history"),
    "judge-repair": ("device", "kernel", "history"),
    "scratchpad": ("device", "history", "failures", "insights", "scratchpad"),
    "tester": ("known", "survivors"),
    "verifier": ("device", "kernel"),
}


def speedup(median: float) -> Speedup:
    return Speedup(median=median, low=median * 0.97, high=median * 1.03, faster=median > 1.1)


def timing(median: float) -> Timing:
    latency = Interval(median=1 / median, low=0.97 / median, high=1.03 / median)
    return Timing(
        latency_ms=latency, processes=1, pairs=24, threads=1, confirmed=False, noise_bound=0.03,
        speedup={"eager": speedup(median)},
    )  # fmt: skip


def passed(candidate: Candidate, median: float, profile: Profile | None = None) -> Verdict:
    return Verdict(
        candidate=candidate.sha256, problem=candidate.problem_id, backend=candidate.backend, stage=Stage.TIMED,
        status=Status.PASSED, timing=timing(median), profile=profile, environment="e", own_kernel_share=0.9,
        correctness=Correctness(
            trials=9, variants=4, check_set="c", max_error=0.8, error_budget=4.1, kernelbench_allclose=True
        ),
    )  # fmt: skip


def failed(candidate: Candidate, reason: str, evidence: str = "x") -> Verdict:
    return Verdict(
        candidate=candidate.sha256, problem=candidate.problem_id, backend=candidate.backend, stage=Stage.SCREENED,
        failed_stage="build", status=Status.COMPILE_ERROR, reason=reason, environment="e",
        findings=(Finding(rule="torch-ops", effect="informs", where="line 3", evidence=evidence),),
    )  # fmt: skip


@dataclass(frozen=True)
class World:
    """Everything that one task's prompts can hold. Each text that somebody else wrote may be replaced."""

    problem: Problem
    backend: Backend
    source: str
    words: str = "an ordinary remark"

    def candidate(self, source: str | None = None, **more: Any) -> Candidate:
        return Candidate(
            problem_id=self.problem.id, source=source or self.source, backend=self.backend, note=self.words, **more
        )

    def kernel(self, name: str = "judge-repair") -> KernelView:
        made = self.candidate(knobs={"BLOCK": self.words})
        if name == "verifier":
            return KernelView.of(made)
        messages = {"compiler": f"kernel.cpp:3:1: error: {self.words}", "worker output": self.words}
        if "repair" in name:
            return KernelView.of(made, failed(made, self.words, self.words), messages)
        used = KernelResources(kernel=self.words, architecture="sm_90", registers=40, problem=self.words)
        profile = Profile(
            rung="ncu" if self.backend != "cpp" else "callgrind",
            bound="memory",
            metrics={"distance_to_roofline": 1.5, f"{self.words}/dram_pct": 40.0},
            notes=(self.words,),
            kernels=(used,),
        )
        return KernelView.of(made, passed(made, 1.4, profile), messages)

    def data(self, name: str) -> dict[str, Any]:
        parent = self.candidate("parent\n")
        child = self.candidate("child\n", parents=(parent.sha256,))
        moves = (
            Move.of(parent, passed(parent, 1.5), plan=self.words),
            Move.of(child, passed(child, 1.42), parent=passed(parent, 1.5), plan=self.words),
            Move.of(self.candidate("other\n", operator=self.words), failed(self.candidate("other\n"), self.words)),
        )
        advice = Advice(mode="repair", bottleneck=self.words, method=self.words, plan=self.words, expected=self.words)
        everything = {
            "device": DeviceFacts(name="a device", device_class="cpu", facts={"L2 cache": "1 MiB"}),
            "kernel": self.kernel(name),
            "parents": (self.kernel("judge-optimise"), self.kernel("judge-optimise")),
            "history": moves,
            "exemplar": exemplar_for(self.problem, self.backend),
            "advice": advice,
            "inspirations": (self.kernel("judge-optimise"),),
            "moves": (self.words, "a wider tile: 1.31x [1.28, 1.33]"),
            "diff": self.words,
            "paid": (self.words, "a narrower tile: 1.21x [1.18, 1.23]"),
            "insights": (self.words, "high bottleneck [memory]: two passes over x"),
            "scratchpad": self.words,
            "failures": (self.words,),
            "known": (self.words, "zeros"),
            "survivors": (self.kernel("verifier"),),
        }
        task = Task.of(
            self.problem,
            self.backend,
            device_class="cpu" if self.backend == "cpp" else "interpreter",
            baselines={"eager": 0.75, "compile": None},
        )
        return {"task": task, "schema_text": SCHEMA, **{key: everything[key] for key in NEEDS[name]}}

    def render(self, name: str, **other: Any):
        return render(name, **{**self.data(name), **other})


def make_world(backend: Backend = "cpp", **other: Any) -> World:
    """The built-in softmax and a backend's exemplar of one, unless told otherwise."""
    problem = other.pop("problem", None) or find_problem("kernelwright/level1/softmax")
    source = other.pop("source", None) or read_exemplar(backend, "softmax").source
    return World(problem, backend, source, **other)
