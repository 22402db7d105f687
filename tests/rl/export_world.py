"""Small stores of judged kernels, made by the store's own methods, without a referee."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

from kernelwright.records import (
    Advice,
    Candidate,
    Environment,
    Evaluation,
    Interval,
    LLMCall,
    Problem,
    ProblemMeta,
    RunConfig,
    Speedup,
    Stage,
    Status,
    Timing,
    Verdict,
    sha256_text,
)
from kernelwright.store import Store

REFERENCE = """import torch
from torch import nn
import torch.nn.functional as F

ROWS = 16


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.project = nn.Linear(width, width)

    def forward(self, x):
        hidden = self.project(x)
        return {0}(hidden) * 2.0


def get_inputs():
    return [torch.randn(ROWS, 8)]


def get_init_inputs():
    return [8]
"""


def reference(operator: str = "F.relu") -> str:
    """A problem's file, whose one activation is that operator."""
    return REFERENCE.replace("{0}", operator)


def machine(cpu: str = "some cpu", **more: Any) -> Environment:
    fields = {"device": "cpu", "device_class": "cpu", "cores": 2, "os": "linux", "python": "3.11", "torch": "2.13.0"}
    return Environment(**{**fields, "cpu": cpu, "compiler": "g++ 12", "threads": 1, **more})


HERE = machine()
CHECKER = machine(device="none", device_class="interpreter")


class World:
    """A store that is written to."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "store.db"
        self.store = Store.open(self.path)
        self._number = count()

    def problem(
        self, name: str = "softmax", operator: str = "F.relu", *, suite: str = "kernelwright", **more: Any
    ) -> Problem:
        meta = {key: more.pop(key) for key in tuple(more) if key in ProblemMeta.model_fields}
        fields = {"id": f"{suite}/level1/{name}", "suite": suite, "level": 1, "name": name}
        made = Problem(**{**fields, "source": reference(operator), "meta": ProblemMeta(**meta), **more})
        self.store.record_problem(made)
        return made

    def run(self, *problems: Problem, **config: Any) -> str:
        return self.store.create_run(
            RunConfig(problems=tuple(problem.id for problem in problems), **config), list(problems)
        )

    def judge(
        self,
        problem: Problem,
        *,
        low: float | None = 1.5,
        confirmed: bool = True,
        status: Status = Status.PASSED,
        environment: Environment = HERE,
        source: str | None = None,
        note: str = "a plan",
        run: str | None = None,
        step: int | None = None,
        action: dict[str, Any] | None = None,
        reason: str = "it is wrong",
        quarantine: str = "",
        candidate: Candidate | None = None,
        **fields: Any,
    ) -> Candidate:
        """A kernel with a verdict; ``low`` is its speedup's lower bound, None where it was not timed."""
        given = {"problem_id": problem.id, "backend": "cpp", "author": "ada", "note": note, **fields}
        candidate = candidate or Candidate(source=source or f"# kernel {next(self._number)}\nN = 1\n", **given)
        passed = status is Status.PASSED
        timed = passed and low is not None
        verdict = Verdict(
            candidate=candidate.sha256,
            problem=problem.id,
            backend=candidate.backend,
            stage=(Stage.CONFIRMED if confirmed and timed else Stage.TIMED if timed else Stage.CHECKED)
            if passed
            else Stage.COMPILED,
            status=status,
            reason="" if passed else reason,
            timing=timing(low, confirmed) if timed and low is not None else None,
            environment=environment.id,
        )
        made = self.store.record_evaluation(
            Evaluation(candidate=candidate, verdict=verdict, environment=environment),
            run_id=run,
            step=step,
            action=action,
        )
        if quarantine:
            self.store.quarantine(made, quarantine)
        return candidate

    def reply(self, run: str, problem: Problem, *, prompt: str, text: str, step: int = 0) -> str:
        """A model's reply that a run used; returns the call's id."""
        call = LLMCall(
            role="coder",
            provider="p",
            model="m",
            prompt_sha256=sha256_text(prompt),
            reply_sha256=sha256_text(text.encode("utf-8", "surrogatepass")),
            problem=problem.id,
        )
        made = self.store.keep_reply(call, prompt=prompt, reply=text, run_id=run, step=step)
        place = {"problem": problem.id, "step": step, "role": "coder", "sample": 0, "attempt": 0}
        self.store.record_use(run, made, prompt=prompt, reused=False, **place)
        return made

    def advise(self, run: str, candidate: Candidate, plan: str) -> None:
        """What a Judge said of the latest evaluation of a kernel."""
        latest = self.store.evaluations(run_id=run, candidate=candidate.sha256)[-1].id
        said = Advice(mode="optimise", bottleneck="memory", method="tiles", plan=plan)
        self.store.add_note(candidate.sha256, latest, "judge", said, run_id=run, step=0)


def timing(low: float, confirmed: bool) -> Timing:
    speedup = Speedup(median=low + 0.1, low=low, high=low + 0.2, faster=low > 1.014)
    latency = 1.0 / low
    return Timing(
        latency_ms=Interval(median=latency, low=0.9 * latency, high=1.1 * latency),
        processes=5 if confirmed else 1,
        pairs=12,
        threads=1,
        confirmed=confirmed,
        noise_bound=0.014,
        speedup={"eager": speedup, "compile": speedup},
    )
