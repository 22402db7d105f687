"""What ``kernelwright tune`` makes of ten hand-written kernels with knobs, and how long it takes.

    python benchmarks/tune.py --output benchmarks/results/MACHINE/tune.json

Each kernel of ``examples/knobs`` is tuned by the command itself, as a user would do it, in a process of its own; its
seconds are those of the whole process. A kernel counts as settled where it was improved, or where the interval of its
confirmation shows that no setting beats the default by more than the noise. All share one store that is empty at first,
so that the later ones may learn from the earlier ones. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from kernelwright.evaluator import environment

ROOT = Path(__file__).parents[1]
KERNELS = ROOT / "examples" / "knobs"
KEPT = (
    "outcome",
    "summary",
    "ratio",
    "setting",
    "default_setting",
    "space",
    "judged",
    "exhaustive",
    "cost_model",
    "tried",
)


def main() -> int:
    """Tune all kernels, print and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="*", help="names of files in examples/knobs; default: all of them")
    parser.add_argument("--max-seconds", type=float, default=60.0)
    parser.add_argument("--max-evaluations", type=int, default=24)
    parser.add_argument("--sampler", default="tpe")
    parser.add_argument("--store", type=Path, help="a database to learn from and write to; default: an empty one")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    names = arguments.kernels or sorted(path.stem for path in KERNELS.glob("*.py"))
    with tempfile.TemporaryDirectory() as folder:
        store = arguments.store or Path(folder) / "store.db"
        found = {name: tuned(name, store, arguments) for name in names}
    report = {
        "environment": environment(1).model_dump(mode="json"),
        "load": os.getloadavg()[2],
        "max_seconds": arguments.max_seconds,
        "max_evaluations": arguments.max_evaluations,
        "sampler": arguments.sampler,
        "improved": sum(one["outcome"] == "improved" for one in found.values()),
        "default_proved_best": sum(one["outcome"] == "default" for one in found.values()),
        "kernels_in_all": len(found),
        "longest_s": max(one["wall_s"] for one in found.values()),
        "kernels": found,
    }
    text = json.dumps(report, indent=1, sort_keys=True)
    print(text)
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(text + "\n")
    settled = report["improved"] + report["default_proved_best"]
    return 0 if settled == len(found) else 1


def tuned(name: str, store: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """What came of one kernel, and the wall-clock seconds of the command."""
    command = [sys.executable, "-m", "kernelwright.cli", "tune", str(KERNELS / f"{name}.py"), "--problem", name]
    command += ["--max-seconds", str(arguments.max_seconds), "--max-evaluations", str(arguments.max_evaluations)]
    command += ["--sampler", arguments.sampler, "--store", str(store), "--json"]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    wall_s = round(time.monotonic() - started, 2)
    said = json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else {}
    if "outcome" not in said:
        error = said.get("error", {}).get("message") or done.stderr[-500:]
        print(f"{name}: {wall_s:.1f} s, exit code {done.returncode}: {error}", file=sys.stderr)
        return {"outcome": "error", "error": error, "wall_s": wall_s}
    print(f"{name}: {wall_s:.1f} s, {said['judged']} of {said['space']} judged: {said['summary']}", file=sys.stderr)
    return {"wall_s": wall_s, **{key: said[key] for key in KEPT}}


if __name__ == "__main__":
    sys.exit(main())
