"""Finds problem files: the built-in suites, suites in other folders, and single files."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, overload

from kernelwright.datasets._contract import parse_problem
from kernelwright.datasets._lint import LintFinding
from kernelwright.datasets._variants import no_variant
from kernelwright.errors import InvalidReferenceError, UsageError
from kernelwright.records import VARIANT_MARK, Problem

BUILT_IN = Path(__file__).parent / "suites"

DEMO_PROBLEMS: tuple[str, ...] = (
    "kernelwright/level1/softmax",
    "kernelwright/level1/layer_norm",
    "kernelwright/level1/rms_norm",
    "kernelwright/level1/max_pool2d",
    "kernelwright/level2/scale_add_relu_multiply",
    "kernelwright/level2/group_norm_hardtanh",
    "kernelwright/level2/gemm_bias_gelu",
    "kernelwright/level2/conv_bias_hardswish_scale",
    "kernelwright/level2/swiglu",
    "kernelwright/level3/attention_block",
)

_LEVEL = re.compile(r"level_?(\d+)$", re.IGNORECASE)
_NUMBERED = re.compile(r"(\d+)_(.+)$")


class Entry(NamedTuple):
    """One problem file of a suite, not yet read."""

    suite: str
    level: int
    number: int | None
    name: str
    path: Path

    @property
    def id(self) -> str:
        return f"{self.suite}/level{self.level}/{self.name}"

    def read(self) -> Problem:
        return parse_problem(
            _read_text(self.path),
            id=self.id,
            suite=self.suite,
            level=self.level,
            name=self.name,
            number=self.number,
            path=str(self.path),
        )


class UnreadableProblem(NamedTuple):
    """A file that should be a problem and cannot be read as one.

    ``error`` says why: it breaks the contract, or is no readable text. ``id`` is what it would be called.
    """

    id: str
    number: int | None
    path: str
    error: InvalidReferenceError | UsageError

    @property
    def finding(self) -> LintFinding:
        """What the lint says of it."""
        return LintFinding.of_error(self.error)


class Suite(Sequence[Problem]):
    """The problems of a suite that could be read, in order; ``broken`` are the files that could not."""

    def __init__(self, problems: Iterable[Problem], broken: Iterable[UnreadableProblem] = ()) -> None:
        self._problems = tuple(problems)
        self.broken = tuple(broken)

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Problem, ...]: ...
    def __getitem__(self, index: int | slice) -> Problem | tuple[Problem, ...]:
        return self._problems[index]

    def __len__(self) -> int:
        return len(self._problems)


def suites(suite_dirs: Sequence[Path] = ()) -> tuple[str, ...]:
    """Names of all suites, sorted: the built-in ones and those of ``suite_dirs``.

    A folder in ``suite_dirs`` is a suite where it has ``level1``, ``level2``... folders; otherwise its subfolders that
    have them are.

    Raises:
        UsageError: a folder is missing or holds no suite, or two suites share a name.
    """
    return tuple(sorted(_suite_folders(suite_dirs)))


def load_suite(name: str = "kernelwright", level: int | None = None, suite_dirs: Sequence[Path] = ()) -> Suite:
    """All problems of a suite (of one level, where given), sorted by level and number.

    A file that breaks the contract or cannot be read stands in ``broken``, and does not keep the others from loading.

    Raises:
        UsageError: no such suite or level.
    """
    folders = _suite_folders(suite_dirs)
    if name not in folders:
        raise UsageError(f"no suite named {name}", hint=_suggest(name, folders), name=name)
    entries = sorted(_entries(name, folders[name]), key=_order)
    levels = sorted({entry.level for entry in entries})
    if level is not None and level not in levels:
        listed = ", ".join(map(str, levels))
        raise UsageError(f"suite {name} has no level {level}", hint=f"its levels are {listed}", level=level)
    problems: list[Problem] = []
    broken: list[UnreadableProblem] = []
    for entry in entries:
        if level not in (None, entry.level):
            continue
        try:
            problems.append(entry.read())
        except (InvalidReferenceError, UsageError) as error:
            broken.append(UnreadableProblem(entry.id, entry.number, str(entry.path), error))
    return Suite(problems, broken)


def find_problem(ref: str, suite_dirs: Sequence[Path] = ()) -> Problem:
    """The problem that ``ref`` names.

    ``ref`` is ``suite/level1/name``, ``suite/level1/3`` or ``suite/1/name`` (the suite may be left out), a bare name
    that only one problem has, or a path to a reference ``.py`` file. With ``@2`` behind it, the variant with that
    number is the one that is timed.

    Raises:
        UsageError: nothing, or more than one problem, has that name; the hint lists near ones. Or it has no such
            variant.
        InvalidReferenceError: the file breaks the contract.
    """
    path = Path(ref)
    if ref.endswith(".py"):
        return parse_problem(
            _read_text(path), id=f"file/{path.stem}", suite="file", level=0, name=path.stem, path=str(path.resolve())
        )
    entries = [entry for suite, folder in _suite_folders(suite_dirs).items() for entry in _entries(suite, folder)]
    matches = [entry for entry in entries if _matches(entry, ref)]
    if len(matches) == 1:
        return matches[0].read()
    name, mark, number = ref.rpartition(VARIANT_MARK)
    if mark and number.isdecimal() and not matches:
        return _at_variant(find_problem(name, suite_dirs), int(number))
    if matches:
        listed = ", ".join(entry.id for entry in sorted(matches, key=_order))
        raise UsageError(f"more than one problem is named {ref}", hint=f"give one of: {listed}", ref=ref)
    raise UsageError(f"no problem named {ref}", hint=_suggest_problem(ref, entries), ref=ref)


def _at_variant(problem: Problem, number: int) -> Problem:
    """The problem with another variant timed, which some class of devices has to have."""
    counts = [len(problem.meta.variants_for(name)) for name in problem.meta.variants] or [1]
    if number >= max(counts):
        raise no_variant(problem, next(iter(problem.meta.variants), "cpu"), number)
    return problem.at_variant(number)


def _suite_folders(suite_dirs: Sequence[Path]) -> dict[str, Path]:
    folders: dict[str, Path] = {}
    for folder in _candidate_folders(suite_dirs):
        if folder.name in folders:
            both = f"{folders[folder.name]} and {folder}"
            raise UsageError(f"two suites are named {folder.name}: {both}", hint="rename one of the folders")
        folders[folder.name] = folder
    return folders


def _candidate_folders(suite_dirs: Sequence[Path]) -> Iterator[Path]:
    seen: set[Path] = set()
    for given in (BUILT_IN, *suite_dirs):
        folder = Path(given).resolve()
        if folder in seen:
            continue
        seen.add(folder)
        if not folder.is_dir():
            raise UsageError(f"no such suite folder: {given}", hint="give a folder that has level1, level2, ...")
        found = [folder] if _has_levels(folder) else [f for f in sorted(folder.iterdir()) if _has_levels(f)]
        if not found:
            raise UsageError(f"{given} holds no suite", hint="put problem files NN_name.py into level1, level2, ...")
        yield from found


def _has_levels(folder: Path) -> bool:
    return folder.is_dir() and any(_LEVEL.match(f.name) and f.is_dir() for f in folder.iterdir())


def _entries(suite: str, folder: Path) -> Iterator[Entry]:
    for level_folder in sorted(folder.iterdir()):
        level = _LEVEL.match(level_folder.name)
        if level is None or not level_folder.is_dir():
            continue
        for path in sorted(level_folder.glob("*.py")):
            if path.name.startswith("_"):
                continue
            numbered = _NUMBERED.match(path.stem)
            number, name = (int(numbered[1]), numbered[2]) if numbered else (None, path.stem)
            yield Entry(suite, int(level[1]), number, name, path)


def _order(entry: Entry) -> tuple[str, int, float, str]:
    return entry.suite, entry.level, float("inf") if entry.number is None else entry.number, entry.name


def _matches(entry: Entry, ref: str) -> bool:
    *parents, last = ref.strip("/").split("/")
    names = {entry.name, entry.path.stem}
    if parents and entry.number is not None:
        names.add(str(entry.number))
    levels = {f"level{entry.level}", str(entry.level)}
    match parents:
        case []:
            return last in names
        case [level]:
            return last in names and level in levels
        case [suite, level]:
            return last in names and level in levels and suite == entry.suite
        case _:
            return False


def _suggest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"known are: {', '.join(sorted(known))}"


def _suggest_problem(ref: str, entries: Sequence[Entry]) -> str:
    by_name = {entry.name.lower(): entry.id for entry in entries}
    near = [by_name[name] for name in difflib.get_close_matches(ref.lower().rsplit("/")[-1], by_name, n=3, cutoff=0.5)]
    near += [i for i in difflib.get_close_matches(ref, [e.id for e in entries], n=3, cutoff=0.6) if i not in near]
    if near:
        return f"did you mean {' or '.join(near[:4])}?"
    return "`kernelwright problems list` shows all; a reference file is named by its path, ending in .py"


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"no such file: {path}", hint=_near_files(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", hint="give a readable UTF-8 Python file") from None


def _near_files(path: Path) -> str:
    siblings = [f.name for f in path.parent.glob("*.py")] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, siblings, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else "check the path"
