"""Which tests need the machine for themselves: ``make test`` runs all others side by side.

Those where something is really timed, or where a sandbox's limits of time and memory are met, or that look for what
was left behind on the machine.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ["KERNELWRIGHT_DEVICE"] = "none"  # what there is no device for is tested so on a machine that has one, too

TESTS = Path(__file__).parent
PLACES = (
    "adversarial",
    "sandbox",
    "cli/test_cli_real.py",
    "evaluator/test_own_share.py",
    "evaluator/test_profile.py",
    "evaluator/test_referee_kills.py",
    "evaluator/test_rest.py",
    "test_docs.py",
)
FIXTURES = {"referee", "judges"}
TOGETHER = (  # these judge with a referee and time nothing
    "evaluator/test_compile_lanes.py",
    "evaluator/test_device_examine.py",
    "evaluator/test_gpu_coverage.py",
    "evaluator/test_referee_cuda.py",
    "evaluator/test_referee_triton.py",
    "evaluator/test_torch_headers.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark those tests ``alone``."""
    for item in items:
        path = item.path.relative_to(TESTS)
        listed = any(path.is_relative_to(place) for place in PLACES)
        if any(path.is_relative_to(place) for place in TOGETHER):
            continue
        if listed or FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("alone")
