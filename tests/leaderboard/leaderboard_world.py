"""Stores to look at, made by the store's own methods: ``World`` records what a test needs, ``fill`` everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from kernelwright.campaign import RunResult
from kernelwright.datasets import LintFinding, LintRecords
from kernelwright.leaderboard import create_app
from kernelwright.records import (
    Advice,
    Candidate,
    Correctness,
    Environment,
    Evaluation,
    Finding,
    Interval,
    KernelResources,
    LLMCall,
    Problem,
    ProblemMeta,
    Profile,
    RunConfig,
    Speedup,
    Stage,
    Status,
    Timing,
    TimingSample,
    Verdict,
    sha256_text,
)
from kernelwright.records.verdicts import TimedVariant
from kernelwright.store import Store

REFERENCE = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x + 1


def get_inputs():
    return [torch.randn(8)]


def get_init_inputs():
    return []
"""


def environment(cpu: str = "some cpu", **more: Any) -> Environment:
    """A machine."""
    fields = {"device": "cpu", "device_class": "cpu", "cores": 2, "os": "linux", "python": "3.11", "torch": "2.13.0"}
    return Environment(**{**fields, "cpu": cpu, "compiler": "g++ 12", "threads": 1, **more})


HERE, THERE = environment(), environment("another cpu")


class Judged(NamedTuple):
    """A kernel that was judged: its hash, the evaluation's id, and what was judged."""

    sha: str
    id: str
    candidate: Candidate


class World:
    """A store that is written to."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "store.db"
        self.path.write_bytes(_empty_store())
        self.store = Store.open(self.path)
        self._number = count()

    def problem(self, name: str = "softmax", *, suite: str = "suite", level: int = 1, **more: Any) -> Problem:
        """A problem that the store knows; ``category`` and ``note`` go into its metadata."""
        meta = {key: more.pop(key) for key in tuple(more) if key in ProblemMeta.model_fields}
        fields = {"id": f"{suite}/level{level}/{name}", "suite": suite, "level": level, "name": name}
        made = Problem(**{**fields, "source": REFERENCE, "meta": ProblemMeta(**meta), **more})
        self.store.record_problem(made)
        return made

    def run(self, *problems: Problem, status: str = "finished", **config: Any) -> str:
        """A run over problems, which the store learns of."""
        asked = {"problems": tuple(problem.id for problem in problems), "baselines": ("eager",), **config}
        run = self.store.create_run(RunConfig(**asked), problems)
        self.store.set_run_status(run, status)
        return run

    def candidate(self, problem: Problem, source: str | None = None, **more: Any) -> Candidate:
        """A kernel, of a source of its own where none is given."""
        fields = {"problem_id": problem.id, "backend": "cpp", "author": "ada", "source": source}
        return Candidate(**{**fields, "source": source or f"kernel {next(self._number)}\n", **more})

    def judge(
        self,
        problem: Problem,
        candidate: Candidate | None = None,
        *,
        low: float | None = 1.5,
        confirmed: bool = False,
        status: Status = Status.PASSED,
        environment: Environment = HERE,
        baselines: Sequence[str] = ("eager",),
        run: str | None = None,
        step: int | None = None,
        samples: int = 2,
        artifacts: Mapping[str, str] | None = None,
        action: Mapping[str, Any] | None = None,
        author: str = "ada",
        backend: str = "cpp",
        latency_ms: float | None = None,
        inputs: tuple[str, ...] = (),
        **verdict: Any,
    ) -> Judged:
        """A verdict on a kernel; ``low`` is its speedup's lower bound, None where it was not timed."""
        candidate = candidate or self.candidate(problem, author=author, backend=backend)
        passed = status is Status.PASSED
        timed = passed and low is not None
        reached = Stage.CONFIRMED if confirmed else Stage.TIMED if timed else Stage.CHECKED
        fields = {
            "candidate": candidate.sha256,
            "problem": problem.id,
            "backend": candidate.backend,
            "stage": reached if passed else Stage.COMPILED,
            "status": status,
            "reason": "" if passed else "it is wrong",
            "timing": _timing(low, confirmed, baselines, latency_ms) if timed else None,
            "environment": environment.id,
            "variant": TimedVariant(number=problem.variant, inputs=inputs) if inputs else None,
        }
        evaluation = Evaluation(
            candidate=candidate,
            verdict=Verdict(**{**fields, **verdict}),
            environment=environment,
            samples=tuple(_sample(number) for number in range(samples)) if timed else (),
            artifacts=dict(artifacts or {}),
        )
        made = self.store.record_evaluation(evaluation, run_id=run, step=step, action=action)
        return Judged(candidate.sha256, made, candidate)

    def reply(
        self,
        run: str,
        problem: Problem,
        text: str,
        *,
        prompt: str = "make it fast",
        cost: float | None = 0.25,
        **at: Any,
    ) -> str:
        """A model's reply that a run used; returns the call's id."""
        place = {"step": 1, "role": "coder", "sample": 0, "attempt": 0, **at}
        call = LLMCall(
            role=place["role"],
            provider="openai",
            model="some-model",
            prompt_sha256=sha256_text(prompt),
            reply_sha256=sha256_text(text.encode("utf-8", "surrogatepass")),
            input_tokens=100,
            output_tokens=20,
            cost_usd=cost,
            problem=problem.id,
        )
        made = self.store.keep_reply(call, prompt=prompt, reply=text, run_id=run, step=place["step"])
        self.store.record_use(run, made, problem=problem.id, prompt=prompt, reused=False, **place)
        return made

    def note(self, judged: Judged, method: str = "tile it", *, run: str | None = None, **advice: str) -> None:
        """What the Judge said of a kernel."""
        said = Advice(**{"mode": "optimise", "bottleneck": "memory", "method": method, "plan": "a plan", **advice})
        self.store.add_note(judged.sha, judged.id, "judge", said, run_id=run, step=1)


