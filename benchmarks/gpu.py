"""What a GPU says of the code generator: its Triton kernels for problems of the suite against eager and torch.compile.

Each row is a problem (``--problems``, default all) with its winner's latency and speedups. Ends with 3 without a GPU.
What the referee itself is worth there, ``kernelwright doctor --prove-gpu`` says.

    python benchmarks/gpu.py --output benchmarks/results/<device>/gpu.json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from kernelwright.campaign import Campaign
from kernelwright.config import Settings
from kernelwright.datasets import find_problem, load_suite
from kernelwright.evaluator import Device, environment, find_device, read_state
from kernelwright.records import Problem
from kernelwright.store import Store

NO_DEVICE = 3
BASELINES = ("eager", "compile", "compile-max-autotune", "compile-max-autotune-no-cudagraphs")
SUITE = "kernelwright"


def winners(problems: list[Problem], rounds: int, folder: Path) -> list[dict[str, Any]]:
    """One row for each problem: its winner's latency and speedups, or why there is none."""
    settings = Settings.load(
        flags={"store": folder / "winners.db", "backend": "triton", "rounds": rounds, "baselines": BASELINES}
    )
    rows = []
    with Store.open(settings.store) as store:
        for problem in problems:
            result = Campaign(settings, store).run([problem])
            row = result.rows[0].model_dump(mode="json")
            rows.append({name: row[name] for name in ("problem", "stage", "status", "latency_ms", "speedup", "reason")})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def main() -> int:
    """Optimise the problems and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="*", default=[], metavar="P")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    device = find_device()
    if device is None:
        print("this benchmark needs an NVIDIA GPU: nvidia-smi shows none that may be used here", file=sys.stderr)
        return NO_DEVICE
    return run(arguments, device)


def run(arguments: argparse.Namespace, device: Device) -> int:
    """The winners on ``device``, with its state before and after."""
    report: dict[str, Any] = {"environment": environment(1, device).model_dump(), "state before": read_state(device)}
    with tempfile.TemporaryDirectory() as made:
        named = [find_problem(name) for name in arguments.problems] or list(load_suite(SUITE))
        report["winners"] = winners(named, arguments.rounds, Path(made))
    report["state after"] = read_state(device)
    text = json.dumps(report, indent=1, sort_keys=True)
    print(text)
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
