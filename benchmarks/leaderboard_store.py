"""A store with as many evaluations as a busy year leaves, to measure the pages of the leaderboard on.

    python benchmarks/leaderboard_store.py STORE --evaluations 1000000

The problems are the built-in ones; kernels, verdicts and times are drawn, so nothing in it is a result. Everything goes
through the store's own tables and triggers, in transactions of ten thousand evaluations.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kernelwright.datasets import load_suite
from kernelwright.records import (
    Correctness,
    Environment,
    Finding,
    Interval,
    Profile,
    RunConfig,
    Speedup,
    Stage,
    Status,
    Timing,
    Verdict,
    sha256_text,
)
from kernelwright.records.verdicts import TimedVariant
from kernelwright.store import Store

RECIPES = ("default", "best-of-n", "cudaforge", "shinka")
AUTHORS = ("offline", "openai:large", "openai:small", "anthropic:big", "anthropic:quick", "user")
PER_RUN = 2000
PER_SOURCE = 5  # settings of the knobs of one source
BATCH = 10_000
SAMPLES_EVERY = 40  # evaluations whose windows are kept
START = datetime(2026, 1, 1, tzinfo=UTC)
SOURCE = """
import torch
import torch.nn as nn
from kernelwright.inline import cpp

KNOBS = {{"TILE": [1, 2, 4, 8, 16]}}
TILE = 4
lib = cpp(r'''
// kernel {number}
extern "C" void run(const float* x, float* y, int64_t n) {{
  #pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = x[i] * {number}.0f;
}}
''', defines={{"TILE": TILE}})


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.run(x, y, x.numel())
        return y
