"""Runs a sample of the matrices and of the slow tests with ``--sampled``; keeps what a run took with ``--tally FILE``.

``suite_selection`` decides what is in a sample, and ``durations.json`` says which tests are slow. The slot is printed
before the tests, what was left out is counted after them, and a sampled test that fails shows the command that repeats
it. Workers of xdist get the slot and the files that the change touches from the process that started them, so that all
of them choose alike.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from suite_selection import SLOT_VARIABLE, Cell, Sample, chosen, is_touched, slot_of, touched, whose_turn

CHOICE = pytest.StashKey["Choice"]()
SLOW = pytest.StashKey[dict[str, float]]()
LEFT_OUT = pytest.StashKey[dict[str, list[int]]]()
PROPERTY = "left out of a sample"
DURATIONS = Path("tests", "durations.json")
SHORT_S, CELL_S = 0.1, 1.0  # about what a test takes that is not slow, and a cell of a matrix
DEFAULTS: dict[str, Any] = {"one_in": 12, "keep": 1, "stratum": ""}  # of the mark ``matrix``


def slow_tests(config: pytest.Config) -> dict[str, float]:
    """Seconds of the tests that take long and are no cells of a matrix, by their node ids.

    A file stands for all of its tests: they share what takes long to prepare, so they take one turn.
    """
    if SLOW not in config.stash:
        path = config.rootpath / DURATIONS
        config.stash[SLOW] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return config.stash[SLOW]


class Choice(NamedTuple):
    """The slot of this run, and the files that the change touches."""

    slot: int
    paths: frozenset[str]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our two options."""
    group = parser.getgroup("kernelwright")
    group.addoption(
        "--sampled",
        action="store_true",
        help=f"run a share of each matrix and of the slow tests, as {SLOT_VARIABLE} or the commit says",
    )
    group.addoption("--tally", metavar="FILE", help="append how the tests ended and what each took to FILE, in JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known, and find out what this run samples."""
    config.addinivalue_line(
        "markers",
        "matrix(one_in=12, keep=1, stratum=''): cells that are alike; --sampled runs one in so many of each stratum, "
        "and at least keep. stratum: a word, or a function that gives one for a cell's parameters",
    )
    config.stash[LEFT_OUT] = {}
    worker = getattr(config, "workerinput", None)
    if worker is None:
        config.pluginmanager.register(Tally(config), "kernelwright-tally")
    if not config.getoption("sampled"):
        return
    if worker is not None:
        slot, paths = json.loads(worker["choice"])
        config.stash[CHOICE] = Choice(slot, frozenset(paths))
        return
    try:
        config.stash[CHOICE] = Choice(slot_of(config.rootpath, os.environ), touched(config.rootpath))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of xdist what to choose."""
    choice = node.config.stash.get(CHOICE, None)
    if choice is not None:
        node.workerinput["choice"] = json.dumps([choice.slot, sorted(choice.paths)])


# ------------------------------------------------------------------------------------------------ what is chosen


def cell_of(item: pytest.Item) -> Cell | None:
    """The cell of a matrix that an item is; None for a test that always runs."""
    mark, spec = item.get_closest_marker("matrix"), getattr(item, "callspec", None)
    if mark is None:
        return None
    if mark.args or set(mark.kwargs) - set(DEFAULTS):
        raise pytest.UsageError(f"{item.nodeid}: matrix takes {', '.join(DEFAULTS)} by name, and nothing else")
    options = {**DEFAULTS, **mark.kwargs}
    stratum, (matrix, _, name) = options["stratum"], item.nodeid.partition("[")
    if spec is None:  # tests of one file that share a stratum take turns
        matrix, _, name = item.nodeid.partition("::")
    elif callable(stratum):
        stratum = stratum(**spec.params)
    return Cell(item.nodeid, matrix, name.removesuffix("]"), str(stratum), options["one_in"], options["keep"])


def file_of(item: pytest.Item) -> str:
    """The path of an item's file below the project, as git has it."""
    return item.path.relative_to(item.config.rootpath).as_posix()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests outside the sample, and put the longest files first. Runs after ``-m`` and ``-k``."""
    seconds, choice = slow_tests(config), config.stash.get(CHOICE, None)
    if choice is not None:
        kept = leave_out(items, choice, seconds, config.stash[LEFT_OUT])
        left = [item for item in items if item not in kept]
        items[:] = [item for item in items if item in kept]
        if left:
            config.hook.pytest_deselected(items=left)
    files = Counter({file: seconds.get(file, 0.0) for file in map(file_of, items)})
    for item in items:
        usual_s = SHORT_S if item.get_closest_marker("matrix") is None else CELL_S
        files[file_of(item)] += seconds.get(item.nodeid, usual_s)
    items.sort(key=lambda item: -files[file_of(item)])


def leave_out(
    items: list[pytest.Item], choice: Choice, seconds: dict[str, float], counts: dict[str, list[int]]
) -> set[pytest.Item]:
    """Choose the items of the sample.

    Writes into ``counts``, for each file, how many of its cells and slow tests are left out, and how many it has.
    """
    cells = {item.nodeid: cell for item in items if (cell := cell_of(item)) is not None}
    taken = chosen(cells.values(), choice.slot) | whose_turn(seconds, choice.slot)
    kept = set()
    for item in items:
        turn = item.nodeid if item.nodeid in cells or file_of(item) not in seconds else file_of(item)
        if turn not in cells and turn not in seconds:
            kept.add(item)
            continue
        name = item.nodeid.partition("[")[2].removesuffix("]")
        runs = turn in taken or is_touched(file_of(item), name, choice.paths)
        count = counts.setdefault(file_of(item), [0, 0])
        count[0] += not runs
        count[1] += 1
        if runs:
            kept.add(item)
    return kept


@pytest.fixture
def sample(request: pytest.FixtureRequest) -> Iterator[Sample]:
    """Chooses among the cells or draws of a single test; all of them without ``--sampled``, or in a touched file."""
    choice = request.config.stash.get(CHOICE, None)
    whole = choice is None or is_touched(file_of(request.node), "", choice.paths)
    made = Sample(None if whole else choice.slot)
    yield made
    if made.left_out:
        request.node.user_properties.append((PROPERTY, made.left_out))


@pytest.fixture(scope="module")
def taken(request: pytest.FixtureRequest) -> Callable[..., list[Any]]:
    """Lists the values of a parameter that the tests of this module run with, for fixtures that prepare for all.

    ``taken("name")``; ``taken("name", size=3)`` where another parameter has this value.
    """

    def values(parameter: str, **others: Any) -> list[Any]:
        specs = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
        cells = [spec.params for spec in specs if spec is not None and parameter in spec.params]
        return list(dict.fromkeys(cell[parameter] for cell in cells if others.items() <= cell.items()))

    return values


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the command that repeats a failed test of a sample."""
    report = yield
    choice = item.config.stash.get(CHOICE, None)
    cell = cell_of(item)
    report.takes_turns = cell is not None and cell.one_in > 1
    slow = slow_tests(item.config)
    sampled = report.takes_turns or "sample" in getattr(item, "fixturenames", ())
    sampled = sampled or item.nodeid in slow or file_of(item) in slow
    if choice is not None and sampled and report.failed:
        command = f"{SLOT_VARIABLE}={choice.slot} {sys.executable} -m pytest -m '' --sampled {shlex.quote(item.nodeid)}"
        report.sections.append(("repeat it with", command))
    return report


# ------------------------------------------------------------------------------------------------ what is told


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand what a worker of xdist left out to the process that started it."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left out"] = session.config.stash[LEFT_OUT]


