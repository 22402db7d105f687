"""Which tests need the machine for themselves: ``make test`` runs all others side by side.

Those where something is really timed, or where a sandbox's limits of time and memory are met, or that look for what
was left behind on the machine: all in ``PLACES``, and whatever judges with a referee. Those marked ``untimed`` run
beside others nevertheless: they time nothing, and fail where they try to.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ["KERNELWRIGHT_DEVICE"] = "none"  # what there is no device for is tested so on a machine that has one, too

TESTS = Path(__file__).parent
PLACES = (
    "adversarial/test_host.py",
    "sandbox",
    "cli/test_cli_real.py",
    "evaluator/test_own_share.py",
    "evaluator/test_referee_kills.py",
    "evaluator/test_rest.py",
    "mcp/test_mcp_timed.py",
    "rl/test_naive.py",
    "rl/test_serve_real.py",
    "test_docs.py",
)
FIXTURES = {"referee", "judges"}


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line("markers", "untimed: judges candidates and times nothing, so that it may run beside others")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the folder that only a browser's driver can import alone where its tests are not asked for."""
    left_out = "not browser" in config.getoption("markexpr", "")
    return True if left_out and collection_path == TESTS / "browser" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark those tests ``alone``."""
    for item in items:
        path = item.path.relative_to(TESTS)
        listed = any(path.is_relative_to(place) for place in PLACES)
        judges = FIXTURES.intersection(getattr(item, "fixturenames", ()))
        if (listed or judges) and item.get_closest_marker("untimed") is None:
            item.add_marker("alone")


@pytest.fixture(autouse=True)
def _nothing_is_timed_beside_others(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times taken while other tests run would be wrong, and would make those of others wrong."""
    if request.node.get_closest_marker("untimed") is None or not FIXTURES.intersection(request.fixturenames):
        return
    from kernelwright.evaluator._timekeeping import Timekeeper

    def refuse(*_: object) -> None:
        pytest.fail("something is timed here: judge it with time=False, or take the mark 'untimed' from this test")

    for method in ("search", "_process_pair"):
        monkeypatch.setattr(Timekeeper, method, refuse)


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
