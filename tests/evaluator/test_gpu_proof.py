"""The proof of a GPU, rehearsed from end to end on a stand-in for the driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kernelwright.cli import cli
from kernelwright.errors import UsageError
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

    def told(*steps, minutes=6.0, entry="child"):
        output = tmp_path / "proof.json"
        report = prove(
            stand_in_device, output, steps=steps, minutes=minutes, payload=payload, entry=f"stand_in.proof:{entry}"
        )
        assert json.loads(output.read_text()) == json.loads(json.dumps(report))
        return report["steps"]

    return told


WHOLE = ("machine", "walls", "verdicts", "fresh processes", "suite", "libraries", "launches")
EXPERIMENTS = tuple(name for name, step in STEPS.items() if step.minutes)


@pytest.mark.parametrize("name", [name for name in STEPS if name not in (*WHOLE, *EXPERIMENTS)])
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
    ((name, hybrid),) = steps["libraries"]["results"].items()
    assert (name, hybrid["status"]) == ("rectified matmul 2048", "PASSED")
    assert "with what libraries launch" in hybrid["notes"]["device-clock"]  # torch computes on this CPU
    launches = steps["launches"]["results"]
    (ours,) = launches["ours"]["kernels"]
    assert (ours["name"], ours["loaded"], ours["parameters agree"]) == ("kw_gate", True, True)
    assert launches["loaded"] == {"modules": 1, "bytes": ours["bytes"]}
    assert launches["matmul"] == {"kernels": [], "fills and copies": 0, "unknown": []}
    assert "stand-in" in steps["fresh processes"]["results"]["left out"]
    assert "stand-in" in steps["suite"]["results"]["left out"]


def test_what_the_experiments_say(proved, monkeypatch):
    monkeypatch.setenv("KW_STANDIN_NASTY", "free,dirty")  # freeing waits, as on a GPU; fresh memory is not empty
    steps = proved(*EXPERIMENTS)
    assert all(step["ended"] == "done" for step in steps.values()), steps
    waits = steps["what waits"]["results"]
    assert waits["free"] == waits["launch a kernel for the first time"] == "waits"
    assert waits["allocate"].startswith("returns after")
    assert waits["fill, enqueued"].startswith("returns after")
    assert all(waits[f"launches that are taken at {scale}"] > 100 for scale in ("1x", "4x"))
    assert steps["copies"]["results"]["copy of 16 MB, us"]["alone"]["median"] > 0
    assert all(len(times) == 30 for times in steps["turns"]["results"].values())
    assert steps["hygiene"]["results"]["share of it that fresh memory still holds"] == 1.0
    assert steps["hygiene"]["results"]["at full speed after the other was killed, s"] < 5.0


def test_experiments_are_made_where_there_are_minutes_for_them(stand_in_device, tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(run, "_run", lambda name, *given: ran.append(name) or ("done", 0.0, ""))
    for minutes in (6.0, 10.0):
        prove(stand_in_device, tmp_path / "p.json", minutes=minutes)
    assert ran == [name for name in STEPS if name not in EXPERIMENTS] + list(STEPS)


def test_a_step_that_hangs_or_fails_stops_no_other_one(proved, monkeypatch):
    monkeypatch.setitem(STEPS, "machine", Step(STEPS["machine"].run, 1e-4))
    steps = proved("machine", "walls")
    assert steps["machine"]["ended"].startswith("cut off after")
    assert steps["walls"]["ended"] == "done"


def test_a_row_that_fails_takes_no_other_row_with_it(proved):
    results = proved("accuracy", entry="fails_once")["accuracy"]["results"]
    failed, row = (result for name, result in results.items() if name != "in all")
    assert failed["error"] == "ZeroDivisionError: the first of all"
    assert "in first" in failed["trace"]
    assert row["status"] == "PASSED"
    assert results["in all"]["timed"] == 1


def test_no_step_begins_that_has_no_time_left(proved, monkeypatch):
    monkeypatch.setattr(run, "_LEAST_S", 1e9)
    assert proved("machine")["machine"]["ended"] == "no time was left"


def test_a_failure_is_told_by_its_last_line(stand_in_device, tmp_path):
    report = prove(stand_in_device, tmp_path / "p.json", steps=("machine",), payload={"library": "/none", "images": []})
    step = report["steps"]["machine"]
    assert step["ended"].startswith("failed: ")
    assert step["errors"].startswith("Traceback")


def test_a_place_that_cannot_be_written_is_said_before_the_first_step(stand_in_device, tmp_path):
    (tmp_path / "file").touch()
    said = []
    with pytest.raises(UsageError, match="cannot write the results"):
        prove(stand_in_device, tmp_path / "file" / "p.json", steps=("machine",), say=said.append)
    assert said == []


def test_an_interruption_ends_the_step_that_runs(stand_in_device, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
    write = run.write_for_user

    def interrupted(path, content, **options):
        if "begun" in content:
            raise KeyboardInterrupt
        write(path, content, **options)

    monkeypatch.setattr(run, "write_for_user", interrupted)
    payload = {"left": str(tmp_path / "left")}
    with pytest.raises(KeyboardInterrupt):
        prove(stand_in_device, tmp_path / "p.json", steps=("machine",), payload=payload, entry="stand_in.proof:waits")
    assert not (tmp_path / "left").exists()


@pytest.mark.parametrize(
    ("ended", "row", "code"),
    [
        ("done", {"error": 0.03}, 0),  # how far a time is off
        ("cut off after 3 s", {}, 0),
        ("failed: no memory", {}, 1),
        ("done", {"error": "KeeperError: gone", "trace": "Traceback"}, 1),
    ],
)
def test_the_command_ends_with_1_where_a_step_or_a_row_failed(stand_in_device, tmp_path, monkeypatch, ended, row, code):
    given = {}
    monkeypatch.setenv("KERNELWRIGHT_DEVICE", "auto")

    def proved(device, output, *, minutes, steps, say, payload):
        given.update(minutes=minutes, steps=steps, **payload["settings"])
        return {"steps": {"machine": {"ended": "done"}, "walls": {"ended": ended, "results": {"a row": row}}}}

    monkeypatch.setattr("kernelwright.evaluator.find_device", lambda: stand_in_device)
    monkeypatch.setattr("kernelwright.proof.prove", proved)
    command = ["doctor", "--prove-gpu", "--minutes", "3", "--output", str(tmp_path / "p.json"), "--set", "threads=2"]
    assert CliRunner().invoke(cli, command).exit_code == code
    assert (given["minutes"], given["threads"]) == (3.0, 2)
    assert given["steps"] == ()
    assert CliRunner().invoke(cli, [*command, "--step", "walls", "--step", "door"]).exit_code == code
    assert given["steps"] == ("walls", "door")
    told = CliRunner().invoke(cli, [*command, "--step", "wall"])
    assert (told.exit_code, "its steps: machine" in told.stderr) == (2, True)
    command = ["doctor", "--prove-gpu", "--set", "device=none"]
    assert CliRunner().invoke(cli, command).exit_code == 3


def test_make_runs_the_proof_with_the_python_that_it_is_given(tmp_path):
    (tmp_path / "carried.py").write_text("")
    env = os.environ | {"CUDA_VISIBLE_DEVICES": "", "KERNELWRIGHT_DEVICE": "auto", "PYTHONPATH": str(tmp_path)}
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n{sys.executable} -c "import carried" && exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    command = ["make", "gpu-proof", f"GPU_PYTHON={python}"]
    done = subprocess.run(command, cwd=TESTS.parent, env=env, capture_output=True, text=True, check=False)
    assert "no GPU: nvidia-smi shows none" in done.stderr
    assert "Error 3" in done.stderr  # make itself ends with 2
