"""Chooses the cells of a matrix, and the slow tests, that a commit runs.

A matrix is a parametrised test whose cells are alike: a problem and a schedule, an attack and a sandbox. ``make test``
runs a share of each matrix, and a share of the tests that take long; both move on with every commit. ``make test-all``
runs every cell and every test.

Everything here is a pure function, except for what asks git.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")
SLOT_VARIABLE = "KERNELWRIGHT_TEST_SLOT"
SLOW_S = 0.5  # a test whose body takes as long takes turns with the other slow tests
SLOW_ONE_IN = 16
MAIN_BRANCHES = ("origin/HEAD", "origin/main", "origin/master", "main", "master")


class Cell(NamedTuple):
    """One item of a matrix.

    Attributes:
        id: the node id of the item.
        matrix: the node id of the test function; of tests without parameters that of their file.
        name: what distinguishes the cell in its matrix: the part in brackets, or the name of the function.
        stratum: cells of one stratum are alike; a slot runs some of each stratum.
        one_in: a slot runs one cell in so many.
        keep: a slot runs at least so many cells of the stratum.
    """

    id: str
    matrix: str
    name: str
    stratum: str
    one_in: int
    keep: int


def window(number: int, size: int, slot: int) -> list[int]:
    """The positions that a slot takes of ``number``: ``size`` of them, right behind those of the slot before.

    So any ``ceil(number / size)`` slots in a row take every position.
    """
    if size >= number:
        return list(range(number))
    return sorted((slot * size + at) % number for at in range(size))


def size_of(number: int, one_in: int, keep: int) -> int:
    """How many of ``number`` cells a slot takes."""
    return min(number, max(-(-number // one_in), keep, 1))


def chosen(cells: Iterable[Cell], slot: int) -> set[str]:
    """The ids of the cells that a slot runs.

    Cells of a stratum are ordered by a hash of their names, so that neighbours are not taken together. Tests of one
    file with the same parameters take the same cells, and share what they have built for them.
    """
    strata: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        strata.setdefault((cell.matrix, cell.stratum), []).append(cell)
    taken = set()
    for members in strata.values():
        members.sort(key=lambda cell: (hashlib.sha256(cell.name.encode()).digest(), cell.id))
        size = size_of(len(members), max(1, members[0].one_in), members[0].keep)
        taken |= {members[at].id for at in window(len(members), size, slot)}
    return taken


def whose_turn(seconds: Mapping[str, float], slot: int) -> set[str]:
    """The slow tests that a slot runs, by the seconds of all of them: dealt out like cards, the longest first."""
    return set(sorted(seconds, key=lambda name: (-seconds[name], name))[slot % SLOW_ONE_IN :: SLOW_ONE_IN])


class Sample:
    """What a single test runs of its own cells: all of them, or a share that moves on with the slot.

    Attributes:
        slot: the slot; None where everything runs.
        left_out: how many cells were left out so far.
    """

    def __init__(self, slot: int | None) -> None:
        self.slot = slot
        self.left_out = 0

    def of(self, cells: Sequence[T], size: int, *, shift: int = 0) -> list[T]:
        """``size`` of the cells. Tests that count ``shift`` up take others, and together take each equally often."""
        if self.slot is None:
            return list(cells)
        taken = [cells[at] for at in window(len(cells), size, self.slot + shift)]
        self.left_out += len(cells) - len(taken)
        return taken

    def number(self, whole: int, few: int) -> int:
        """How often a test repeats its experiment: ``few`` times in a sample, else ``whole``."""
        if self.slot is None:
            return whole
        self.left_out += max(0, whole - few)
        return min(whole, few)


# ------------------------------------------------------------------------------------------------ what git says


def git(root: Path, *words: str) -> str:
    """The output of a git command; empty where it fails or there is no git."""
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def slot_of(root: Path, environment: Mapping[str, str], ask: Callable[..., str] = git) -> int:
    """The slot of the commit: how many commits lead to it; in a shallow clone a number from its hash.

    The variable ``KERNELWRIGHT_TEST_SLOT`` overrides it.

    Raises:
        ValueError: the variable is no whole number.
    """
    given = environment.get(SLOT_VARIABLE, "")
    if given:
        if not given.isdecimal():
            raise ValueError(f"{SLOT_VARIABLE}={given!r} is no slot: give a whole number, such as 7")
        return int(given)
    if ask(root, "rev-parse", "--is-shallow-repository") == "true":
        return int(ask(root, "rev-parse", "HEAD")[:8] or "0", 16)
    return int(ask(root, "rev-list", "--count", "HEAD") or "0")


def base_of(root: Path, ask: Callable[..., str] = git) -> str:
    """The commit that the working tree is compared with: where it left the main branch, on that its parent."""
    head = ask(root, "rev-parse", "HEAD")
    for branch in MAIN_BRANCHES:
        found = ask(root, "merge-base", "HEAD", branch)
        if found:
            return found if found != head else ask(root, "rev-parse", "--verify", "--quiet", "HEAD~1") or "HEAD"
    return ask(root, "rev-parse", "--verify", "--quiet", "HEAD~1") or "HEAD"


def touched(root: Path, ask: Callable[..., str] = git) -> frozenset[str]:
    """Files below ``root`` that the change touches, committed or not."""
    changed = ask(root, "diff", "--name-only", "--relative", base_of(root, ask))
    new = ask(root, "ls-files", "--others", "--exclude-standard")
    return frozenset(f"{changed}\n{new}".split("\n")) - {""}


def is_touched(file: str, name: str, paths: Iterable[str]) -> bool:
    """Whether the change touches a test file, or the file that a cell is named after (an attack, a page, a problem)."""
    for path in paths:
        plain = re.sub(r"/\d+_", "/", path.rpartition(".")[0])  # files of problems begin with a number
        if path == file or (name and (path == name or plain.endswith(f"/{name}"))):
            return True
    return False
