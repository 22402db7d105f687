"""A referee, a coder and a judge that do nothing real, for tests of everything around them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kernelwright.agents import StepContext
from kernelwright.agents.registry import coders, judges
from kernelwright.agents.roles import Proposal
from kernelwright.config import Settings
from kernelwright.datasets._fit import FIT_ENTRY
from kernelwright.datasets._lint import LINT_ENTRY
from kernelwright.errors import InvalidReferenceError, KernelwrightError
from kernelwright.evaluator import Check, Confirm, Search
from kernelwright.pool import Job, Seat, method_of, version
from kernelwright.records import (
    Advice,
    Candidate,
    Correctness,
    Environment,
    Evaluation,
    InputGenerator,
    Interval,
    Problem,
    Profile,
    Speedup,
    Stage,
    Status,
    Timing,
    TimingSample,
    Verdict,
    sha256_text,
)
from kernelwright.records.verdicts import BuiltCode, TimedVariant

REFERENCE = """
import torch
from torch import nn

N = 8


class Model(nn.Module):
    def forward(self, x):
        return x + 1


def get_inputs():
    return [torch.randn(N)]


def get_init_inputs():
    return []
"""

ENVIRONMENT = Environment(
    device="cpu",
    device_class="cpu",
    cpu="test",
    cores=2,
    os="linux",
    python="3",
    torch="2",
    compiler="g++",
    threads=1,
)
LAYERS = ("bubblewrap", "namespaces:user,pid")


def make_problem(name: str = "plus_one", source: str = REFERENCE) -> Problem:
    return Problem(id=f"test/level1/{name}", suite="test", level=1, name=name, source=source)


def make_candidate(problem: Problem, source: str = "v0\n", **more: Any) -> Candidate:
    return Candidate(problem_id=problem.id, source=source, backend="cpp", **more)


def speedup_of(median: float) -> Speedup:
    return Speedup(median=median, low=median * 0.98, high=median * 1.02, faster=median * 0.98 > 1.014)


def make_evaluation(
    candidate: Candidate,
    *,
    speedup: float | None = 2.0,
    compiled: float | None = 1.2,
    status: Status = Status.PASSED,
    confirmed: bool = False,
    refused_by_confirmation: bool = False,
    latency_ms: float = 0.5,
    sandbox: tuple[str, ...] = LAYERS,
    profile: Profile | None = None,
    rivals: Mapping[str, float] | None = None,
    variant: TimedVariant | None = None,
    control: bool = False,
    label: Literal["kernel", "hybrid", "library"] | None = None,
) -> Evaluation:
    """An evaluation as the referee would make it."""
    passed = status is Status.PASSED
    timed = passed and speedup is not None
    speedups = {"eager": speedup_of(speedup)} if speedup is not None else {}
    if compiled is not None:
        speedups["compile"] = speedup_of(compiled)
    timing = Timing(
        latency_ms=Interval(median=latency_ms, low=latency_ms * 0.99, high=latency_ms * 1.01),
        processes=5 if confirmed else 1,
        pairs=12,
        threads=1,
        confirmed=confirmed,
        noise_bound=0.014,
        speedup=speedups,
        rivals={sha256: speedup_of(ratio) for sha256, ratio in (rivals or {}).items()},
    )
    failed = "confirm" if refused_by_confirmation else (None if passed else "check")
    stage = Stage.CHECKED if passed else Stage.COMPILED
    if timed:
        stage = Stage.CONFIRMED if confirmed else Stage.TIMED
    verdict = Verdict(
        candidate=candidate.sha256,
        problem=candidate.problem_id,
        backend=candidate.backend,
        control=control,
        stage=stage,
        failed_stage=failed,
        status=status,
        reason="" if passed else "it is wrong",
        correctness=Correctness(
            trials=6, variants=2, check_set="c" * 16, max_error=1.0, error_budget=4.0, kernelbench_allclose=True
        ),
        timing=timing if timed else None,
        own_kernel_label=label,
        eligible=label != "library",
        environment=ENVIRONMENT.id,
        variant=variant,
        sandbox=sandbox,
        profile=profile,
        seconds={"build": 0.1},
    )
    phase = "confirm" if confirmed else "search"
    samples = [TimingSample(role="candidate", process=0, pair=0, order=0, calls=9, latency_ms=latency_ms, phase=phase)]
    return Evaluation(
        candidate=candidate,
        verdict=verdict,
        samples=tuple(samples) if timed else (),
        environment=ENVIRONMENT,
        artifacts={"compiler": "warning: none"},
    )


def word_of(candidate: Candidate) -> str:
    """What a fake referee calls a candidate: its first line, and the knobs that are set."""
    return " ".join([candidate.source.splitlines()[0], *(f"{k}={v}" for k, v in sorted(candidate.knobs.items()))])


def no_point(name: str) -> None:
    """A point in the run where nothing happens."""


@dataclass
class FakeReferee:
    """Judges by a table: the speed-up of a candidate is what ``speedups`` says for its source's first line."""

    speedups: Mapping[str, float] = field(default_factory=dict)
    statuses: Mapping[str, Status] = field(default_factory=dict)
    confirmed_speedups: Mapping[str, float] = field(default_factory=dict)
    faults: dict[str, list[KernelwrightError]] = field(default_factory=dict)  # by problem name, raised one by one
    point: Callable[[str], None] = no_point
    judged: list[tuple[str, str, bool]] = field(default_factory=list)
    weaknesses: dict[str, Sequence[str] | KernelwrightError] = field(default_factory=dict)  # by problem name, or id
    linted: list[str] = field(default_factory=list)
    fitted: Mapping[str, int] = field(default_factory=dict)  # the sizes in which problems fit a CPU
    small: Mapping[str, Problem] = field(default_factory=dict)  # in which a backend's kernels are checked
    archives: dict[str, tuple[InputGenerator, ...]] = field(default_factory=dict)  # by problem name, as opened last
    profiles: Mapping[str, Profile] = field(default_factory=dict)  # of those that were asked to be explained
    beside: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)  # judged beside rivals, by first lines
    machine_codes: Mapping[str, str] = field(default_factory=dict)
    code_metrics: Mapping[str, dict[str, float]] = field(default_factory=dict)
    built: list[tuple[str, ...]] = field(default_factory=list)  # side by side
    untimed: frozenset[str] = frozenset()  # backends whose kernels are only checked

    @contextmanager
    def open(
        self,
        problem: Problem,
        *,
        backend: str = "cpp",
        baselines: Sequence[str] = (),
        on_stage: Callable[[str], None] | None = None,
        archive: Sequence[InputGenerator] = (),
        ready: bool = True,
    ) -> Any:
        self.point(f"open {problem.name}" if ready else f"tools of {problem.name}")
        self.archives[problem.name] = tuple(archive)
        waiting = self.faults.get(problem.name, [])
        if waiting and isinstance(waiting[0], InvalidReferenceError):
            raise waiting[0]
        yield FakeSession(self, problem, on_stage or no_point)

    def environment_for(self, backend: str) -> Environment:
        return ENVIRONMENT

    def evaluate(
        self, candidate: Candidate, problem: Problem, depth: Any = None, *, on_stage: Any = None, **more: Any
    ) -> Evaluation:
        more.pop("baselines", None)
        self.archives[problem.name] = tuple(more.pop("archive", ()))
        return FakeSession(self, problem, on_stage or no_point).judge(candidate, depth, **more)

    def __enter__(self) -> FakeReferee:
        return self

    def __exit__(self, *details: object) -> None:
        self.point("closed")


