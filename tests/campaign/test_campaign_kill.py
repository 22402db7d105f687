"""``kill -9`` at every point of a run: the resumed run ends as the whole one does and repeats no evaluation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    base = tmp_path_factory.mktemp("killed")
    command = [sys.executable, str(HERE / "campaign_kill_driver.py"), str(base)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE.parents[1], check=False, env=driver_env())
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def driver_env() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(HERE.parents[1])}


def test_the_kill_points_cover_the_whole_run(outcome):
    points = outcome["whole"]["points"]
    for wanted in ("open one", "proposing 1", "judging v1 False", "judged v1 False", "advising 0", "judged v1 True"):
        assert wanted in points
    assert len(outcome["lives"]) == len(points) > 30
    assert all(life["killed"] for life in outcome["lives"])


def test_a_resumed_run_ends_like_the_whole_one(outcome):
    for life in outcome["lives"]:
        for fact in ("status", "won", "evaluations", "notes", "runs"):
            assert life[fact] == outcome["whole"][fact], (life["at"], fact)


def test_no_finished_evaluation_is_repeated_and_the_store_stays_sound(outcome):
    for life in outcome["lives"]:
        assert life["repeated"] == [], life["at"]
        assert life["sound"], life["at"]
