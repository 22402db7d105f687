"""What a step of the loop costs by itself: our own CPU time, with replies and verdicts that are there at once.

    python benchmarks/agents.py --output benchmarks/results/MACHINE/agents.json

Everything but the models and the referee is real: prompts, budget, reply log, step with its saved state, store. A step
is one round: the Coder's reply, a verdict, the Judge's reply. Confirmations count with the rounds that led to them.

Machines differ by a factor of three in how fast they run Python, so a plain loop is timed beside it: two records are
compared by their ratios to that.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from kernelwright.agents.llm import Reply, Request, Usage, _models
from kernelwright.campaign import Campaign
from kernelwright.config import Settings
from kernelwright.datasets import load_suite
from kernelwright.evaluator import Confirm, environment
from kernelwright.records import (
    Candidate,
    Correctness,
    Environment,
    Evaluation,
    Interval,
    Problem,
    Profile,
    Speedup,
    Stage,
    Status,
    Timing,
    sha256_text,
)
from kernelwright.store import Store

SOURCE = """import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r'''
extern "C" void twice(const float* x, float* y, int64_t n) {{
  for (int64_t i = 0; i < n; i++) y[i] = x[i] + x[i];
  (void)"{name}";  // another program each time
}}
'''
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
"""
ADVICE = {"bottleneck": "memory: 80% of a copy", "method": "fuse", "plan": "one pass", "expected_effect": "1.1x"}


class InstantModel:
    """Answers at once, and something else to every prompt."""

    metered = True

    def __init__(self, spec: str) -> None:
        self.name, _, self.model = spec.partition(":")

    def send(self, request: Request, *, on_text: Callable[[int], None] = lambda characters: None) -> Reply:
        """A kernel, or advice."""
        name = request.prompt_sha256[:12]
        reply = ADVICE if request.place.role == "judge" else {"plan": name, "source": SOURCE.format(name=name)}
        return Reply(json.dumps(reply), "complete", Usage(3000, 400), 0.0, self.model)

    def close(self) -> None:
        """Nothing is open."""


class InstantReferee:
    """Passes everything at once, with a speedup that grows by chance of the hash."""

    def __init__(self, here: Environment) -> None:
        self._here = here

    def environment_for(self, backend: str) -> Environment:
        """This machine."""
        return self._here

    @contextmanager
    def open(self, problem: Problem, **options: Any) -> Iterator[InstantSession]:
        """A session."""
        yield InstantSession(self._here, problem)

    def __enter__(self) -> InstantReferee:
        return self

    def __exit__(self, *details: object) -> None:
        pass


class InstantSession:
    """Of one problem."""

    def __init__(self, here: Environment, problem: Problem) -> None:
        self._here = here
        self._problem = problem

    def machine_code(self, candidate: Candidate) -> str:
        """Nothing is built."""
        return ""

    def judge(self, candidate: Candidate, depth: Any = None, **options: Any) -> Evaluation:
        """A verdict as the referee would write it, profile and all."""
        confirm = isinstance(depth, Confirm)
        from kernelwright.records import Verdict

        median = 1.0 + int(sha256_text(candidate.source)[:4], 16) / 65536
        speedup = Speedup(median=median, low=median * 0.98, high=median * 1.02, faster=median > 1.05)
        timing = Timing(
            latency_ms=Interval(median=0.3, low=0.29, high=0.31),
            processes=5 if confirm else 1,
            pairs=24,
            threads=1,
            confirmed=confirm,
            noise_bound=0.014,
            speedup={"eager": speedup, "compile": speedup},
        )
        verdict = Verdict(
            candidate=candidate.sha256,
            problem=candidate.problem_id,
            backend=candidate.backend,
            stage=Stage.CONFIRMED if confirm else Stage.TIMED,
            status=Status.PASSED,
            correctness=Correctness(
                trials=12, variants=4, check_set="0" * 16, max_error=1.0, error_budget=4.0, kernelbench_allclose=True
            ),
            timing=timing,
            profile=Profile(rung="callgrind", bound="memory", metrics={"distance_to_roofline": 2.0}),
            environment=self._here.id,
            sandbox=("bubblewrap",),
            seconds={"build": 0.1, "check": 0.2, "time": 0.5},
        )
        return Evaluation(candidate=candidate, verdict=verdict, environment=self._here)

    def call(self, entry: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        """What the lint asks."""
        return {"findings": []}

    def small(self, backend: str) -> None:
        """Nothing is checked in other sizes."""

    def compile_ahead(self, backend: str) -> None:
        """There is nothing to compile."""

    def builds_ahead(self, backend: str) -> bool:
        """Nothing is built."""
        return False

    def build_ahead(self, candidate: Candidate) -> None:
        """Nothing is built."""


def cpu_seconds() -> float:
    """Of this process, all threads, user and system."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def interpreter_ms() -> float:
    """CPU time of a loop of a million multiplications: how fast this machine runs Python."""
    before, total = time.process_time(), 0
    for number in range(1_000_000):
        total += number * number
    return 1000 * (time.process_time() - before)


def problems(count: int) -> list[Problem]:
    """So many, real ones again and again under other names."""
    suite = list(load_suite("kernelwright", None, ()))
    found: Sequence[Problem] = [suite[number % len(suite)] for number in range(count)]
    return [
        problem.model_copy(update={"id": f"{problem.id}_{number}", "name": f"{problem.name}_{number}"})
        for number, problem in enumerate(found)
    ]


def measure(count: int, rounds: int, side_by_side: int) -> dict[str, float]:
    """One run; milliseconds of CPU and of the wall for each step."""
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(_models, "open_provider", lambda s, _: InstantModel(s)),
    ):
        settings = Settings(
            store=Path(folder) / "store.db",
            cache_dir=Path(folder) / "cache",
            coder="openai:gpt-5.4",
            judge="anthropic:claude-opus-5-5",
            rounds=rounds,
            parallel_problems=side_by_side,
        )
        asked = problems(count)
        here = environment(1)
        with Store.open(settings.store) as store:
            campaign = Campaign(settings, store, open_referee=lambda _: InstantReferee(here))
            wall, cpu = time.perf_counter(), cpu_seconds()
            result = campaign.run(asked)
            wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
        assert result.status == "finished", result
        assert all(row.rounds >= rounds for row in result.rows), "a problem ended before its rounds did"
    steps = count * rounds  # evaluations are more: races of kernels that are known
    return {"steps": steps, "cpu_ms_a_step": 1000 * cpu / steps, "wall_ms_a_step": 1000 * wall / steps}


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {
        "environment": environment(1).model_dump(mode="json"),
        "interpreter_ms": statistics.median(interpreter_ms() for _ in range(5)),
    }
    print(f"a million multiplications: {found['interpreter_ms']:.0f} ms of CPU")
    for side_by_side in (1, 8):
        runs = [measure(options.problems, options.rounds, side_by_side) for _ in range(options.repetitions)]
        median = statistics.median(run["cpu_ms_a_step"] for run in runs)
        found[f"{side_by_side} problems at once"] = {"runs": runs, "median_cpu_ms_a_step": median}
        print(f"{side_by_side} problems at once: {median:.1f} ms of CPU a step (median of {len(runs)} runs)")
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