@dataclass
class FakeSession:
    referee: FakeReferee
    problem: Problem
    on_stage: Callable[[str], None]

    def judge(
        self,
        candidate: Candidate,
        depth: Check | None = None,
        *,
        control: bool = False,
    ) -> Evaluation:
        word, depth = word_of(candidate), depth or Search()
        confirm, time = isinstance(depth, Confirm), isinstance(depth, Search | Confirm)
        explain, rivals = getattr(depth, "explain", False), getattr(depth, "rivals", ())
        if rivals:
            self.referee.beside.append((word, tuple(word_of(rival) for rival in rivals)))
        self.referee.point(f"judging {word} {confirm}")
        self.on_stage("build")
        if self.referee.faults.get(self.problem.name):
            raise self.referee.faults[self.problem.name].pop(0)
        self.referee.judged.append((self.problem.name, word, confirm))
        status = self.referee.statuses.get(f"{word} confirmed" if confirm else word, Status.PASSED)
        speedup = self.referee.speedups.get(word, 1.0)
        if confirm:
            speedup = self.referee.confirmed_speedups.get(word, speedup)
        evaluation = make_evaluation(
            candidate,
            speedup=speedup if time and candidate.backend not in self.referee.untimed else None,
            status=status,
            confirmed=confirm and status is Status.PASSED,
            refused_by_confirmation=confirm and status is not Status.PASSED,
            profile=self.referee.profiles.get(word) if explain else None,
            rivals={rival.sha256: self._ratio(speedup, rival, confirm) for rival in rivals},
            variant=self._variant(),
            control=control,
        )
        self.referee.point(f"judged {word} {confirm}")
        return evaluation

    def as_kernelbench(self, evaluation: Evaluation) -> Evaluation:
        return evaluation

    def _variant(self) -> TimedVariant:
        constants = self.problem.meta.variants_for("cpu")[0]
        shape = [value for value in constants.values() if isinstance(value, int)]
        return TimedVariant(number=self.problem.variant, constants=constants, inputs=(f"x float32{shape}",))

    def _ratio(self, speedup: float, rival: Candidate, confirm: bool) -> float:
        """How much faster a candidate of that speedup is than a rival."""
        word = word_of(rival)
        other = self.referee.speedups.get(word, 1.0)
        return speedup / (self.referee.confirmed_speedups.get(word, other) if confirm else other)

    def machine_code(self, candidate: Candidate) -> str:
        return self.referee.machine_codes.get(word_of(candidate), "")

    def build_all(self, candidates: Sequence[Candidate]) -> tuple[BuiltCode, ...]:
        self.referee.built.append(tuple(word_of(candidate) for candidate in candidates))
        self.referee.point("built")
        codes = self.referee.code_metrics
        return tuple(
            BuiltCode(machine_code=self.machine_code(candidate), metrics=codes.get(word_of(candidate), {}))
            for candidate in candidates
        )

    def compile_ahead(self, backend: str) -> None:
        pass

    def builds_ahead(self, backend: str) -> bool:
        return False

    def build_ahead(self, candidate: Candidate) -> None:
        raise AssertionError("nothing is built ahead here")

    def small(self, backend: str) -> Problem | None:
        return self.referee.small.get(backend)

    def call(self, entry: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        if entry == FIT_ENTRY:
            return {"sizes": dict(self.referee.fitted), "fits": True, "reason": ""}
        assert entry == LINT_ENTRY, "the scripted coder captures nothing"
        self.referee.linted.append(self.problem.name)
        found = self.referee.weaknesses.get(self.problem.id, self.referee.weaknesses.get(self.problem.name, ()))
        if isinstance(found, KernelwrightError):
            raise found
        return {"findings": [{"rule": rule, "severity": "warning", "message": f"{rule}!"} for rule in found]}


class ScriptedCoder:
    """Proposes ``v0``, ``v1``, ``v2``... and then has nothing more to offer after ``most``."""

    name = "scripted"
    backends = frozenset({"cpp"})

    def __init__(self, most: int = 99, point: Callable[[str], None] = no_point) -> None:
        self.most = most
        self.point = point

    def propose(self, context: StepContext) -> Proposal:
        self.point(f"proposing {context.round}")
        if len(context.attempts) >= self.most:
            return Proposal(None, "nothing more to offer")
        candidate = Candidate(
            problem_id=context.problem.id,
            source=f"v{context.round}\n# {sha256_text(context.problem.id)}\n",
            backend="cpp",
            parents=(context.best.candidate.sha256,) if context.best else (),
            author="scripted",
        )
        return Proposal(candidate, f"version {context.round}", {"round": context.round})


class ScriptedJudge:
    """Says nothing useful; stops the loop after ``stop_after`` rounds."""

    name = "scripted"

    def __init__(self, stop_after: int = 99, point: Callable[[str], None] = no_point) -> None:
        self.stop_after = stop_after
        self.point = point

    def advise(self, context: StepContext, evaluation: Evaluation) -> Advice:
        self.point(f"advising {context.round}")
        mode = "stop" if len(context.attempts) >= self.stop_after else "optimise"
        return Advice(mode=mode, bottleneck="none known", method="go on", plan=f"after {context.round}")


def register_scripted_roles(point: Callable[[str], None] = no_point) -> None:
    """Make ``--coder scripted`` and ``--judge scripted`` known in this process."""
    if "scripted" not in coders.words():
        coders.register("scripted", lambda rest: ScriptedCoder(int(rest or 99), point))
        judges.register("scripted", lambda rest: ScriptedJudge(int(rest or 99), point))


def line_recipe(folder: Path) -> str:
    """A recipe that follows one line of kernels instead of evolving many."""
    path = folder / "line.toml"
    path.write_text('summary = "one line of kernels"\n')
    return str(path)


@contextmanager
def default_signals() -> Any:
    """Keep a test's handlers from leaking."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Seats:
    """A roster of seats. A test may change ``there``."""

    kind = "test"

    def __init__(self, *seats: Seat) -> None:
        self.there = {seat.name: seat for seat in seats}

    def names(self) -> tuple[str, ...]:
        return tuple(self.there)

    def seat(self, name: str) -> Seat:
        return self.there[name]

    def close(self) -> None:
        pass


def make_job(source: str = "v0\n", name: str = "plus_one", **more: Any) -> Job:
    """A question about a candidate of a small problem, as a run asks it."""
    problem = make_problem(name)
    given = {"environment": ENVIRONMENT.id, "settings": method_of(Settings()), **more}
    return Job(
        version=version(),
        run="R",
        problem=problem,
        backend="cpp",
        candidate=make_candidate(problem, source),
        **given,
    )
