"""How fast the referee is, and whether what it prints is true.

Parts, each a flag; without any, all of them:

- ``--speed``: verdicts (screen, build, check, ghost, time with 31 pairs) on a small problem, warm, by stage; the same
  with a fresh process for everything (no zygote, no live twins, no cached products); a confirmation.
- ``--memory``: resident and shared memory of the referee over many short verdicts.
- ``--claims``: how often the search calls identical code faster.
- ``--coverage``: how often the confirmation's 95% interval covers a ratio that is known: the reference against itself,
  and against references that do 1.05 or 1.25 times its work, by doing it 168 or 200 times instead of 160. Fresh
  processes throughout; references of about a millisecond.
- ``--noise``: confirmations of identical code and of what is 1.15 times as fast, beside no, one and two processes that
  keep a core and the memory busy: false claims, found ones, and coverage.
- ``--honest``: verdicts on right kernels beside no, one and two such processes: how many are refused, and why.

Run it on an otherwise idle machine:

    python benchmarks/referee.py --output benchmarks/results/<machine>/referee.json
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from kernelwright import codegen
from kernelwright.config import Settings
from kernelwright.datasets import find_problem, parse_problem
from kernelwright.errors import MachineError
from kernelwright.evaluator import Confirm, ProblemSession, Referee, environment
from kernelwright.records import Candidate, Evaluation, Problem

SMALL = """
import torch
from torch import nn

PROBLEM = {
    "category": "softmax",
    "inputs": {"x": {"fill": "normal", "low": -100.0, "high": 100.0}},
    "variants": {"cpu": [{"ROWS": 32, "COLS": 256}, {"ROWS": 7, "COLS": 131}]},
}
ROWS = 32
COLS = 256


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
"""
KERNEL = '''
import torch
from torch import nn

from kernelwright.inline import cpp

lib = cpp(r"""
#include <cmath>
#include <cstdint>
extern "C" void softmax(const float* x, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++) {
    const float* a = x + i * cols;
    float* b = y + i * cols;
    float largest = a[0], sum = 0;
    for (int64_t j = 0; j < cols; j++) largest = a[j] > largest ? a[j] : largest;
    for (int64_t j = 0; j < cols; j++) sum += b[j] = expf(a[j] - largest);
    for (int64_t j = 0; j < cols; j++) b[j] /= sum;
  }
}
// NUMBER
""", flags=("-ffast-math",))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.softmax(x, y, x.shape[0], x.shape[1])
        return y
'''
EXACT_NS = 100_000
EXACT = f"""

import time as _time

_Reference = Model


class Model(_Reference):
    def forward(self, x):
        end = _time.perf_counter_ns() + {EXACT_NS}
        result = super().forward(x)
        while _time.perf_counter_ns() < end:
            pass
        return result
"""
CLAIMED = ("level1/layer_norm", "level1/batched_matmul", "level2/gemm_bias_gelu", "level3/mlp_block")
# What references are made of that do it REPEATS times: vectorised, without branches on data, so that every time takes
# as long as the one before. A call is about a millisecond: what it costs beside forward is a hundredth of that, so that
# the known ratio is known to a thousandth although that cost changes with the machine's hour (6 to 14 us were seen).
COVERED = {
    "softmax": "torch.softmax(x, dim=-1)",
    "layer_norm": "torch.nn.functional.layer_norm(x, x.shape[-1:])",
    "cumsum": "torch.cumsum(x, dim=-1)",
    "exp": "torch.exp(x)",
}
REPEATS = 160
LEAST_POWER = {"0": 0.8, "1": 0.6, "2": 0.0}  # of finding 1.15 times, by the number of busy neighbours
FACTORS = (1.0, 1.05, 1.25)
HONEST = ("level1/softmax", "level1/gelu", "level1/cumsum", "level2/swiglu", "level2/gemm_bias_gelu")
NEIGHBOUR = """
import ctypes
ctypes.CDLL(None).prctl(1, 9)  # it ends with the process that has started it
import numpy as np
a, b = np.random.rand(384, 384), np.zeros(8 << 20)
while True:
    for _ in range(20):
        a = a @ a / 384
    b = b + 1.0
"""
TARGET = 0.05  # half-width that the second stage aims at: few process pairs, on which an interval is hardest put to it
SEARCH_PAIRS = 31


def small_problem() -> Problem:
    """A softmax of 32 rows of 256."""
    return parse_problem(SMALL, id="benchmark/level1/softmax", suite="benchmark", level=1, name="softmax")


def kernel(problem: Problem, number: int) -> Candidate:
    """A right kernel; each ``number`` is another source, so that it has to be built."""
    return Candidate(problem_id=problem.id, source=KERNEL.replace("NUMBER", str(number)), backend="cpp")


def control(problem: Problem) -> Candidate:
    """The reference under a candidate's name."""
    return Candidate(problem_id=problem.id, source=f"{problem.source}\n\nModelNew = Model\n", backend="cpp")


