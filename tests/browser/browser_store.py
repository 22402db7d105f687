"""A store with everything that pages can show: real runs, a replayed recording, many kernels, refusals, a live run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from campaign_fakes import FakeReferee, FakeSession, make_candidate, make_evaluation, make_problem, no_point

from kernelwright.campaign import Campaign, with_recipe
from kernelwright.config import Settings
from kernelwright.datasets import find_problem
from kernelwright.evaluator import Confirm, Search
from kernelwright.records import Finding, Problem, Profile, RunConfig, Status
from kernelwright.store import Store

ROOT = Path(__file__).parents[2]
REPLAYED = ("kernelwright/level1/softmax", "kernelwright/level2/swiglu")
ROUNDS = 3
KERNELS = 120  # on the problem with pages
TINY = '''"""Twice x and a shift for each column, cut at zero."""

import torch
from torch import nn

ROWS = 64
COLUMNS = 96

PROBLEM = {
    "title": "Scaled shifted rectifier",
    "category": "activation",
    "note": "Small enough to be judged within seconds.",
    "inputs": {"x": {"fill": "normal", "low": -100.0, "high": 100.0}},
    "variants": {"cpu": [{"ROWS": 64, "COLUMNS": 96}, {"ROWS": 3, "COLUMNS": 7}]},
}


class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.shift = nn.Parameter(torch.randn(columns))

    def forward(self, x):
        return torch.relu(x * 2.0 + self.shift)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return [COLUMNS]
'''
QUICK = """
suite_dirs = ["tiny"]
baselines = ["eager"]

[measurement]
looks = [12]
window_ms = 0.5
confirm_pairs = 5
confirm_max_pairs = 5
check_trials = 2
pool_bytes = "16MiB"
noise_bound = 0.3
"""  # for busy machines, where a control strays far
PROFILE = Profile(
    rung="static",
    bound="memory",
    metrics={
        "arithmetic_intensity": 0.5,
        "gflops": 6.0,
        "gbytes_per_s": 12.0,
        "time_memory_ms": 0.3,
        "time_compute_ms": 0.02,
        "distance_to_roofline": 1.7,
        "a_metric_without_a_meaning": 3.0,
    },
    notes=("one loop was not vectorised: <b>it</b> calls expf",),
)


@dataclass(frozen=True)
class Shown:
    """What is in the store, for tests that ask for it by name."""

    path: Path
    searched: str  # runs, by id
    lined: str
    replayed: str
    many: str
    live: str
    tiny: str  # problems
    paged: str
    kernel: str  # the page of a kernel, each
    replayed_kernel: str
    refused_kernel: str


def environment_of(store: Path) -> dict[str, str]:
    """The environment of a command that has this store, and nothing of whoever runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KERNELWRIGHT_")}
    return kept | {
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "KERNELWRIGHT_STORE": str(store),
        "KERNELWRIGHT_CACHE_DIR": str(store.parent / "cache"),
        "KERNELWRIGHT_DEVICE": "none",
    }


