"""Runs the test suite in three phases; a failed phase does not keep the others from running.

    scripts/run_tests.py [--whole] [--slowest FILE] [--durations FILE] [pytest's options]

It runs a sample of the matrices and of the slow tests that follows the commit; ``--whole`` runs all of them.
``--slowest`` writes the slowest tests to a file. ``--durations`` brings the seconds of the slow tests up to date, of
which a sample runs a share; a file that does not exist is made. Further words go to pytest in each phase. It exits
as the first failed phase did.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PLACES: Mapping[str, Sequence[str]] = runpy.run_path(str(ROOT / "tests" / "suite_phases.py"))["PLACES"]
SLOW_S: float = runpy.run_path(str(ROOT / "tests" / "suite_selection.py"))["SLOW_S"]
ELSEWHERE = "not adversarial and not docker and not gpu and not browser and not serve and not ray"
SIDE_BY_SIDE = ["--maxprocesses", "4", "--dist", "loadfile", "--no-loadscope-reorder"]
NO_TESTS = 5  # pytest's exit status
SLOWEST = 40


class Phase(NamedTuple):
    """A phase: its name, which tests it has and where they lie, and pytest's options for it."""

    name: str
    tests: str
    places: Sequence[str]
    options: Sequence[str]


def paths(mark: str) -> list[str]:
    """Where the tests with a mark lie, as pytest is told."""
    return [f"tests/{place}" for place in PLACES[mark]]


PHASES = (
    Phase("side by side", "not limits and not alone", ["tests"], ["-n", "logical", *SIDE_BY_SIDE]),
    Phase("two at a time", "limits", paths("limits"), ["-n", "2", *SIDE_BY_SIDE]),
    Phase("one after another", "alone", paths("alone"), []),
)


def command_of(phase: Phase, *, whole: bool, tally: Path, more: Sequence[str] = ()) -> list[str]:
    """The command that runs a phase."""
    chosen = ["-m", f"({phase.tests}) and {ELSEWHERE}", *([] if whole else ["--sampled"])]
    return [sys.executable, "-m", "pytest", *chosen, *phase.options, f"--tally={tally}", *phase.places, *more]


def closing_line(counts: Mapping[str, int], left_out: int, seconds: float) -> str:
    """The line that pytest would end with, had it run all phases."""
    words = {"error": "errors" if counts.get("error", 0) > 1 else "error"}
    order = ("failed", "passed", "skipped", "xfailed", "xpassed", "error")
    parts = [f"{counts[kind]} {words.get(kind, kind)}" for kind in order if counts.get(kind)]
    parts += [f"{left_out} deselected"] if left_out else []
    return f"{', '.join(parts) or 'no tests ran'} in {seconds:.2f}s ({int(seconds) // 60}:{int(seconds) % 60:02d})"


def slowest(seconds: Mapping[str, float], header: str) -> str:
    """The text of the list of the slowest tests."""
    rows = sorted(seconds.items(), key=lambda row: (-row[1], row[0]))[:SLOWEST]
    return "".join([f"{header}\n\n", *(f"{taken:8.2f} s  {name}\n" for name, taken in rows)])


def durations(before: Mapping[str, float], bodies: Mapping[str, float]) -> dict[str, float]:
    """Seconds of the slow tests, the longest first: as measured now, and of those that did not run as before.

    Files that stand for all of their tests stay as they are.
    """
    now = {name: round(taken, 1) for name, taken in bodies.items() if name.partition("::")[0] not in before}
    slow = {name: taken for name, taken in {**before, **now}.items() if taken >= SLOW_S}
    return dict(sorted(slow.items(), key=lambda row: (-row[1], row[0])))


def run(phase: Phase, arguments: argparse.Namespace, more: Sequence[str], folder: Path) -> tuple[int, float]:
    """Run a phase; its exit status and its seconds."""
    print(f"--- {phase.name}: pytest -m {phase.tests!r}", flush=True)
    environment = {**os.environ, "KERNELWRIGHT_TEST_CACHE": str(folder / "cache")}
    if phase.options:
        environment["OMP_NUM_THREADS"] = "1"
    began = time.monotonic()
    command = command_of(phase, whole=arguments.whole, tally=folder / "tally", more=more)
    status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    return (0 if status == NO_TESTS else status), time.monotonic() - began


def main(words: Sequence[str] | None = None) -> int:
    """Run the phases and say how they ended; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--whole", action="store_true", help="run every cell and every test")
    parser.add_argument("--slowest", type=Path, metavar="FILE", help=f"write the {SLOWEST} slowest tests to FILE")
    parser.add_argument("--durations", type=Path, metavar="FILE", help="bring slow tests' seconds in FILE up to date")
    arguments, more = parser.parse_known_args(words)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it; tests send it
    with tempfile.TemporaryDirectory(prefix="kernelwright-tests-") as made:
        folder = Path(made)
        ended = {phase.name: run(phase, arguments, more, folder) for phase in PHASES}
        tally = folder / "tally"
        records = [json.loads(line) for line in tally.read_text().splitlines()] if tally.exists() else []
    counts: Counter[str] = sum((Counter(record["counts"]) for record in records), Counter())
    seconds = {name: taken for record in records for name, taken in record["seconds"].items()}
    left_out = sum(record["left out"] for record in records)
    spent = ", ".join(f"{name} {taken:.0f} s" for name, (_, taken) in ended.items())
    if arguments.slowest is not None:
        header = f"The {SLOWEST} slowest tests of {'all' if arguments.whole else 'a sample'} ({spent})"
        arguments.slowest.write_text(slowest(seconds, f"{header}, {os.cpu_count()} CPUs, {platform.machine()}."))
    if arguments.durations is not None:
        before = json.loads(arguments.durations.read_text()) if arguments.durations.exists() else {}
        bodies = {name: taken for record in records for name, taken in record["bodies"].items()}
        arguments.durations.write_text(json.dumps(durations(before, bodies), indent=1) + "\n")
    for name, (status, _) in ended.items():
        if status:
            print(f"--- failed: {name} (pytest ended with {status})")
    print(f"--- {spent}")
    print(closing_line(counts, left_out, sum(taken for _, taken in ended.values())), flush=True)
    return next((status for status, _ in ended.values() if status), 0)


if __name__ == "__main__":
    sys.exit(main())
