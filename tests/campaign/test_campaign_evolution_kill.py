"""``kill -9`` at every point of an evolutionary run: a resumed search ends with the archive of the undisturbed one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from test_campaign_kill import driver_env

HERE = Path(__file__).parent
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    base = tmp_path_factory.mktemp("killed")
    command = [sys.executable, str(HERE / "campaign_evolution_kill_driver.py"), str(base)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE.parents[1], check=False, env=driver_env())
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_run_holds_all_that_a_search_does(outcome):
    whole = outcome["whole"]
    purposes = Counter(purpose for _, purpose, _ in whole["evaluations"])
    assert purposes["contest"] >= 2
    assert purposes["remeasure"] >= 1
    assert whole["duplicates"]
    (search,) = whole["searches"]
    assert [(island["name"], island["backend"]) for island in search["islands"]] == [("a", "cpp"), ("b", "triton")]
    assert all(island["elites"] for island in search["islands"])
    assert sum(island["restarts"] for island in search["islands"]) >= 1
    assert any(point.startswith("told note") for point in whole["points"]), "races are told"
    assert len(outcome["lives"]) == len(whole["points"]) > 60
    assert all(life["killed"] for life in outcome["lives"])


def test_the_resumed_search_ends_with_the_archive_of_the_undisturbed_one(outcome):
    for life in outcome["lives"]:
        for fact in ("status", "won", "evaluations", "duplicates", "searches"):
            assert life[fact] == outcome["whole"][fact], (life["at"], fact)
        assert life["sound"], life["at"]