"""


def verdict_of(status: Status, environment: str, confirmed: bool, rng: random.Random, speed: float) -> Verdict:
    """A verdict on nothing: the caller fills in whose it is."""
    fields = {"candidate": "", "problem": "", "backend": "cpp", "environment": environment, "status": status}
    if status is not Status.PASSED:
        stage, failed = (None, "screen") if status is Status.REWARD_HACK else (Stage.COMPILED, "check")
        rule = "calls-no-own-kernel" if status is Status.REWARD_HACK else "check-incorrect-numerical"
        finding = Finding(rule=rule, effect="refuses", evidence="wrong overall: 31.0 times the error budget")
        return Verdict(**fields, stage=stage, failed_stage=failed, reason="it was wrong", findings=(finding,))
    latency = 0.2 / speed
    width = 0.01 + rng.random() * 0.03
    speedups = {
        name: Speedup(median=s, low=s * (1 - width), high=s * (1 + width), faster=s > 1.05)
        for name, s in (("eager", speed), ("compile", speed * 0.8))
    }
    return Verdict(
        **fields,
        stage=Stage.CONFIRMED if confirmed else Stage.TIMED,
        correctness=Correctness(
            trials=14, variants=2, check_set="0" * 16, max_error=1.1, error_budget=4.0, kernelbench_allclose=True
        ),
        timing=Timing(
            latency_ms=Interval(median=latency, low=latency * 0.99, high=latency * 1.02),
            processes=7 if confirmed else 1,
            pairs=24,
            threads=1,
            confirmed=confirmed,
            noise_bound=0.014,
            speedup=speedups,
        ),
        own_kernel_share=round(0.6 + 0.4 * rng.random(), 3),
        own_kernel_label="kernel",
        profile=Profile(
            rung="roofline",
            bound="memory",
            metrics={"distance_to_roofline": 1.2 + rng.random() * 3, "bytes_per_call": 1e6, "flops_per_call": 3e6},
        ),
        variant=TimedVariant(inputs=("x float32[2048, 128]",)),
        sandbox=("bwrap", "seccomp"),
        seconds={"screen": 0.01, "build": 0.4, "check": 0.6, "time": 1.9},
    )


def seed(path: Path, evaluations: int, tell=print, *, first_number: int = 0) -> None:
    """Fill a store. Stores that were filled from other first numbers share problems and environments, and no kernel."""
    rng = random.Random(7)
    environments = [
        Environment(
            device=name, device_class="cpu", cpu=name, cores=2, os="linux", python="3.11", torch="2.13.0",
            compiler="g++ 12", threads=1,
        )
        for name in ("EPYC Zen 4", "EPYC Zen 5")
    ]  # fmt: skip
    problems = list(load_suite("kernelwright"))
    with Store.open(path) as store:
        versions = [store.record_problem(problem) for problem in problems]
        for environment in environments:
            store.record_environment(environment)
        runs = []
        for number in range(max(1, evaluations // PER_RUN)):
            config = RunConfig(
                problems=tuple(problem.id for problem in problems),
                coder=AUTHORS[number % len(AUTHORS)],
                recipe=RECIPES[number % len(RECIPES)],
            )
            runs.append(store.create_run(config, problems if number % 50 == 0 else problems[:5]))
            store.set_run_status(runs[-1], "finished")
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA synchronous = OFF")
    began = time.monotonic()
    for first in range(0, evaluations, BATCH):
        database.execute("BEGIN")
        for number in range(first_number + first, first_number + min(first + BATCH, evaluations)):
            _one(database, number, rng, problems, versions, environments, runs)
        database.execute("COMMIT")
        if first % (10 * BATCH) == 0:
            tell(f"{first + BATCH} evaluations, {time.monotonic() - began:.0f} s")
    database.execute("PRAGMA optimize")
    database.close()


def _id(number: int) -> str:
    return f"01SEED{number:020d}"


def _one(database, number, rng, problems, versions, environments, runs) -> None:
    run = number // PER_RUN % len(runs)
    place = rng.randrange(len(problems)) if run % 50 == 0 else rng.randrange(5) + 5 * (run % (len(problems) // 5))
    problem, version = problems[place], versions[place]
    environment = environments[0 if run % 5 else 1]
    again = number % 50 == 49  # a confirmation of the kernel before
    kernel = number - 1 if again else number
    text = SOURCE.format(number=kernel // PER_SOURCE)
    knobs = json.dumps({"TILE": 2 ** (kernel % PER_SOURCE)})
    status = Status.PASSED
    if not again and rng.random() < 0.35:
        status = rng.choice([Status.INCORRECT_NUMERICAL, Status.COMPILE_ERROR, Status.REWARD_HACK])
    speed = rng.lognormvariate(0.2, 0.35)
    created = (START + timedelta(seconds=26 * number)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    source_sha, sha = sha256_text(text), sha256_text(text + "\0" + knobs)
    author = AUTHORS[run % len(AUTHORS)]
    verdict = verdict_of(status, environment.id, again, rng, speed).model_copy(
        update={"candidate": sha, "problem": problem.id}
    )
    insert = database.execute
    if not again:
        if kernel % PER_SOURCE == 0 or not insert("SELECT 1 FROM blobs WHERE sha256 = ?", [source_sha]).fetchone():
            insert(
                "INSERT OR IGNORE INTO blobs (sha256, kind, size_bytes, content, created_at) "
                "VALUES (?, 'source', ?, ?, ?)",
                [source_sha, len(text), text.encode(), created],
            )
            insert("INSERT OR IGNORE INTO sources (sha256) VALUES (?)", [source_sha])
        insert(
            "INSERT INTO candidates VALUES (?, ?, ?, ?, 'cpp', ?, '[]', 'improve', ?, NULL, '', ?)",
            [_id(kernel), sha, problem.id, source_sha, knobs, author, created],
        )
    candidate = insert("SELECT sha256, problem FROM candidates WHERE id = ?", [_id(kernel)]).fetchone()
    if again and candidate[1] != problem.id:
        verdict = verdict.model_copy(update={"candidate": candidate[0], "problem": candidate[1]})
        version = versions[[p.id for p in problems].index(candidate[1])]
    timing = verdict.timing
    interval = (timing.latency_ms.median, timing.latency_ms.low, timing.latency_ms.high) if timing else (None,) * 3
    insert(
        "INSERT INTO evaluations (id, candidate_id, problem_version, environment_id, run_id, step, status, stage, "
        "failed_stage, reason, control, confirmed, latency_ms, latency_low_ms, latency_high_ms, verdict_json, "
        "software_version, created_at, inputs) VALUES (?,?,?,?,?,?,?,?,?,?,0,?,?,?,?,?,'0.1.0',?,?)",
        [
            _id(number), _id(kernel), version, environment.id, runs[run], number % PER_RUN, status.value,
            verdict.stage and verdict.stage.value, verdict.failed_stage, verdict.reason, again, *interval,
            verdict.model_dump_json(), created, "x float32[2048, 128]",
        ],
    )  # fmt: skip
    if timing:
        database.executemany(
            "INSERT INTO speedups VALUES (?, ?, ?, ?, ?, ?)",
            [(_id(number), name, s.median, s.low, s.high, s.faster) for name, s in timing.speedup.items()],
        )
        if number % SAMPLES_EVERY == 0 or again:
            database.executemany(
                "INSERT INTO timing_samples VALUES (?, ?, ?, ?, 0, ?, 0, 9, ?)",
                [
                    (_id(number), n, "confirm" if again else "search", ("candidate", "eager", "compile")[n % 3], n // 3,
                     interval[0] * (1, speed, speed * 0.8)[n % 3] * rng.lognormvariate(0, 0.02))
                    for n in range(72)
                ],
            )  # fmt: skip
    if status is Status.PASSED and number % 5000 == 17:
        insert("INSERT INTO quarantines VALUES (?, ?, 'too good to be true', ?)", [_id(number), _id(number), created])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("store", type=Path)
    arguments.add_argument("--evaluations", type=int, default=1_000_000)
    given = arguments.parse_args()
    seed(given.store, given.evaluations)


if __name__ == "__main__":
    main()
