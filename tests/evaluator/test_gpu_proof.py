"""The proof of a GPU, rehearsed from end to end on a stand-in for the driver."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kernelwright.proof import STEPS, prove, run
from kernelwright.proof.steps import Step

TESTS = Path(__file__).parent.parent


@pytest.fixture
def proved(stand_in_device, rehearsed, tmp_path, make_cache, monkeypatch):
    """Runs steps of the proof on the stand-in."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
    images = []
    for number, image in enumerate(rehearsed.images):
        images.append(tmp_path / f"{number}.so")
        images[-1].write_bytes(image)
    quick = {"looks": [3, 6], "confirm_pairs": 5, "confirm_max_pairs": 5, "noise_bound": 0.3}
    settings = {"cache_dir": str(make_cache()), "store": str(tmp_path / "store.db"), "measurement": quick}
    payload = {"library": rehearsed.library, "images": [str(path) for path in images], "settings": settings}

    def told(*steps, minutes=6.0):
        output = tmp_path / "proof.json"
        report = prove(
            stand_in_device, output, steps=steps, minutes=minutes, payload=payload, entry="stand_in.proof:child"
        )
        assert json.loads(output.read_text()) == json.loads(json.dumps(report))
        return report["steps"]

    return told


WHOLE = ("machine", "walls", "verdicts", "fresh processes", "suite")


@pytest.mark.parametrize("name", [name for name in STEPS if name not in WHOLE])
def test_a_step_comes_to_its_end(proved, name):
    step = proved(name)[name]
    assert step["ended"] == "done", step
    assert step["results"]


def test_what_the_steps_say(proved):
    steps = proved(*WHOLE)
    assert steps["machine"]["results"]["device"]["name"]
    assert steps["walls"]["results"]["mapped again for writing"] is True
    found = steps["verdicts"]["results"]
    assert [found[name]["status"] for name in ("cuda 0", "cuda 1", "wrong", "confirmation")] == [
        "PASSED",
        "PASSED",
        "INCORRECT_NUMERICAL",
        "PASSED",
    ]
    assert found["cuda 0"]["notes"]["device-clock"].startswith("timed by a replay")
    assert found["check set, s"] > 0
    assert "stand-in" in steps["fresh processes"]["results"]["left out"]
    assert "stand-in" in steps["suite"]["results"]["left out"]


def test_a_step_that_hangs_or_fails_stops_no_other_one(proved, monkeypatch):
    monkeypatch.setitem(STEPS, "machine", Step(STEPS["machine"].run, 0.05))
    steps = proved("machine", "walls")
    assert steps["machine"]["ended"].startswith("cut off after")
    assert steps["walls"]["ended"] == "done"


def test_no_step_begins_that_has_no_time_left(proved, monkeypatch):
    monkeypatch.setattr(run, "_LEAST_S", 1e9)
    assert proved("machine")["machine"]["ended"] == "no time was left"


def test_a_failure_is_told_by_its_last_line(stand_in_device, tmp_path):
    report = prove(stand_in_device, tmp_path / "p.json", steps=("machine",), payload={"library": "/none", "images": []})
    assert report["steps"]["machine"]["ended"].startswith("failed: ")
