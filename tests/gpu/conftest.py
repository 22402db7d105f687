"""What needs a GPU: ``make test-gpu``. The same parts and the same problems as everywhere else, on a device."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from kernelwright.config import Settings
from kernelwright.evaluator import Referee

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / "evaluator"), str(TESTS / "adversarial")]


def pytest_collection_modifyitems(items):
    """Mark everything here ``gpu``."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("gpu")


@pytest.fixture(scope="session")
def over():
    """When no further test begins, on the monotonic clock: a device may be lent for minutes."""
    return time.monotonic() + 60.0 * float(os.environ.get("KERNELWRIGHT_TEST_MINUTES") or 8.0)


@pytest.fixture(autouse=True)
def _in_time(over):
    if time.monotonic() > over:
        pytest.skip("no time was left: MINUTES=30 make test-gpu gives it more")


@pytest.fixture(scope="session")
def referee(tmp_path_factory):
    settings = Settings.load(
        flags={
            "cache_dir": str(tmp_path_factory.mktemp("cache")),
            "sandbox": os.environ.get("KERNELWRIGHT_TEST_SANDBOX", "auto"),
            "measurement": {
                "looks": (12, 24),
                "window_ms": 2.0,
            },
            "call_timeout_s": 10.0,
            "build_timeout_s": 120.0,
            "memory_bytes": 8 << 30,
        },
        env={},
    )
    with Referee(settings) as made:
        assert made.device is not None, "nvidia-smi shows no device: these tests need one"
        yield made