@cache
def _empty_store() -> bytes:
    """A store's file: bringing one up to date takes most of a second."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        Store.open(path).close()
        return path.read_bytes()


def _timing(low: float, confirmed: bool, baselines: Sequence[str], latency_ms: float | None) -> Timing:
    speedup = Speedup(median=low + 0.1, low=low, high=low + 0.2, faster=low > 1.014)
    latency = latency_ms or 1.0 / low
    return Timing(
        latency_ms=Interval(median=latency, low=0.9 * latency, high=1.1 * latency),
        processes=5 if confirmed else 1,
        pairs=12,
        threads=1,
        confirmed=confirmed,
        noise_bound=0.014,
        speedup=dict.fromkeys(baselines, speedup),
    )


def _sample(number: int) -> TimingSample:
    role = ("candidate", "eager")[number % 2]
    return TimingSample(role=role, process=0, pair=number // 2, order=number % 2, calls=9, latency_ms=0.5 + number)


def make_app(world: World, **options: Any) -> Any:
    """The leaderboard of a world; nothing is kept between two looks, unless it is said."""
    return create_app(world.path, **{"cached": False, "cache_dir": world.path.parent / "cache", **options})


class Filled(NamedTuple):
    """Where things are in a store of which every text was chosen."""

    problem: Problem
    run: str
    other_run: str
    parent: Judged
    child: Judged


def fill(world: World, text: Callable[[str], str]) -> Filled:
    """Record one of everything.

    Args:
        text: what stands in a field, by a name for it; the name of a problem may hold no NUL.
    """
    machine = environment(cpu=text("cpu"), device=text("device"), os=text("os"), compiler=text("compiler"))
    problem = world.problem(
        text("problem"), suite=text("suite"), category=text("category"), note=text("problem-note"),
        title=text("title"), source=f"{REFERENCE}# {text('reference')}\n",
    )  # fmt: skip
    finding = LintFinding(rule=text("lint-rule"), severity="warning", message=text("lint-message"))
    LintRecords(world.path.parent / "cache").put(problem, [finding])
    baselines = (text("baseline"), "eager")
    asked = {"recipe": text("recipe"), "coder": text("coder"), "judge": text("judge"), "baselines": baselines}
    run, other = (world.run(problem, status=status, **asked) for status in ("running", "finished"))
    prompt = text("prompt")

    def kernel(name: str, **more: Any) -> Candidate:
        return world.candidate(
            problem, f"x = 1\n# {text(name)}\n", author=text("author"), operator=text("operator"),
            note=text("candidate-note"), knobs={text("knob"): text("knob-value")}, **more,
        )  # fmt: skip

    about = {"environment": machine, "baselines": baselines, "inputs": (text("inputs"), "x float32[8]"), "run": run}
    parent = world.judge(problem, kernel("parent-source"), step=1, **about)
    world.note(
        parent, text("method"), run=run, bottleneck=text("bottleneck"), plan=text("plan"), expected=text("expected")
    )
    resources = KernelResources(kernel=text("gpu-kernel"), architecture=text("architecture"), problem=text("launch"))
    profile = Profile(
        rung=text("rung"), bound="memory", metrics={text("metric"): 2.0}, notes=(text("profile-note"),),
        kernels=(resources,),
    )  # fmt: skip
    child = world.judge(
        problem, kernel("child-source", parents=(parent.sha,), prompt_sha256=sha256_text(prompt)), step=2, low=2.0,
        artifacts={text("artifact-name"): text("artifact")}, sandbox=(text("sandbox"),), profile=profile,
        reason=text("passed-reason"), confirmed=True,
        correctness=Correctness(
            trials=1, variants=1, check_set="c", max_error=0.5, error_budget=1.0, kernelbench_allclose=True,
            archive=text("check-archive"), loads={text("distribution"): 0.5},
        ),
        findings=(Finding(rule=text("informs"), effect="informs", where=text("where"), evidence=text("evidence")),),
        **about,
    )  # fmt: skip
    world.note(child, text("own-method"), run=run)
    world.reply(run, problem, text("reply"), prompt=prompt, step=2)
    refusal = Finding(rule=text("refuses"), effect="refuses", where=text("at"), evidence=text("proof"))
    world.judge(
        problem, kernel("hack-source"), step=3, status=Status.REWARD_HACK, reason=text("reason"), findings=(refusal,),
        failed_stage="screen", **about,
    )  # fmt: skip
    world.store.quarantine(world.judge(problem, kernel("gone-source"), low=9.0, **about).id, text("withdrawn"))
    world.store.event(run, text("event"), {text("event-key"): text("event-value")})
    world.judge(problem, kernel("other-source"), **{**about, "run": other})
    outcome = RunResult(problem=problem.id, state="failed", reason=text("outcome"))
    world.store.set_problem_state(other, problem.id, "failed", outcome.model_dump_json())
    return Filled(problem, run, other, parent, child)
