"""What the daily suite sees: forty faults, put into a copy of the tree one after another, and the tests run on each.

    python benchmarks/mutants.py                       # all that benchmarks/mutants.json lists; goes on where it ended
    python benchmarks/mutants.py --list                # names, files, and what each fault breaks
    python benchmarks/mutants.py --only no-poison      # one of them, anew
    python benchmarks/mutants.py --slot 3              # with sample 3 of the matrices instead of the commit's own
    python benchmarks/mutants.py --likely              # only the test files that most likely see each fault
    python benchmarks/mutants.py --minutes 60          # begins no other fault after an hour

The copy is a git worktree of the last commit in a temporary folder; tests import the package from there, and nothing is
changed in place. Each fault meets what ``make test`` runs: first the files that most likely see it, in one process,
then those of all rooms that can reach the changed module, phase by phase. It ends at the first failure. A test that
fails without the fault as well kills nothing and is left out. What the daily suite lets live meets the whole suite,
``make test-all``.

The record, benchmarks/results/mutants.json, is written after every fault. Ends with 1 where more than two faults
outlive the daily suite.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MUTANTS = ROOT / "benchmarks" / "mutants.json"
RESULTS = ROOT / "benchmarks" / "results" / "mutants.json"
SUITE = "scripts/run_tests.py"  # what ``make test`` runs: its phases are ours
SLOT = "KERNELWRIGHT_TEST_SLOT"
NOT_COLLECTED = {"browser"}  # folders of tests that need packages of their own, and are in neither suite
ALLOWED = 2  # faults that may outlive the daily suite
_PATIENCE_S = 30.0  # for tests that were interrupted, to end what they started
_PASSED, _FAILED, _INTERRUPTED, _NOTHING = 0, 1, 2, 5  # exit codes of pytest


class MutantError(Exception):
    """A fault cannot be put in, or the tests cannot be run."""


@dataclass(frozen=True)
class Mutant:
    """A fault: ``old`` stands in ``file`` once, and is replaced by ``new``.

    Attributes:
        breaks: what users lose by it.
        tests: files that most likely see it.
    """

    name: str
    area: str
    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Changes when the fault does."""
        return hashlib.sha256("\0".join((self.file, self.old, self.new)).encode()).hexdigest()[:12]

    def applied(self, root: Path) -> str:
        """The text of its file with the fault in it.

        Raises:
            MutantError: the text to replace does not stand there exactly once, or the result is no Python.
        """
        path = root / self.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if (found := text.count(self.old)) != 1:
            raise MutantError(
                f"{self.name}: its text is found {found} times in {self.file}, not once: correct its entry in "
                f"benchmarks/mutants.json, or write another fault for the same promise\n    {self.old.strip()}"
            )
        changed = text.replace(self.old, self.new)
        try:
            ast.parse(changed)
        except SyntaxError as error:
            raise MutantError(f"{self.name}: {self.file} is no Python with the fault in it: {error}") from error
        return changed


@dataclass
class Run:
    """How one run of tests ended: the test that failed, if any, and how long it took."""

    failed: str = ""
    seconds: float = 0.0


def load(path: Path = MUTANTS) -> list[Mutant]:
    """The faults of the list."""
    return [Mutant(**{**row, "tests": tuple(row["tests"])}) for row in json.loads(path.read_text(encoding="utf-8"))]


# ---------------------------------------------------------------------------------------------------- which tests


def rooms_reaching(room: str, package: Path) -> set[str]:
    """The rooms that import a room, by way of others too, and the room itself."""
    imports: dict[str, set[str]] = {}
    for path in package.rglob("*.py"):
        importer = path.relative_to(package).parts[0].removesuffix(".py")
        imports.setdefault(importer, set()).update(_imported_rooms(path))
    reaching = {room}
    while more := {name for name, used in imports.items() if used & reaching} - reaching:
        reaching |= more
    return reaching


def _imported_rooms(path: Path) -> set[str]:
    return set(re.findall(r"\bkernelwright(?:\.| import )(\w+)", path.read_text(encoding="utf-8")))


def other_tests(mutant: Mutant, root: Path) -> list[str]:
    """Folders of tests that can reach a fault, by their own imports or their room's, and the files beside them."""
    package, tests = root / "kernelwright", root / "tests"
    rooms = {path.name.removesuffix(".py") for path in package.iterdir()}
    reaching = rooms_reaching(Path(mutant.file).parts[1].removesuffix(".py"), package)
    folders = [path for path in tests.iterdir() if path.is_dir() and not path.name.startswith(("_", "."))]
    folders = [folder for folder in folders if folder.name not in NOT_COLLECTED]
    found = [
        folder
        for folder in folders
        if folder.name in reaching
        or folder.name not in rooms
        or any(_imported_rooms(path) & reaching for path in folder.glob("*.py"))
    ]
    return sorted(str(path.relative_to(root)) for path in (*found, *tests.glob("test_*.py")))


