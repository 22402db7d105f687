"""Finds problem files: the built-in suites, suites in other folders, and single files."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, overload

from kernelwright.datasets._contract import parse_problem
from kernelwright.datasets._findings import LintFinding
from kernelwright.datasets._sizes import parse_sizes, resized
from kernelwright.datasets._variants import no_variant
from kernelwright.datasets.loaders import Entry, Loader, loader_of
from kernelwright.datasets.loaders._base import read_text
from kernelwright.errors import InvalidReferenceError, UsageError
from kernelwright.records import Problem
from kernelwright.records.problems import VARIANT_MARK

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

_NAME = re.compile(r"[\w(][^\0-\x1f\x7f@/\\]*")  # a valid part of an id


class UnreadableProblem(NamedTuple):
    """A file that should be a problem but cannot be read as one.

    ``error`` says why: the file breaks the contract or is not readable text. ``id`` is the id that it would have.
    """

    id: str
    number: int | None
    path: str
    error: InvalidReferenceError | UsageError

    @property
    def finding(self) -> LintFinding:
        """The lint's finding about the file."""
        return LintFinding.of_error(self.error)


class Suite(Sequence[Problem]):
    """The readable problems of a suite, in order. ``broken`` holds the files that could not be read."""

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

    A folder in ``suite_dirs`` is a suite if a loader knows its layout (see ``datasets/loaders``). Otherwise each of its
    subfolders with a known layout is a suite.

    Raises:
        UsageError: a folder is missing or holds no suite, or two suites share a name.
    """
    return tuple(sorted(_suites(suite_dirs)))


def load_suite(name: str = "kernelwright", level: int | None = None, suite_dirs: Sequence[Path] = ()) -> Suite:
    """All problems of a suite, or of one ``level`` of it, sorted by level and number.

    Files that break the contract or cannot be read are listed in ``broken``; the others still load.

    Raises:
        UsageError: there is no such suite or level.
    """
    found = _suites(suite_dirs)
    if name not in found:
        raise UsageError(f"no suite named {name}", hint=_suggest(name, found), name=name)
    entries = sorted(_entries(name, *found[name]), key=_order)
    levels = sorted({entry.level for entry in entries})
    if level is not None and level not in levels:
        listed = ", ".join(map(str, levels))
        raise UsageError(f"suite {name} has no level {level}", hint=f"its levels are {listed}", level=level)
    problems: list[Problem] = []
    broken: list[UnreadableProblem] = []
    by_id: dict[str, Entry] = {}
    for entry in entries:
        if level not in (None, entry.level):
            continue
        try:
            _check_name(entry, by_id)
            problems.append(entry.read())
        except (InvalidReferenceError, UsageError) as error:
            broken.append(UnreadableProblem(entry.id, entry.number, str(entry.path), error))
    return Suite(problems, broken)


def _check_name(entry: Entry, by_id: dict[str, Entry]) -> None:
    """Raise :class:`UsageError` if another problem has the name, or the name is not valid in an id."""
    if not _NAME.fullmatch(entry.name):
        message = f"{str(entry.path)!r}: no problem can be named {entry.name!r}"
        raise UsageError(message, hint="rename the file: letters, digits, and _ - . + ( )")
    first = by_id.setdefault(entry.id, entry)
    if first is not entry:
        message = f"{entry.path}: {first.path.name} is named {entry.id} as well"
        raise UsageError(message, hint="rename one of the two files")


def find_problem(ref: str, suite_dirs: Sequence[Path] = ()) -> Problem:
    """The problem that ``ref`` names.

    ``ref`` is one of: ``suite/level1/name``, ``suite/level1/3`` or ``suite/1/name`` (the suite may be left out; in some
    suites the middle part is a category); a bare name that only one problem has; a path to a reference ``.py`` file.
    With the suffix ``@2``, the variant with that number is timed. With ``@batch_size=16,dim=64``, constants of its file
    have those values.

    Raises:
        UsageError: no problem, or more than one, has that name (the hint lists similar names); or the problem has no
            such variant.
        InvalidReferenceError: the file breaks the contract.
    """
    path = Path(ref)
    if ref.endswith(".py"):
        return parse_problem(
            _read_text(path), id=f"file/{path.stem}", suite="file", level=0, name=path.stem, path=str(path.resolve())
        )
    entries = [entry for name, found in _suites(suite_dirs).items() for entry in _entries(name, *found)]
    matches = [entry for entry in entries if _matches(entry, ref)]
    if len(matches) == 1:
        return matches[0].read()
    name, mark, wanted = ref.rpartition(VARIANT_MARK)
    if mark and not matches and wanted.isdecimal():
        return _at_variant(find_problem(name, suite_dirs), int(wanted))
    if mark and not matches and "=" in wanted:
        return resized(find_problem(name, suite_dirs), parse_sizes(wanted))
    if matches:
        listed = ", ".join(entry.id for entry in sorted(matches, key=_order))
        raise UsageError(f"more than one problem is named {ref}", hint=f"give one of: {listed}", ref=ref)
    raise UsageError(f"no problem named {ref}", hint=_suggest_problem(ref, entries), ref=ref)


def _at_variant(problem: Problem, number: int) -> Problem:
    """The problem with another variant timed. Raises UsageError if no device class has that variant."""
    counts = [len(problem.meta.variants_for(name)) for name in problem.meta.variants] or [1]
    if number >= max(counts):
        raise no_variant(problem, next(iter(problem.meta.variants), "cpu"), number)
    return problem.at_variant(number)


def _suites(suite_dirs: Sequence[Path]) -> dict[str, tuple[Path, Loader]]:
    """Folder and loader of each suite, by its name."""
    found: dict[str, tuple[Path, Loader]] = {}
    for folder, loader in _candidates(suite_dirs):
        name = loader.name or folder.name
        if name in found:
            raise UsageError(
                f"two suites are named {name}: {found[name][0]} and {folder}",
                hint="rename one of the folders, or leave it out",
            )
        found[name] = folder, loader
    return found


def _candidates(suite_dirs: Sequence[Path]) -> Iterator[tuple[Path, Loader]]:
    seen: set[Path] = set()
    for given in (BUILT_IN, *suite_dirs):
        folder = Path(given).resolve()
        if folder in seen:
            continue
        seen.add(folder)
        if not folder.is_dir():
            raise UsageError(
                f"no such suite folder: {given}",
                hint="give a folder that has level1, level2, ..., or take it out of suite_dirs or KERNELWRIGHT_SUITES",
            )
        try:
            found = [(inner, loader_of(inner)) for inner in (folder, *sorted(folder.iterdir()))]
        except OSError as error:
            raise UsageError(f"cannot read the suite folder {given}: {error}", hint="give a readable folder") from None
        known = [(inner, loader) for inner, loader in found if loader is not None]
        if not known:
            raise UsageError(f"{given} holds no suite", hint="put problem files NN_name.py into level1, level2, ...")
        yield from known[:1] if known[0][0] == folder else known


def _entries(suite: str, folder: Path, loader: Loader) -> list[Entry]:
    """The entries of a suite. If several problems of a group share a name, their numbers become part of it."""
    try:
        entries = list(loader.entries(suite, folder))
    except OSError as error:
        raise UsageError(f"cannot read the suite {suite}: {error}", hint="give a readable folder") from None
    count = Counter(entry.id for entry in entries)
    return [
        entry._replace(name=f"{entry.number}_{entry.name}")
        if count[entry.id] > 1 and entry.number is not None
        else entry
        for entry in entries
    ]


def _order(entry: Entry) -> tuple[str, int, str, float, str]:
    return entry.suite, entry.level, entry.group, float("inf") if entry.number is None else entry.number, entry.name


def _matches(entry: Entry, ref: str) -> bool:
    *parents, last = ref.strip("/").split("/")
    names = {entry.name, entry.path.stem}
    if parents and entry.number is not None:
        names.add(str(entry.number))
    groups = {entry.group, str(entry.level)} if entry.group == f"level{entry.level}" else {entry.group}
    match parents:
        case []:
            return last in names
        case [group]:
            return last in names and group in groups
        case [suite, group]:
            return last in names and group in groups and suite == entry.suite
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
    if not path.exists():
        raise UsageError(f"no such file: {path}", hint=_near_files(path))
    return read_text(path)


def _near_files(path: Path) -> str:
    siblings = [f.name for f in path.parent.glob("*.py")] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, siblings, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else "check the path"
