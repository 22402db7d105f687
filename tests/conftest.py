"""Which tests run side by side, which two at a time, and which need the machine for themselves.

``make test`` runs three phases, one after another:

- Most tests run side by side.
- Those marked ``limits`` meet a sandbox's limits of time and memory, or look for what is left behind on the machine.
  They lie in ``LIMITS``, and run two at a time.
- Those marked ``alone`` really time something. They lie in ``ALONE``, or judge with a real referee, and run one after
  another. Those marked ``untimed`` judge with a real referee in the first phase: they time nothing, and fail where they
  try to.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest_plugins = ["suite_plugin"]
os.environ["KERNELWRIGHT_DEVICE"] = "none"  # what there is no device for is tested so on a machine that has one, too

TESTS = Path(__file__).parent
LIMITS = (
    "adversarial/test_host.py",
    "evaluator/test_referee_kills.py",
    "evaluator/test_rest.py",
    "rl/test_naive.py",
    "sandbox",
)
ALONE = (
    "cli/test_cli_real.py",
    "evaluator/test_own_share.py",
    "mcp/test_mcp_timed.py",
    "rl/test_serve_real.py",
    "submissions/test_submissions_real.py",
)
# Of ``LIMITS``, those that meet none.
PURE = (
    "sandbox/test_sandbox_messages.py",
    "sandbox/test_sandbox_messages_properties.py",
    "sandbox/test_sandbox_seccomp.py",
)
# Fixtures of these names judge with a real referee where they are defined in these rooms; elsewhere they are fakes.
FIXTURES = {"referee", "judges"}
ROOMS_OF_REFEREES = ("tests/adversarial", "tests/evaluator", "tests/gpu", "tests/prompts")
DURATIONS = TESTS / "durations.json"
SHARED = ("door", "emulator", "fresh", "guard", "headers", "products", "share", "torch_headers")  # of a cache folder


def pytest_configure(config: pytest.Config) -> None:
    """Make the marks known."""
    config.addinivalue_line("markers", "untimed: judges candidates and times nothing, so that it may run beside others")
    config.addinivalue_line("markers", "limits: meets limits of a sandbox, or looks for what is left behind")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the folder that only a browser's driver can import alone where its tests are not asked for."""
    left_out = "not browser" in config.getoption("markexpr", "")
    return True if left_out and collection_path == TESTS / "browser" else None


def judges(item: pytest.Item) -> bool:
    """Whether a test uses a fixture that judges with a real referee: by where that is defined, not by its name."""
    info = getattr(item, "_fixtureinfo", None)
    definitions = {} if info is None else info.name2fixturedefs
    return any(definitions[name][-1].baseid.startswith(ROOMS_OF_REFEREES) for name in FIXTURES & set(definitions))


def phase_of(item: pytest.Item) -> str | None:
    """The mark of an item's phase; None for the first phase."""
    path = item.path.relative_to(TESTS)
    if any(path.is_relative_to(place) for place in LIMITS):
        return None if path.as_posix() in PURE else "limits"
    if item.get_closest_marker("untimed") is not None:
        return None
    return "alone" if judges(item) or path.as_posix() in ALONE else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the items of the later phases, and let the files that take longest begin."""
    for item in items:
        phase = phase_of(item)
        if phase is not None:
            item.add_marker(phase)
    seconds = json.loads(DURATIONS.read_text(encoding="utf-8"))
    items.sort(key=lambda item: -seconds.get(item.path.relative_to(TESTS).as_posix(), 0))


@pytest.fixture(autouse=True)
def _nothing_is_timed_beside_others(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times taken while other tests run would be wrong, and would make those of others wrong."""
    if request.node.get_closest_marker("untimed") is None or not judges(request.node):
        return
    from kernelwright.evaluator._timekeeping import Timekeeper

    def refuse(*_: object) -> None:
        pytest.fail("something is timed here: judge it with time=False, or take the mark 'untimed' from this test")

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
def make_cache(tmp_path_factory: pytest.TempPathFactory, run_cache: Path):
    """Makes a referee's cache folder: compilers' products are shared in the run, the history of noise is its own."""

    def make() -> Path:
        folder = tmp_path_factory.mktemp("cache")
        for name in SHARED:
            (run_cache / name).mkdir(exist_ok=True)
            (folder / name).symlink_to(run_cache / name, target_is_directory=True)
        return folder

    return make


def pytest_terminal_summary(terminalreporter) -> None:
    """Say what this machine could not exercise: a count, so that it is no silent skip."""
    missed = sorted(
        str(value)
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == "not exercised"
    )
    if missed:
        terminalreporter.write_line(f"not exercised without a GPU: {len(missed)} attacks ({', '.join(missed)})")