def common(places: Sequence[str], others: Sequence[str]) -> list[str]:
    """What lies in one of ``places`` and in one of ``others``."""

    def inside(inner: Sequence[str], outer: Sequence[str]) -> set[str]:
        return {path for path in inner if any(Path(path).is_relative_to(folder) for folder in outer)}

    return sorted(inside(places, others) | inside(others, places))


# ---------------------------------------------------------------------------------------------------- the copy


class Copy:
    """A copy of the tree, in which one fault at a time stands."""

    def __init__(self, root: Path, slot: str | None) -> None:
        self.root = root
        self.suite = runpy.run_path(str(root / SUITE))
        self._slot = slot
        self._cache = root.parent / "pytest"
        self._changes = 0

    @contextmanager
    def with_fault(self, mutant: Mutant) -> Iterator[None]:
        """The fault, put in and taken out again."""
        path = self.root / mutant.file
        before = path.read_text(encoding="utf-8")
        self._write(path, mutant.applied(self.root))
        try:
            yield
        finally:
            self._write(path, before)

    def _write(self, path: Path, text: str) -> None:
        """Write a module, each time with another second: by that and its size Python knows what it compiled before."""
        path.write_text(text, encoding="utf-8")
        self._changes += 1
        os.utime(path, (time.time() + self._changes,) * 2)

    def imported_from(self) -> Path:
        """Where tests find the package."""
        code = "import kernelwright; print(kernelwright.__file__)"
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.root,
            env=self._environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        return Path(done.stdout.strip())

    def _environment(self) -> dict[str, str]:
        slot = {} if self._slot is None else {SLOT: self._slot}
        return {**os.environ, "PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "1", **slot}

    def pytest(self, phase: Any, *, whole: bool, left_out: Sequence[str] = ()) -> Run:
        """Run the tests of a phase until the first one fails.

        Raises:
            MutantError: pytest itself failed.
        """
        shutil.rmtree(self._cache, ignore_errors=True)
        more = ["-x", "-o", f"cache_dir={self._cache}", *(f"--deselect={test}" for test in left_out)]
        words = self.suite["command_of"](phase, whole=whole, tally=self._cache.with_name("tally"), more=more)
        began = time.monotonic()
        code, said = _ended(words, self.root, self._environment())
        seconds = time.monotonic() - began
        if code in (_PASSED, _NOTHING):
            return Run("", seconds)
        failed = self._cache / "v" / "cache" / "lastfailed"
        if code not in (_FAILED, _INTERRUPTED) or not failed.is_file():
            raise MutantError(f"pytest ended with {code}: {' '.join(words)}\n{said[-3000:]}")
        return Run(next(iter(json.loads(failed.read_text()))), seconds)


def _ended(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> tuple[int, str]:
    """Exit code and output of a program; one that an interrupt finds running is interrupted, and waited for."""
    with tempfile.TemporaryFile("w+") as output:
        with subprocess.Popen(words, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT) as process:
            try:
                code = process.wait()
            except BaseException:
                process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_PATIENCE_S)
                process.kill()
                raise
        output.seek(0)
        return code, output.read()


@contextmanager
def copied(slot: str | None) -> Iterator[Copy]:
    """A git worktree of the last commit, removed at the end.

    Raises:
        MutantError: git cannot make it, or its package would not be the one that is imported.
    """
    folder = Path(tempfile.mkdtemp(prefix="kernelwright-mutants-"))
    folder.chmod(0o755)  # users of a sandbox pass through it
    tree = folder / "tree"
    made = _git("worktree", "add", "--quiet", "--detach", str(tree), "HEAD")
    try:
        if made.returncode:
            raise MutantError(f"git cannot copy the tree: {made.stderr.strip()}")
        if (ROOT / ".venv").exists():
            (tree / ".venv").symlink_to((ROOT / ".venv").resolve())
        copy = Copy(tree, slot)
        if not copy.imported_from().is_relative_to(tree):
            raise MutantError(f"tests would import {copy.imported_from()} and not the copy in {tree}")
        yield copy
    finally:
        _git("worktree", "remove", "--force", str(tree))
        shutil.rmtree(folder, ignore_errors=True)


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)


# ---------------------------------------------------------------------------------------------------- a fault's fate