def repeated(name: str, factor: float) -> Problem:
    """A problem whose reference does one of the things of ``COVERED`` ``factor * REPEATS`` times, on 16 rows of 256."""
    loop = f"for _ in range({round(factor * REPEATS)}):\n            result = {COVERED[name]}\n        return result"
    source = SMALL.replace("32", "16").replace("return torch.softmax(x, dim=-1)", loop)
    return parse_problem(source, id=f"benchmark/level1/{name}", suite="benchmark", level=1, name=name)


def door_ns(settings: Settings) -> int:
    """What a referee's latency holds beside the call of ``forward``: measured by a forward of exactly known length.

    It is a short one, of which a noisy machine adds little.
    """
    small = small_problem()
    problem = parse_problem(small.source + EXACT, id=small.id, suite=small.suite, level=small.level, name=small.name)
    found = []
    for _ in range(3):
        with opened(problem, settings) as session:
            timing = passed(session.judge(control(problem), control=True)).verdict.timing
            assert timing is not None
            found.append(timing.latency_ms.median * 1e6 - EXACT_NS)
    return round(median(found))


def true_ratio(factor: float, latency_ms: float, beside_ns: int) -> float:
    """The ratio of latencies where one side does ``factor`` times the other's work.

    What a call costs beside its ``forward`` is no part of the work: with W the work's time and b what is beside it, the
    sides take W + b and factor W + b.
    """
    return 1 + (factor - 1) * (1 - beside_ns / (latency_ms * 1e6))


def passed(evaluation: Evaluation) -> Evaluation:
    """The evaluation, or the end of this program where it did not pass."""
    if not evaluation.verdict.passed:
        raise SystemExit(f"{evaluation.verdict.problem}: {evaluation.verdict.status} {evaluation.verdict.reason}")
    return evaluation


@contextmanager
def opened(problem: Problem, settings: Settings) -> Iterator[ProblemSession]:
    """A session with a referee of its own."""
    with Referee(settings) as referee, referee.open(problem, baselines=("eager",)) as session:
        yield session


# ----------------------------------------------------------------------------------------------------------- speed


def speed(verdicts: int, cold_verdicts: int, confirmations: int) -> dict[str, Any]:
    """Seconds of warm and cold verdicts and of confirmations."""
    problem = small_problem()
    settings = Settings.load(flags={"measurement": {"looks": (SEARCH_PAIRS,), "confirm_max_pairs": 5}})
    stages: dict[str, list[float]] = defaultdict(list)
    seconds, run = [], os.getpid() * 1000
    with opened(problem, settings) as session:
        passed(session.judge(kernel(problem, run)))
        for number in range(1, verdicts + 1):
            started = time.monotonic()
            verdict = passed(session.judge(kernel(problem, run + number))).verdict
            seconds.append(time.monotonic() - started)
            for stage, spent in verdict.seconds.items():
                stages[stage].append(spent)
        confirmed = []
        for _ in range(confirmations):
            evaluation = passed(session.judge(kernel(problem, run), depth=Confirm()))
            confirmed.append(evaluation.verdict.seconds["confirm"])
    warm = {"median_s": median(seconds), "verdicts_per_minute": 60 / (sum(seconds) / len(seconds))}
    return {
        "warm": warm | {"verdicts": verdicts, "stages_s": {name: median(spent) for name, spent in stages.items()}},
        "cold": cold(problem, settings, cold_verdicts),
        "confirmation": {"median_s": median(confirmed), "process_pairs": 5, "confirmations": confirmations},
    }


def cold(problem: Problem, settings: Settings, verdicts: int) -> dict[str, Any]:
    """The same verdict where every worker is a fresh interpreter and nothing is kept from one verdict to the next."""
    seconds = []
    for number in range(verdicts):
        with tempfile.TemporaryDirectory() as cache:
            started = time.monotonic()
            with Referee(settings.with_values(cache_dir=cache)) as referee:
                referee.host.warm = False
                with referee.open(problem, baselines=("eager",)) as session:
                    passed(session.judge(kernel(problem, number)))
            seconds.append(time.monotonic() - started)
    return {"median_s": median(seconds), "verdicts": verdicts, "verdicts_per_minute": 60 * len(seconds) / sum(seconds)}


