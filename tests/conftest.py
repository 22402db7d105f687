"""Marks the tests of the later phases, and shares compilers' products in a run."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from suite_phases import ALONE, FIXTURES, LIMITS, PLACES, PURE, ROOMS_OF_REFEREES

pytest_plugins = ["suite_plugin"]
os.environ["KERNELWRIGHT_DEVICE"] = "none"  # what there is no device for is tested so on a machine that has one, too

TESTS = Path(__file__).parent
SHARED = (
    "door",
    "emulator",
    "fresh",
    "guarded_memory",
    "headers",
    "products",
    "share",
    "torch_headers",
)  # of a cache folder


def pytest_configure(config: pytest.Config) -> None:
    """Make the marks known."""
    config.addinivalue_line("markers", "untimed: judges candidates and times nothing, so that it may run beside others")
    config.addinivalue_line("markers", "limits: meets limits of a sandbox or looks for what is left behind")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the folder that only a browser's driver can import alone where its tests are not asked for."""
    left_out = "not browser" in config.getoption("markexpr", "")
    return True if left_out and collection_path == TESTS / "browser" else None


def is_in(path: Path, places: Iterable[str]) -> bool:
    """Whether a file lies in one of these files and folders of the tests."""
    return any(path.is_relative_to(TESTS / place) for place in places)


def judges(item: pytest.Item) -> bool:
    """Whether a test uses a fixture that judges with a real referee: by where that is defined, not by its name."""
    info = getattr(item, "_fixtureinfo", None)
    definitions = {} if info is None else info.name2fixturedefs
    used = [definitions[name][-1] for name in FIXTURES & set(definitions)]
    return any(is_in(item.config.rootpath / fixture.baseid, ROOMS_OF_REFEREES) for fixture in used)


def phase_of(item: pytest.Item) -> str | None:
    """The mark of an item's phase; None for the first phase."""
    if is_in(item.path, LIMITS):
        return None if is_in(item.path, PURE) else "limits"
    if item.get_closest_marker("untimed") is not None:
        return None
    return "alone" if judges(item) or is_in(item.path, ALONE) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the items of the later phases."""
    for item in items:
        phase = phase_of(item)
        if phase is not None:
            item.add_marker(phase)
        for mark, places in PLACES.items():
            if item.get_closest_marker(mark) is not None and not is_in(item.path, places):
                raise pytest.UsageError(f"{item.nodeid} is marked {mark!r}: name its file in tests/suite_phases.py")


@pytest.fixture(autouse=True)
def _nothing_is_timed_beside_others(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times taken while other tests run would be wrong, and would make those of others wrong."""
    if request.node.get_closest_marker("untimed") is None or not judges(request.node):
        return
    from kernelwright.evaluator.verdict.search_and_confirm import Timekeeper

    def refuse(*_: object) -> None:
        pytest.fail("something is timed here: judge it with depth=Check(), or take the mark 'untimed' from this test")

    for method in ("search", "_process_pair"):
        monkeypatch.setattr(Timekeeper, method, refuse)


@pytest.fixture(scope="session")
def run_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of one test run share, and all phases of ``make test``."""
    given = os.environ.get("KERNELWRIGHT_TEST_CACHE")
    own = tmp_path_factory.getbasetemp()
    folder = Path(given) if given else (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "run-cache"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def make_cache(tmp_path_factory: pytest.TempPathFactory, run_cache: Path) -> Callable[..., Path]:
    """Makes a referee's cache folder: what compilers made is shared in the run, the history of noise is its own.

    ``at`` is where, by default in a new folder. ``without`` names folders that are not shared, for tests that look into
    them.
    """

    def make(at: Path | None = None, *, without: Collection[str] = ()) -> Path:
        folder = at or tmp_path_factory.mktemp("cache")
        folder.mkdir(exist_ok=True)
        for name in set(SHARED).difference(without):
            (run_cache / name).mkdir(exist_ok=True)
            (folder / name).symlink_to(run_cache / name, target_is_directory=True)
        return folder

    return make


@pytest.fixture(scope="module")
def load_script() -> Iterator[Callable[[str], ModuleType]]:
    """Gives a script of this project as a module: ``load_script("benchmarks/gpu.py")``."""
    with pytest.MonkeyPatch.context() as patch:

        def load(path: str) -> ModuleType:
            spec = importlib.util.spec_from_file_location(f"script_{Path(path).stem}", TESTS.parent / path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            patch.setitem(sys.modules, spec.name, module)  # where dataclasses look up their annotations
            spec.loader.exec_module(module)
            return module

        yield load


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what this machine could not exercise: a count, so that it is no silent skip."""
    missed = sorted(
        str(value)
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == "not exercised"
    )
    if missed:
        terminalreporter.write_line(f"not exercised without a GPU: {len(missed)} attacks ({', '.join(missed)})")
