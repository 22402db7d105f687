"""How long a user waits for one round and five of a softmax, a first verdict, a live module.

    python benchmarks/seconds.py --times 5 --output benchmarks/results/<machine>/seconds.json

The problem is new each time: no store and no cache knows it. The caches know the machine, as they do after the first
run on it; how long that first run takes is timed as well. The goals are 20 s for one round and 60 s for five, as
medians, on an otherwise idle machine of two cores. Beside each time stands how far two processes of the same code were
apart meanwhile, since a noisy machine needs more process pairs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from kernelwright.config import Settings
from kernelwright.evaluator import environment
from kernelwright.store import Store

PROBLEM = """
import torch
from torch import nn

PROBLEM = {"inputs": {"x": {"fill": "normal", "low": -1e4, "high": 1e4}}}


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)


def get_inputs():
    return [torch.randn(256, 512)]


def get_init_inputs():
    return []
"""
MODULE = """
import torch, kernelwright
from torch import nn
from kernelwright.config import Settings
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).eval()
settings = Settings.load(flags={"store": "s.db", "cache_dir": "cache"})
kernelwright.optimize(model, (torch.randn(128, 64),), settings=settings, rounds=ROUNDS, progress=False)
"""
OTHER = PROBLEM.replace("torch.softmax(x, dim=-1)", "torch.tanh(x) + x")
FIRST = "one round, first use of the machine"
GOALS = {"one round": 20.0, "five rounds": 60.0}


def commands() -> dict[str, list[str]]:
    """What is timed, by name; run in an empty folder that holds the problem."""
    tool = [sys.executable, "-m", "kernelwright.cli"]
    where = ["--set", "store=s.db", "--set", "cache_dir=cache"]
    module = [sys.executable, "-W", "ignore", "-c"]
    return {
        FIRST: [*tool, "optimize", "problem.py", "--rounds", "1", *where],
        "one round": [*tool, "optimize", "problem.py", "--rounds", "1", *where],
        "five rounds": [*tool, "optimize", "problem.py", "--rounds", "5", *where],
        "first verdict": [*tool, "evaluate", "reference.py", "--problem", "problem.py", "--control", *where],
        "module, one round": [*module, MODULE.replace("ROUNDS", "1")],
        "module, five rounds": [*module, MODULE.replace("ROUNDS", "5")],
    }


def used(folder: Path) -> Path:
    """A cache that has served another problem, three times: so often are the machine's ceilings measured."""
    (folder / "problem.py").write_text(OTHER)
    for _ in range(3):
        subprocess.run(commands()["one round"], cwd=folder, capture_output=True, check=True)
    return folder / "cache"


def timed(command: list[str], cache: Path | None) -> dict[str, float | None]:
    """Seconds of one run with a copy of a cache, and what its confirmation met."""
    with tempfile.TemporaryDirectory(prefix="seconds-") as folder:
        if cache is not None:
            shutil.copytree(cache, Path(folder) / "cache")
        (Path(folder) / "problem.py").write_text(PROBLEM)
        (Path(folder) / "reference.py").write_text(f"{PROBLEM}\n\nclass ModelNew(Model):\n    pass\n")
        started = time.monotonic()
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - started
        if done.returncode:
            raise SystemExit(f"{' '.join(command)[:200]}\n{done.stderr[-2000:]}")
        row: dict[str, float | None] = {"seconds": round(seconds, 2), "process_pairs": None, "control_scatter": None}
        for timing in confirmations(Path(folder) / "s.db"):
            row |= {"process_pairs": timing.processes, "control_scatter": round(timing.control_scatter, 4)}
        return row


def confirmations(path: Path):
    """Timings of the confirmations that a store holds."""
    if not path.exists():
        return
    with Store.open(path) as store:
        for stored in store.evaluations():
            timing = stored.evaluation.verdict.timing
            if timing is not None and timing.control is not None:
                yield timing


def main() -> int:
    """Time, print, record; exit 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="names of what is timed")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory(prefix="seconds-") as folder:
        cache = used(Path(folder))
        for name, command in commands().items():
            if options.only and name not in options.only:
                continue
            rows = [timed(command, None if name == FIRST else cache) for _ in range(options.times)]
            times = [row["seconds"] for row in rows]
            results[name] = {"median_s": median(times), "goal_s": GOALS.get(name), "rows": rows}
            print(name, results[name]["median_s"], times, file=sys.stderr, flush=True)
    record = {"environment": environment(Settings.load().threads).model_dump(), "results": results}
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(record, indent=1) + "\n")
    return int(any(found["goal_s"] and found["median_s"] > found["goal_s"] for found in results.values()))


if __name__ == "__main__":
    sys.exit(main())
