"""What a GPU says of the code generator: the best of some kernels for each problem, beside eager and torch.compile.

Each row is a problem with its winner's latency and speedups, as the referee confirmed them, and goes to ``--output`` as
it comes. A file that is there already is gone on with. ``--suite`` takes all built-in problems, one of each category
first; ``--problems`` takes others, also files. ``--minutes`` ends in time: no problem begins that would not end.
``--report`` prints the means of a file. Ends with 3 without a GPU. What the referee itself is worth there,
``kernelwright doctor --prove-gpu`` says.

    python benchmarks/gpu.py --suite --minutes 5 --output benchmarks/results/<device>/gpu.jsonl
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelwright.campaign import Campaign
from kernelwright.config import Settings
from kernelwright.datasets import find_problem, load_suite
from kernelwright.evaluator import environment, find_device, read_state
from kernelwright.records import Problem
from kernelwright.store import Store

NO_DEVICE = 3
MODES = ("eager", "compile", "compile-max-autotune", "compile-max-autotune-no-cudagraphs")
SUITE = "kernelwright"
BEST_OF = 8
FLOOR = 0.95  # of torch.compile: a problem below it is told by name
_FIELDS = ("problem", "stage", "status", "confirmed", "latency_ms", "speedup", "denied", "reason", "seconds")


def by_worth(problems: Iterable[Problem]) -> list[Problem]:
    """One problem of each category, then a second of each, and so on: what a short time sees is spread out."""
    seen: dict[str, int] = {}
    ranked = []
    for problem in problems:
        turn = seen[problem.meta.category] = seen.get(problem.meta.category, 0) + 1
        ranked.append((turn, problem.id, problem))
    return [problem for _, _, problem in sorted(ranked, key=lambda one: one[:2])]


def read_rows(path: Path | None) -> list[dict[str, Any]]:
    """The rows of a file; a last line that was cut off is left out."""
    rows = []
    for line in path.read_text().splitlines() if path is not None and path.exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def winner(problem: Problem, settings: Settings) -> dict[str, Any]:
    """One row: the winner of a campaign on one problem, or the reason why no kernel won."""
    with Store.open(settings.store) as store:
        result = Campaign(settings, store).run([problem])
    row = result.rows[0].model_dump(mode="json")
    return {name: row[name] for name in _FIELDS} | {"best of": settings.rounds}


def summary(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Geometric means over each baseline, and the problems behind torch.compile. A problem without a winner has 1."""
    lines = [f"{len(rows)} problems, {sum(row['latency_ms'] is not None for row in rows)} with a kernel that was timed"]
    for mode in MODES:
        found = {row["problem"]: row["speedup"][mode]["median"] for row in rows if mode in row["speedup"]}
        if found:
            mean = math.exp(statistics.fmean(math.log(value) for value in found.values()))
            lines.append(f"{mode}: {mean:.3f}x over {len(found)} problems")
            behind = sorted((value, name) for name, value in found.items() if value < FLOOR and mode == "compile")
            lines += [f"  behind: {name} {value:.2f}x" for value, name in behind]
    lines += [f"  no kernel: {row['problem']}: {row['reason']}" for row in rows if row["latency_ms"] is None]
    return lines


def measure(arguments: argparse.Namespace, problems: Sequence[Problem]) -> None:
    """Run the problems that the file lacks, until the time is over."""
    end = time.monotonic() + 60 * arguments.minutes
    rows = read_rows(arguments.output)
    if rows and not arguments.output.read_text().endswith("\n"):
        arguments.output.write_text("".join(json.dumps(row, sort_keys=True) + "\n" for row in rows))
    done, took = {row["problem"] for row in rows}, [row["seconds"] for row in rows]
    for problem in problems:
        left = end - time.monotonic()
        if problem.id in done:
            continue
        if left < (statistics.median(took) if took else 0):
            print(f"stopped for time: {len(problems) - len(done)} problems are left", file=sys.stderr)
            return
        with tempfile.TemporaryDirectory() as made:
            flags = {"store": Path(made) / "winners.db", "backend": arguments.backend, "rounds": arguments.best_of}
            flags |= {"baselines": tuple(arguments.modes), "max_minutes": left / 60 if math.isfinite(left) else None}
            row = winner(problem, Settings.load(flags=flags))
        done.add(problem.id)
        took.append(row["seconds"])
        print(json.dumps(row), file=sys.stderr, flush=True)
        if arguments.output:
            arguments.output.parent.mkdir(parents=True, exist_ok=True)
            with arguments.output.open("a") as file:
                file.write(json.dumps(row, sort_keys=True) + "\n")


def main(words: Sequence[str] | None = None) -> int:
    """Optimise the problems, write what was found, and print the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", action="store_true", help="all built-in problems")
    parser.add_argument("--problems", nargs="*", default=[], metavar="P")
    parser.add_argument("--backend", default="triton", choices=("triton", "cuda"))
    parser.add_argument("--best-of", type=int, default=BEST_OF, metavar="N")
    parser.add_argument("--modes", nargs="+", default=MODES[:2], choices=MODES)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--report", action="store_true", help="only print what the file holds")
    arguments = parser.parse_args(words)
    if arguments.report and not (arguments.output and arguments.output.exists()):
        parser.error("--report reads a file that is there already: name it with --output")
    if arguments.report:
        print("\n".join(summary(read_rows(arguments.output))))
        return 0
    if not arguments.suite and not arguments.problems:
        parser.error("say which problems: --suite, or --problems P")
    device = find_device()
    if device is None:
        print("this benchmark needs an NVIDIA GPU: nvidia-smi shows none that may be used here", file=sys.stderr)
        return NO_DEVICE
    print(json.dumps({"environment": environment(1, device).model_dump(), "state": read_state(device)}))
    problems = by_worth(load_suite(SUITE)) if arguments.suite else []
    measure(arguments, [*(find_problem(name) for name in arguments.problems), *problems])
    print("\n".join(summary(read_rows(arguments.output))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