def command(store: Path, *words: str) -> dict[str, Any]:
    """Run a command of kernelwright; returns the object that it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "kernelwright.cli", *words, "--json"],
        cwd=store.parent,
        env=environment_of(store),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
    return json.loads(done.stdout)


def make_store(folder: Path) -> Shown:
    """Everything, in a fresh store."""
    path = folder / "store.db"
    (folder / "tiny" / "level1").mkdir(parents=True)
    (folder / "tiny" / "level1" / "rectifier.py").write_text(TINY)
    (folder / "kernelwright.toml").write_text(QUICK)
    tiny = "tiny/level1/rectifier"
    searched = command(path, "optimize", tiny, "--recipe", "default", "--rounds", "3")
    lined = command(path, "optimize", tiny, "--recipe", "cudaforge", "--rounds", "2")
    paged = make_problem("paged")
    with Store.open(path) as store:
        replayed = _replay(store, folder)
        many = _many_kernels(store, paged)
        refused = _refusals(store, paged)
        live = _live_run(store, paged)
        of_replay = next(
            e for e in reversed(store.evaluations(run_id=replayed, confirmed=False)) if e.candidate.parents
        )
    return Shown(
        path,
        searched=searched["run"],
        lined=lined["run"],
        replayed=replayed,
        many=many,
        live=live,
        tiny=tiny,
        paged=paged.id,
        kernel=f"/kernels/{searched['problems'][0]['candidate']}?evaluation={searched['problems'][0]['evaluation']}",
        replayed_kernel=f"/kernels/{of_replay.candidate.sha256}?evaluation={of_replay.id}",
        refused_kernel=refused,
    )


def _replay(store: Store, folder: Path) -> str:
    """Two problems of the recording that ships, judged by a referee that answers as the recording expects."""
    text = (resources.files("kernelwright.datasets") / "recordings" / "cudaforge.jsonl").read_text()
    failing = {
        (row["problem"], row["step"])
        for row in map(json.loads, text.splitlines())
        if row["role"] == "judge" and "critical_issue" in json.loads(row["reply"])
    }

    class Session(FakeSession):
        """Faster in every round."""

        round = -1

        def judge(self, candidate: Any, depth: Any = None, **more: Any) -> Any:
            confirmed = isinstance(depth, Confirm)
            self.round += not confirmed
            bad = (self.problem.id, self.round) in failing and not confirmed
            self.referee.statuses = {"import torch": Status.INCORRECT_NUMERICAL} if bad else {}
            self.referee.speedups = {"import torch": 1.1 + 0.4 * self.round}
            self.referee.profiles = {"import torch": PROFILE}
            return super().judge(candidate, depth if confirmed else Search(explain=True), **more)

    class Referee(FakeReferee):
        """Opens such sessions."""

        @contextmanager
        def open(self, problem: Problem, **more: Any) -> Any:
            yield Session(self, problem, no_point)

    given = {"coder": "replay:cudaforge", "judge": "replay:cudaforge", "rounds": ROUNDS, "recipe": "cudaforge"}
    places = {"store": store.path, "cache_dir": folder / "cache", "parallel_problems": 1}
    settings = with_recipe(Settings(**given, **places))
    problems = [find_problem(name, ()) for name in REPLAYED]
    return Campaign(settings, store, open_referee=lambda _: Referee()).run(problems).run_id


def _many_kernels(store: Store, problem: Problem) -> str:
    config = RunConfig(problems=(problem.id,), recipe="best-of-n", coder="openai:large", backend="cpp")
    run = store.create_run(config, [problem])
    parent = ()
    for number in range(KERNELS):
        candidate = make_candidate(
            problem,
            f"# kernel {number}\nx = {number}\n",
            author="openai:large",
            parents=parent[-2:],
            operator="improve",
        )
        parent = (*parent, candidate.sha256)
        confirmed = number % 40 == 39
        made = make_evaluation(candidate, speedup=0.6 + number / 50, confirmed=confirmed, latency_ms=2.0 - number / 80)
        store.record_evaluation(made, run_id=run, step=number)
    store.set_problem_state(run, problem.id, "done", json.dumps({"status": "PASSED", "reason": "all rounds done"}))
    store.add_run_seconds(run, 90.0)
    store.set_run_status(run, "finished")
    return run


def _refusals(store: Store, problem: Problem) -> str:
    """Hacks by two rules, and one that was withdrawn; returns the page of a hack."""
    page = ""
    for number, rule in enumerate(("calls-no-own-kernel", "calls-no-own-kernel", "patches-torch")):
        candidate = make_candidate(problem, f"# hack {number}\n", author="user")
        made = make_evaluation(candidate, status=Status.REWARD_HACK)
        finding = Finding(rule=rule, effect="refuses", where="line 3", evidence="<script>alert(1)</script> " * 3)
        verdict = made.verdict.model_copy(update={"findings": (finding,), "reason": f"a hack: {rule}"})
        recorded = store.record_evaluation(made.model_copy(update={"verdict": verdict}))
        page = f"/kernels/{candidate.sha256}?evaluation={recorded}"
    withdrawn = store.record_evaluation(make_evaluation(make_candidate(problem, "# too good\n"), speedup=90.0))
    store.quarantine(withdrawn, "measured while the clock stood still")
    return page


def _live_run(store: Store, problem: Problem) -> str:
    config = RunConfig(problems=(problem.id,), recipe="cudaforge", coder="openai:small", max_minutes=30)
    run = store.create_run(config, [problem])
    store.set_problem_state(run, problem.id, "running")
    for number in range(3):
        record_step(store, run, problem, number)
    store.event(run, "note", {"said": "a" * 64})
    return run


def record_step(store: Store, run: str, problem: Problem, number: int) -> str:
    """One more kernel of a run; returns its evaluation's id."""
    candidate = make_candidate(problem, f"# step {number} of {run}\n", author="openai:small")
    return store.record_evaluation(make_evaluation(candidate, speedup=1.0 + number / 10), run_id=run, step=number)
