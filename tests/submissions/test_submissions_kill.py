"""``kill -9`` at every step of taking and judging: nothing is lost, nothing is half there, nothing is judged twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    command = [sys.executable, str(HERE / "submissions_kill_driver.py"), str(tmp_path_factory.mktemp("killed"))]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_steps_cover_the_whole_way(killed):
    steps = killed["judged"]["steps"]
    assert {"before replace", "after replace", "before fsync", "before record", "after record"} <= set(steps)
    assert {"judging v0 False", "judged v0 True", "judged wrong False"} <= set(steps)
    assert len(steps) > 50
    assert len(killed["put"]["steps"]) >= 12
    for way in ("put", "judged"):
        assert not killed[way]["whole"]["killed"]
        assert all(life["killed"] for life in killed[way]["lives"])


def test_what_is_taken_is_there_whole_or_not_at_all(killed):
    assert killed["put"]["whole"]["sources"] == ["v0\n", "wrong\n"]
    for life in killed["put"]["lives"]:
        assert life["sources"] in ([], ["v0\n"], ["v0\n", "wrong\n"], ["wrong\n", "v0\n"]), life["at"]
        assert (life["strays"], life["more"]) == ([], 2), life["at"]


def test_every_submission_is_judged_in_the_end_and_once(killed):
    whole = killed["judged"]["whole"]["submissions"]
    assert (whole["v0\n"]["status"], whole["v0\n"]["sessions"]) == ("PASSED", ["check", "confirm"])
    assert (whole["wrong\n"]["status"], whole["wrong\n"]["sessions"]) == ("INCORRECT_NUMERICAL", ["check"])
    for life in killed["judged"]["lives"]:
        assert life["submissions"] == whole, life["at"]
        assert all(found["evaluations"] for found in life["submissions"].values()), life["at"]


def test_nothing_is_left_behind(killed):
    for life in (killed["judged"]["whole"], *killed["judged"]["lives"]):
        assert life["sound"]
        assert life["left"] == ["lock"]