# ---------------------------------------------------------------------------------------------------------- memory


def memory(verdicts: int) -> dict[str, Any]:
    """Memory of this process over short verdicts, in MB: resident, and open descriptors."""
    problem = small_problem()
    settings = Settings.load(flags={"measurement": {"looks": (4,), "window_ms": 0.2, "check_trials": 1}})
    points, run = [], os.getpid() * 1000
    with opened(problem, settings) as session:
        for number in range(verdicts):
            passed(session.judge(kernel(problem, run + number % 10)))
            if number % max(verdicts // 40, 1) == 0 or number == verdicts - 1:
                points.append({"verdicts": number + 1, "rss_mb": resident_mb(), "descriptors": descriptors()})
                print(json.dumps(points[-1]), file=sys.stderr, flush=True)
    settled = points[len(points) // 4 :]
    growth = settled[-1]["rss_mb"] - settled[0]["rss_mb"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"verdicts": verdicts, "growth_mb_after_a_quarter": growth, "peak_rss_mb": peak, "points": points}


def resident_mb() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def descriptors() -> int:
    """Open descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


# ---------------------------------------------------------------------------------------------------------- claims


def claims(trials: int) -> dict[str, Any]:
    """How often a search calls identical code faster; the reference's process is fresh every third trial."""
    faster, covered, estimates = 0, 0, []
    for name in CLAIMED:
        problem = find_problem(name)
        with opened(problem, Settings.load()) as session:
            for trial in range(trials // len(CLAIMED)):
                if trial % 3 == 0:
                    session.restart_twins()
                found = passed(session.judge(control(problem), control=True)).verdict.speedup("eager")
                assert found is not None
                faster += found.faster
                covered += found.low <= 1.0 <= found.high
                estimates.append(found.median)
    count = len(estimates)
    return {"trials": count, "false_claims": faster, "rate": faster / count, "interval_covers": covered / count}


# -------------------------------------------------------------------------------------------------------- coverage


def confirmations(
    trials: Mapping[float, int], settings: Settings, journal: Path | None, neighbours: int = 0
) -> list[dict[str, Any]]:
    """Confirmations of references whose ratio to the candidate is known, equally many over the problems.

    ``trials``: how many by factor. ``journal``: JSON lines, one a trial, written as they come; those that it holds are
    counted and not repeated.
    """
    kept = [json.loads(line) for line in journal.read_text().splitlines()] if journal and journal.exists() else []
    rows = [row for row in kept if row.get("neighbours", 0) == neighbours and "factor" in row]
    beside_ns = door_ns(Settings.load())
    kinds = [(name, factor) for name in COVERED for factor in trials]
    with busy_neighbours(neighbours):
        for name, factor in kinds:
            problem = repeated(name, factor)
            candidate = control(repeated(name, 1.0))
            missing = -(-trials[factor] // len(COVERED)) - sum(_is_of(row, problem, factor) for row in rows)
            with opened(problem, settings) as session:
                for _ in range(missing):
                    row = confirmation_of(session, candidate, factor, beside_ns) | {"neighbours": neighbours}
                    rows.append(row)
                    if journal:
                        with journal.open("a") as lines:
                            lines.write(json.dumps(row) + "\n")
            of_this = [row for row in rows if _is_of(row, problem, factor) and not row["void"]]
            share = sum(row["covers"] for row in of_this) / max(len(of_this), 1)
            said = f"{problem.id} x{factor}, {neighbours} neighbours: covers {share:.1%} of {len(of_this)}"
            print(said, file=sys.stderr, flush=True)
    return rows


def _is_of(row: dict[str, Any], problem: Problem, factor: float) -> bool:
    return row["problem"] == problem.id and row["factor"] == factor


def confirmation_of(session: ProblemSession, candidate: Candidate, factor: float, beside_ns: float) -> dict[str, Any]:
    """One confirmation: what it said, and whether that is true."""
    started = time.monotonic()
    row: dict[str, Any] = {"problem": session.problem.id, "factor": factor, "void": False}
    try:
        verdict = passed(session.judge(candidate, control=True, depth=Confirm())).verdict
    except MachineError:
        return row | {"void": True, "faster": False, "covers": False, "seconds": time.monotonic() - started}
    found, timing = verdict.speedup("eager"), verdict.timing
    assert found is not None
    assert timing is not None
    truth = true_ratio(factor, timing.latency_ms.median, beside_ns)
    return row | {
        "truth": truth,
        "low": found.low,
        "median": found.median,
        "high": found.high,
        "covers": found.low <= truth <= found.high,
        "faster": found.faster,
        "process_pairs": timing.processes,
        "control_scatter": timing.control_scatter,
        "seconds": time.monotonic() - started,
    }


@contextmanager
def busy_neighbours(count: int) -> Iterator[None]:
    """Processes that compute and move memory meanwhile, with one thread each, on whichever core they are put."""
    one_thread = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    started = [subprocess.Popen([sys.executable, "-c", NEIGHBOUR], env=one_thread) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def coverage(trials: int, journal: Path | None = None) -> dict[str, Any]:
    """How often the confirmation's interval covers the known ratio, over problems and factors."""
    settings = Settings.load(flags={"measurement": {"looks": (4,), "check_trials": 1, "target_half_width": TARGET}})
    rows = confirmations({factor: -(-trials // len(FACTORS)) for factor in FACTORS}, settings, journal)
    return {"target_half_width": TARGET, **_told(rows)}


def noise(trials: int, power_trials: int, journal: Path | None = None) -> dict[str, Any]:
    """False claims, found claims of 1.15 times, and coverage, beside no busy neighbour, one, and two."""
    settings = Settings.load(flags={"measurement": {"looks": (4,), "check_trials": 1}})
    found = {str(n): confirmations({1.0: trials, 1.15: power_trials}, settings, journal, n) for n in (0, 1, 2)}
    return {name: _told(rows) for name, rows in found.items()}


# ---------------------------------------------------------------------------------------------------------- honest


def honest(verdicts: int, journal: Path | None = None) -> dict[str, Any]:
    """Verdicts on what the code generator writes for ``HONEST``: which are refused, beside how many neighbours."""
    kept = [json.loads(line) for line in journal.read_text().splitlines()] if journal and journal.exists() else []
    rows = [row for row in kept if "status" in row]
    kinds = [(neighbours, name) for neighbours in (0, 1, 2) for name in HONEST]
    for neighbours, name in kinds:
        problem = find_problem(name)
        missing = -(-verdicts // len(kinds)) - sum(
            row["problem"] == problem.id and row["neighbours"] == neighbours for row in rows
        )
        with busy_neighbours(neighbours), opened(problem, Settings.load()) as session:
            source = generated(problem, session)
            for _ in range(missing):
                started = time.monotonic()
                text = f"{source}\n# {os.getpid()} {len(rows)}\n"  # another file each time
                found = session.judge(Candidate(problem_id=problem.id, source=text, backend="cpp")).verdict
                row = {"problem": problem.id, "neighbours": neighbours, "status": found.status.value}
                row |= {"reason": found.reason, "stage": found.stage, "seconds": time.monotonic() - started}
                rows.append(row)
                if journal:
                    with journal.open("a") as lines:
                        lines.write(json.dumps(row) + "\n")
        of_this = [row for row in rows if row["problem"] == problem.id and row["neighbours"] == neighbours]
        refused = sum(row["status"] != "PASSED" for row in of_this)
        print(
            f"{problem.id}, {neighbours} neighbours: {refused} of {len(of_this)} refused", file=sys.stderr, flush=True
        )
    refusals = [row for row in rows if row["status"] != "PASSED"]
    by_neighbours = {str(n): sum(row["neighbours"] == n for row in rows) for n in (0, 1, 2)}
    seconds = median(row["seconds"] for row in rows)
    return {"verdicts": len(rows), "by_neighbours": by_neighbours, "refused": refusals, "median_s": seconds}


def generated(problem: Problem, session: ProblemSession) -> str:
    """The code generator's kernel for a problem."""
    variants = [dict(variant) for variant in problem.meta.variants_for("cpu")]
    payload = {"source": problem.source, "variant": variants[0], "variants": variants, "mode": problem.meta.mode}
    graph = codegen.Graph.from_json(session.call(codegen.CAPTURE_ENTRY, payload))
    return codegen.generate(graph).source


def _told(every: Sequence[dict[str, Any]]) -> dict[str, Any]:
    rows = [row for row in every if not row["void"]]
    by_factor = {factor: [row for row in rows if row["factor"] == factor] for factor in {r["factor"] for r in rows}}
    return {
        "trials": len(every),
        "void": len(every) - len(rows),
        "covers": sum(row["covers"] for row in rows) / max(len(rows), 1),
        "covers_by_factor": {str(f): sum(r["covers"] for r in of) / len(of) for f, of in sorted(by_factor.items())},
        "called_faster_by_factor": {
            str(f): sum(r["faster"] for r in of) / sum(r["factor"] == f for r in every)
            for f, of in sorted(by_factor.items())
        },
        "mean_process_pairs": sum(row["process_pairs"] for row in rows) / max(len(rows), 1),
        "median_control_scatter": median(row["control_scatter"] for row in rows) if rows else None,
        "median_s": median(row["seconds"] for row in rows) if rows else None,
        "rows": list(every),
    }


# ------------------------------------------------------------------------------------------------------------ main


def broken(results: dict[str, Any]) -> list[str]:
    """The bounds that the results break."""
    found = []
    if "speed" in results:
        part = results["speed"]
        ratio = part["warm"]["verdicts_per_minute"] / part["cold"]["verdicts_per_minute"]
        part["warm_over_cold"] = ratio
        found += ["a warm verdict takes more than 1.5 s"] * (part["warm"]["median_s"] > 1.5)
        found += ["warm verdicts are less than 5 times as many as cold ones"] * (ratio < 5)
        found += ["a confirmation takes more than 6 s"] * (part["confirmation"]["median_s"] > 6)
    if "memory" in results:
        found += ["memory grows"] * (results["memory"]["growth_mb_after_a_quarter"] > 16)
        found += ["memory was watched over fewer than 2,000 verdicts"] * (results["memory"]["verdicts"] < 2000)
    if "claims" in results:
        found += ["more than 5% false claims"] * (results["claims"]["rate"] > 0.05)
    for neighbours, part in results.get("noise", {}).items():
        if neighbours in LEAST_POWER:
            told = f" beside {neighbours} busy neighbours"
            found += [f"more than 5% false claims{told}"] * (part["called_faster_by_factor"]["1.0"] > 0.05)
            least = LEAST_POWER[neighbours]
            found += [f"1.15x is found too rarely{told}"] * (part["called_faster_by_factor"]["1.15"] < least)
            found += [f"coverage outside of 92-98%{told}"] * (not 0.92 <= part["covers"] <= 0.98)
    if "honest" in results:
        found += ["more than one honest kernel in 2,000 is refused"] * (
            len(results["honest"]["refused"]) > max(1, results["honest"]["verdicts"] // 2000)
        )
    if "coverage" in results:
        found += ["coverage outside of 92-98%"] * (not 0.92 <= results["coverage"]["covers"] <= 0.98)
        found += ["fewer than 300 trials of coverage"] * (results["coverage"]["trials"] < 300)
    return found


def main() -> int:
    """Run, print, record; exit 1 where a bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for part in ("speed", "memory", "claims", "coverage", "noise", "honest"):
        parser.add_argument(f"--{part}", action="store_true")
    parser.add_argument("--verdicts", type=int, default=30, help="warm verdicts of --speed")
    parser.add_argument("--cold-verdicts", type=int, default=5)
    parser.add_argument("--confirmations", type=int, default=5)
    parser.add_argument("--memory-verdicts", type=int, default=2000)
    parser.add_argument("--claim-trials", type=int, default=120)
    parser.add_argument("--coverage-trials", type=int, default=300)
    parser.add_argument(
        "--noise-trials", type=int, default=300, help="of identical code, for each number of neighbours"
    )
    parser.add_argument("--power-trials", type=int, default=100, help="of what is 1.15 times as fast, the same")
    parser.add_argument("--honest-verdicts", type=int, default=2001)
    parser.add_argument("--journal", type=Path, help="where trials of the last three go, to go on with later")
    parser.add_argument("--output", type=Path, help="where the JSON record goes; parts that were not run are kept")
    options = parser.parse_args()
    parts = {
        "speed": lambda: speed(options.verdicts, options.cold_verdicts, options.confirmations),
        "memory": lambda: memory(options.memory_verdicts),
        "claims": lambda: claims(options.claim_trials),
        "coverage": lambda: coverage(options.coverage_trials, options.journal),
        "noise": lambda: noise(options.noise_trials, options.power_trials, options.journal),
        "honest": lambda: honest(options.honest_verdicts, options.journal),
    }
    chosen = [name for name in parts if getattr(options, name)] or list(parts)
    results = {}
    for name in chosen:
        results[name] = {"environment": environment(1).model_dump(), **parts[name]()}
        shown = {key: value for key, value in results[name].items() if key not in ("environment", "rows", "points")}
        print(json.dumps({name: shown}, indent=2), flush=True)
    failures = broken(results)
    if options.output:
        record = json.loads(options.output.read_text()) if options.output.exists() else {}
        record |= results
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(record, indent=1) + "\n")
    for failure in failures:
        print(failure, file=sys.stderr)
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
