"""The same run on this machine's own referee, on two actors of a Ray cluster, and on two workers of a spool.

    python benchmarks/pools.py [--problems 60] [--rounds 1] [--pools local spool ray] [--keep DIR] [--output FILE.json]

The offline Coder, the real referee, real sandboxes. It prints for each pool how many problems ended in which way and
how long it took, and compares each pool with the first one: statuses that differ, and winners whose intervals of the
speedup over eager do not overlap. Two judgements of one kernel on this machine differ too: intervals are of one run of
the confirmation. So the first pool is compared with itself as well, where ``--again`` is given. A pool takes half an
hour: with ``--keep`` what each pool found stays in the folder, and a later call takes it from there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernelwright.datasets import load_suite

CLI = [sys.executable, "-m", "kernelwright.cli"]
PORT = 6399


@contextmanager
def seats(pool: str, folder: Path) -> Iterator[str]:
    """The pool's other side; gives what ``--pool`` names it."""
    if pool == "spool":
        command = [*CLI, "worker", "--spool", str(folder / "spool")]
        log = (folder / "workers.log").open("w")
        workers = [subprocess.Popen(command, stdout=log, stderr=log) for _ in range(2)]
        try:
            yield f"spool:{folder / 'spool'}"
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.wait()
    elif pool == "ray":
        ray = [str(Path(sys.executable).with_name("ray"))]
        offer = ["--num-cpus=2", "--resources", '{"kernelwright": 2}', "--include-dashboard=false"]
        subprocess.run([*ray, "start", "--head", f"--port={PORT}", *offer], check=True, capture_output=True)
        try:
            yield f"ray:127.0.0.1:{PORT}"
        finally:
            subprocess.run([*ray, "stop", "--force"], check=False, capture_output=True)
    else:
        yield "local"


def run(pool: str, problems: list[str], rounds: int) -> dict:
    """One run; its rows by problem, its evaluations and its seconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with seats(pool.removesuffix(" again"), folder) as spec:
            command = [*CLI, "optimize", *problems, "--rounds", str(rounds), "--pool", spec]
            command += ["--set", "measurement=quick", "--store", str(folder / "store.db"), "--json"]
            began = time.monotonic()
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            seconds = time.monotonic() - began
        if done.returncode not in (0, 1):
            raise SystemExit(f"{pool}: exit code {done.returncode}: {done.stdout[-2000:]}")
        told = json.loads(done.stdout)
        check = subprocess.run([*CLI, "store", "check", "--store", str(folder / "store.db"), "--json"], check=False,
                               capture_output=True, text=True)  # fmt: skip
        show = [*CLI, "runs", "show", "last", "--store", str(folder / "store.db"), "--json"]
        costs = json.loads(subprocess.run(show, capture_output=True, text=True, check=True).stdout)
    return {
        "rows": {row["problem"]: row for row in told["problems"]},
        "evaluations": costs.get("costs", costs).get("evaluations"),
        "seconds": round(seconds, 1),
        "sound": check.returncode == 0,
    }


def kept(pool: str, problems: list[str], rounds: int, folder: Path | None) -> dict:
    """What an earlier call found with this pool, or what a run finds now."""
    if folder is None:
        return run(pool, problems, rounds)
    file = folder / f"{pool.replace(' ', '_')}-{len(problems)}-{rounds}.json"
    if not file.exists():
        found = run(pool, problems, rounds)
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found) + "\n")
    return json.loads(file.read_text())


def summary(pool: str, found: dict) -> dict:
    """What is printed of one run."""
    rows = found["rows"].values()
    best = [row["speedup"]["eager"]["median"] for row in rows if row.get("speedup", {}).get("eager")]
    return {
        "pool": pool,
        "seconds": found["seconds"],
        "evaluations": found["evaluations"],
        "states": dict(Counter(f"{row['state']} {row['status']}" for row in rows)),
        "confirmed": sum(bool(row["confirmed"]) for row in rows),
        "mean_vs_eager": round(math.exp(sum(map(math.log, best)) / len(best)), 3) if best else None,
        "store_sound": found["sound"],
    }


def compared(first: dict, other: dict) -> dict:
    """How two runs differ."""
    statuses, apart, kernels, both = [], [], 0, 0
    for problem, row in first["rows"].items():
        mine = other["rows"][problem]
        if (row["state"], row["status"]) != (mine["state"], mine["status"]):
            statuses.append(f"{problem}: {row['state']} {row['status']}, {mine['state']} {mine['status']}")
        one, two = (r.get("speedup", {}).get("eager") for r in (row, mine))
        if one and two:
            both += 1
            kernels += row["candidate"] == mine["candidate"]
            if one["high"] < two["low"] or two["high"] < one["low"]:
                apart.append(f"{problem}: {one['median']:.2f}x and {two['median']:.2f}x")
    return {"statuses_differ": statuses, "timed_in_both": both, "same_kernel": kernels, "intervals_apart": apart}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--pools", nargs="+", default=["local", "spool", "ray"])
    parser.add_argument("--again", action="store_true", help="run the first pool twice, to see what differs by chance")
    parser.add_argument("--keep", type=Path, help="a folder of what each pool found; a later call takes it from there")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    ids = [problem.id for problem in load_suite("kernelwright")]
    chosen = [ids[n * len(ids) // given.problems] for n in range(given.problems)]
    pools = [*given.pools, *([f"{given.pools[0]} again"] if given.again else [])]
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    found, table = {}, []
    for pool in pools:
        found[pool] = kept(pool, chosen, given.rounds, given.keep)
        row = summary(pool, found[pool])
        if pool != pools[0]:
            row |= compared(found[pools[0]], found[pool])
        table.append(row)
        print(json.dumps(row), flush=True)
        if given.output is not None:
            given.output.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
