"""``kill -9`` at random moments of a run with models: nothing is paid twice, and nothing that was spent is forgotten.

``KERNELWRIGHT_KILLS`` says at how many moments; a sample takes a quarter of them, with a seed that follows the commit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from campaign_models import well_behaved
from llm_server import ModelServer, serve
from test_campaign_models import PRICES

from kernelwright.records import sha256_text
from kernelwright.store import Store

HERE = Path(__file__).parent
KILLS = int(os.environ.get("KERNELWRIGHT_KILLS", "100"))


class Driver:
    """The driver as a process that waits between two lives."""

    def __init__(self, folder: Path, server: ModelServer, kills: int, seed: int = 0) -> None:
        (folder / "prices.toml").write_text(PRICES)
        script = HERE / "campaign_models_kill_driver.py"
        words = [str(folder), server.openai_base_url, server.anthropic_base_url, str(kills), str(seed)]
        paths = os.pathsep.join([str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
        environment = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
        self._process = subprocess.Popen(
            [sys.executable, str(script), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment, "PYTHONPATH": paths},
        )

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def life(self) -> dict[str, Any]:
        """How the store stands after the next life."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self.errors()
        return json.loads(line)

    def errors(self) -> str:
        """What it has said on standard error; it is over then."""
        self._process.kill()
        return self._process.communicate()[1][-3000:]

    def go_on(self) -> None:
        """Let the next life begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()


def outcome(path: Path) -> dict[str, Any]:
    """What a finished run leaves in its store, without what differs between any two runs: ids, times, costs."""
    with Store.open(path) as store:
        (run,) = store.runs()
        assert store.check().ok
        return {
            "uses": [
                (use.problem, use.step, use.role, use.sample, use.attempt, store.reply(use.call_id).text)
                for use in store.uses(run.id)
            ],
            "evaluations": sorted(
                (e.evaluation.candidate.model_dump_json(), e.step, e.evaluation.verdict.model_dump_json())
                for e in store.evaluations(run_id=run.id)
            ),
            "notes": sorted(
                (n.candidate, n.step, n.role, n.advice.model_dump_json()) for n in store.notes(run_id=run.id)
            ),
            "rows": [
                {**json.loads(state.detail), "seconds": 0, "evaluation": ""} for state in store.problem_states(run.id)
            ],
        }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    with serve(well_behaved) as server, Driver(folder, server, kills=0) as driver:
        assert driver.life()["finished"]
    return outcome(folder / "store.db")


def test_a_run_that_is_killed_again_and_again_ends_like_an_undisturbed_one(tmp_path, undisturbed, sample):
    kills = sample.number(KILLS, 25)
    spent, committed, first_new = [0, 0.0], set(), 0
    with serve(well_behaved) as server, Driver(tmp_path, server, kills, seed=sample.slot or 0) as driver:
        while True:
            life = driver.life()
            assert life["code"] <= 0, f"a life ends by a signal, or well:\n{driver.errors()}"
            asked = [sha256_text(prompt_of(one)) for one in server.asked[first_new:]]
            assert not committed.intersection(asked), "no question is sent again whose reply was committed"
            assert life["spent"][0] >= spent[0]
            assert life["spent"][1] >= spent[1] - 1e-9
            spent, committed, first_new = life["spent"], set(life["committed"]), len(server.asked)
            if life["finished"]:
                break
            driver.go_on()
        billed = sum(total.input_tokens + total.output_tokens for total in server.totals.values())
    assert life["killed"] == kills
    assert spent[0] >= billed
    assert outcome(tmp_path / "store.db") == undisturbed


def prompt_of(asked) -> str:
    """The text that the log has of a request."""
    parts = [f"[system]\n{asked.system}", *(f"[{role}]\n{text}" for role, text in asked.messages)]
    return "\n\n".join(parts)