def fate(copy: Copy, mutant: Mutant, *, likely_only: bool) -> dict[str, Any]:
    """Which test of which suite kills a fault, and how long that took; ``suite`` is empty for one that lives."""
    row: dict[str, Any] = {"digest": mutant.digest, "suite": "", "test": "", "seconds": 0.0, "unsteady": []}
    phases = copy.suite["PHASES"]
    any_phase = " or ".join(f"({phase.tests})" for phase in phases)
    likely = copy.suite["Phase"]("likely", f"({any_phase})", list(mutant.tests), [])
    stages = [(likely, ())]
    if not likely_only:
        reach = other_tests(mutant, copy.root)
        others = [phase._replace(places=common(phase.places, reach)) for phase in phases]
        stages += [(phase, mutant.tests) for phase in others if phase.places]
    for suite, whole in (("daily", False), ("whole", True)):
        for phase, done_already in stages:
            if test := _killer(copy, mutant, phase, done_already, whole, row):
                return {**row, "suite": suite, "test": test, "seconds": round(row["seconds"], 1)}
    return {**row, "seconds": round(row["seconds"], 1)}


def _killer(
    copy: Copy, mutant: Mutant, phase: Any, done_already: Sequence[str], whole: bool, row: dict[str, Any]
) -> str:
    """The test that fails by the fault; empty where none does. Those that fail without it are noted and left out."""
    while True:
        with copy.with_fault(mutant):
            run = copy.pytest(phase, whole=whole, left_out=(*done_already, *row["unsteady"]))
        row["seconds"] += run.seconds
        if not run.failed:
            return ""
        if not copy.pytest(phase._replace(places=[run.failed], options=[]), whole=True).failed:
            return run.failed
        if run.failed in row["unsteady"]:
            raise MutantError(f"{run.failed} cannot be collected, with or without {mutant.name}")
        row["unsteady"].append(run.failed)


# ---------------------------------------------------------------------------------------------------- record, report


def settled(row: Mapping[str, Any] | None, mutant: Mutant, head: str, slot: str | None) -> bool:
    """Whether a row needs no other run: a fault that lives may be killed by tests that were added since."""
    if row is None or row["digest"] != mutant.digest or row["slot"] != slot:
        return False
    return bool(row["suite"] == "daily" or row["commit"] == head)


def report(mutants: Sequence[Mutant], rows: Mapping[str, Mapping[str, Any]]) -> int:
    """Print the table and the ratio; the exit code."""
    told = [(mutant, rows[mutant.name]) for mutant in mutants if mutant.name in rows]
    print(f"{'area':10} {'fault':24} {'killed by':10} {'s':>6}  test")
    for mutant, row in told:
        print(f"{mutant.area:10} {mutant.name:24} {row['suite'] or 'nothing':10} {row['seconds']:6.0f}  {row['test']}")
        for test in row["unsteady"]:
            print(f"{'':36} fails without the fault as well: {test}")
    daily = sum(row["suite"] == "daily" for _, row in told)
    whole = sum(bool(row["suite"]) for _, row in told)
    print(
        f"daily kills {daily} of the {whole} that the whole suite kills; {len(told)} of {len(mutants)} faults were run"
    )
    return int(len(told) - daily > ALLOWED)


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="NAME", action="append", default=[], help="this fault; may be repeated")
    parser.add_argument("--slot", help=f"which sample of the matrices ({SLOT}); the commit's own by default")
    parser.add_argument("--likely", action="store_true", help="the likely test files alone; writes no record")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no other fault after so long")
    parser.add_argument("--list", action="store_true", help="say what the faults are, and run nothing")
    asked = parser.parse_args()
    mutants = load()
    if unknown := set(asked.only) - {mutant.name for mutant in mutants}:
        parser.error(f"no fault is called {', '.join(sorted(unknown))}: --list says which there are")
    chosen = [mutant for mutant in mutants if not asked.only or mutant.name in asked.only]
    if asked.list:
        for mutant in chosen:
            print(f"{mutant.area:10} {mutant.name:24} {mutant.file}\n{'':35} {mutant.breaks}")
        return 0
    record = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    rows: dict[str, Any] = {} if asked.likely else record
    head = _git("rev-parse", "HEAD").stdout.strip()
    until = time.monotonic() + 60 * asked.minutes
    with copied(asked.slot) as copy:
        for mutant in chosen:
            mutant.applied(copy.root)
        for mutant in chosen:
            if not asked.only and settled(rows.get(mutant.name), mutant, head, asked.slot):
                continue
            if time.monotonic() > until:
                break
            row = fate(copy, mutant, likely_only=asked.likely)
            rows[mutant.name] = {"area": mutant.area, **row, "slot": asked.slot, "commit": head}
            print(f"{mutant.name}: {row['suite'] or 'LIVES'} {row['test']} ({row['seconds']:.0f} s)", flush=True)
            if not asked.likely:
                RESULTS.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return report(chosen, rows)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        sys.exit(main())
    except MutantError as error:
        sys.exit(f"mutants: {error}")
    except KeyboardInterrupt:
        sys.exit("mutants: interrupted; the record holds what was finished")
