"""Does the search's clock tell the truth? False claims on identical code, found claims on a known difference.

For every problem of the built-in suite:

- A/A: the reference itself is the candidate (marked ``control``); the verdict says whether it is "faster" than eager.
- 1.15x: the same candidate against a reference that spins until 1.15 times its own duration has passed, so that the
  candidate is faster by exactly that factor.

Each trial starts a fresh candidate process; the reference's process is fresh every ``--twin-life`` trials. Settings are
the defaults. Run it on an otherwise idle machine:

    python benchmarks/referee_aa.py --trials 10 --known-trials 4 --output benchmarks/results/<machine>/referee_aa.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from kernelwright.config import Settings
from kernelwright.datasets import load_suite, parse_problem
from kernelwright.errors import KernelwrightError
from kernelwright.evaluator import Referee, environment
from kernelwright.records import Candidate, Problem

SLOWER = 1.15
SLOW_REFERENCE = """

import time as _time

_Reference = Model


class Model(_Reference):
    def forward(self, *inputs):
        started = _time.perf_counter_ns()
        result = super().forward(*inputs)
        end = started + int(SLOWER * (_time.perf_counter_ns() - started))
        while _time.perf_counter_ns() < end:
            pass
        return result
"""


def control_of(problem: Problem) -> Candidate:
    """The reference under a candidate's name."""
    source = f"{problem.source}\n\nclass ModelNew(Model):\n    pass\n"
    return Candidate(problem_id=problem.id, source=source, backend="cpp", author="benchmark")


def slowed(problem: Problem) -> Problem:
    """The problem with a reference that takes 1.15 times as long."""
    source = problem.source + SLOW_REFERENCE.replace("SLOWER", str(SLOWER))
    return parse_problem(source, id=problem.id, suite=problem.suite, level=problem.level, name=problem.name)


def run(referee: Referee, problem: Problem, candidate: Candidate, trials: int, twin_life: int, kind: str) -> list[dict]:
    """``trials`` verdicts on one problem."""
    rows = []
    with referee.open(problem, baselines=("eager",)) as session:
        for trial in range(trials):
            if trial % twin_life == 0:
                session.restart_twins()
            started = time.monotonic()
            verdict = session.judge(candidate, control=True).verdict
            speedup = verdict.speedup("eager")
            if speedup is None:
                raise SystemExit(f"{problem.id}: {verdict.status} {verdict.reason}")
            rows.append(
                {
                    "kind": kind,
                    "problem": problem.id,
                    "faster": speedup.faster,
                    "estimate": speedup.median,
                    "low": speedup.low,
                    "high": speedup.high,
                    "pairs": verdict.timing.pairs,
                    "latency_ms": verdict.timing.latency_ms.median,
                    "seconds": time.monotonic() - started,
                }
            )
    return rows


def summary(rows: list[dict]) -> dict:
    """Shares of claims, and what the intervals were like."""
    result: dict = {}
    for kind, truth in (("A/A", 1.0), ("1.15x", SLOWER)):
        chosen = [r for r in rows if r["kind"] == kind]
        if chosen:
            ordered = sorted(r["estimate"] for r in chosen)
            result[kind] = {
                "trials": len(chosen),
                "called_faster": sum(r["faster"] for r in chosen),
                "share": sum(r["faster"] for r in chosen) / len(chosen),
                "interval_covers_truth": sum(r["low"] <= truth <= r["high"] for r in chosen) / len(chosen),
                "estimate_p05_p50_p95": [ordered[int(q * (len(ordered) - 1))] for q in (0.05, 0.5, 0.95)],
                "mean_pairs": sum(r["pairs"] for r in chosen) / len(chosen),
                "median_seconds": sorted(r["seconds"] for r in chosen)[len(chosen) // 2],
            }
    return result


def main() -> int:
    """Run, print, record; exit 1 where a bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10, help="A/A trials a problem")
    parser.add_argument("--known-trials", type=int, default=4, help="1.15x trials a problem")
    parser.add_argument("--twin-life", type=int, default=3, help="trials that one process of the reference serves")
    parser.add_argument("--output", type=Path, help="where the JSON record goes")
    options = parser.parse_args()
    rows: list[dict] = []
    with Referee(Settings.load()) as referee:
        for problem in load_suite("kernelwright"):
            candidate = control_of(problem)
            try:
                rows += run(referee, problem, candidate, options.trials, options.twin_life, "A/A")
                rows += run(referee, slowed(problem), candidate, options.known_trials, options.twin_life, "1.15x")
            except KernelwrightError as error:
                print(f"{problem.id}: {error}", file=sys.stderr)
                return 3
            of_this = [r for r in rows if r["problem"] == problem.id]
            print(problem.id, {k: v["share"] for k, v in summary(of_this).items()}, file=sys.stderr, flush=True)
    totals = summary(rows)
    settings = Settings.load().model_dump(mode="json", exclude={"store", "cache_dir", "suite_dirs"})
    record = {"environment": environment(1).model_dump(), "settings": settings, "summary": totals, "trials": rows}
    print(json.dumps({"summary": totals}, indent=2))
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(record, indent=1) + "\n")
    broken = totals["A/A"]["share"] > 0.05 or totals["1.15x"]["share"] < 0.80
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