class Tally:
    """Counts what a sample leaves out, and how the tests ended, in the process that reports."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._seconds: Counter[str] = Counter()
        self._bodies: dict[str, float] = {}
        self._draws = 0

    def pytest_sessionstart(self) -> None:
        """Print the slot; pytest's own header is not shown with ``-q``."""
        choice = self._config.stash.get(CHOICE, None)
        if choice is not None:
            repeat = f"{SLOT_VARIABLE}={choice.slot} repeats it"
            self._write(f"a sample of the matrices and slow tests: slot {choice.slot} ({repeat})")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a worker left out; each has collected the same tests."""
        self._config.stash[LEFT_OUT].update(getattr(node, "workeroutput", {}).get("left out", {}))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what a test took and what it left out."""
        self._seconds[report.nodeid] += report.duration
        if report.when == "call" and not getattr(report, "takes_turns", False):
            self._bodies[report.nodeid] = report.duration
        if report.when == "teardown":
            self._draws += sum(int(str(value)) for name, value in report.user_properties if name == PROPERTY)

    def pytest_terminal_summary(self) -> None:
        """Say what a sample left out, so that it is not skipped silently."""
        counts = self._config.stash[LEFT_OUT]
        left, cells = (sum(count[place] for count in counts.values()) for place in (0, 1))
        if CHOICE in self._config.stash:
            parts = [f"{Path(file).stem} {gone} of {number}" for file, (gone, number) in sorted(counts.items()) if gone]
            self._write(
                f"left out of the sample: {left} of {cells} cells of matrices and slow tests "
                f"({', '.join(parts) or 'none'}) and {self._draws} repetitions within tests; make test-all runs them"
            )

    def pytest_unconfigure(self) -> None:
        """Write the file that ``--tally`` names."""
        name, reporter = self._config.getoption("tally"), self._reporter()
        if name is None or reporter is None:
            return
        counts = {kind: len(reports) for kind, reports in reporter.stats.items() if kind}
        left = sum(count[0] for count in self._config.stash[LEFT_OUT].values())
        taken = {"seconds": self._seconds, "bodies": self._bodies}
        rounded = {kind: {name: round(s, 3) for name, s in found.items()} for kind, found in taken.items()}
        record = {"counts": counts, "left out": left, **rounded}
        with Path(name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def _reporter(self) -> Any:
        return self._config.pluginmanager.get_plugin("terminalreporter")

    def _write(self, line: str) -> None:
        reporter = self._reporter()
        if reporter is not None:
            reporter.write_line(line)
