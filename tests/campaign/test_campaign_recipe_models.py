"""Recipes with language models: what each system asks of its Coder, over a loopback server and a referee by table."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from campaign_fakes import FakeReferee, make_problem
from campaign_models import FIELDS, tokens_of
from llm_server import Answer, Asked, serve

from kernelwright.campaign import Campaign, with_recipe
from kernelwright.config import Settings
from kernelwright.records import Status
from kernelwright.store import Store

PREDICTION = {"outcome": "pass", "confidence": 0.9, "reason": "it looks right"}


class Writer:
    """Answers every Coder's question with another kernel, and everybody else with what their schema wants."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []  # by the Coder
        self._lock = threading.Lock()

    def __call__(self, asked: Asked) -> Answer:
        fields = (asked.schema or {}).get("properties", {})
        for name, reply in FIELDS.items():
            if name in fields:
                return Answer(json.dumps(reply), tokens_of(asked))
        if "outcome" in fields:
            return Answer(json.dumps(PREDICTION), tokens_of(asked))
        with self._lock:
            self.asked.append(asked)
            number = len(self.asked) - 1
        source = f"v{number}\n\n\nclass ModelNew:\n    pass\n"
        if "edits" in fields:
            parent = asked.text.rpartition("class ModelNew:")[0].rstrip().splitlines()[-1]
            edits = [{"search": parent, "replace": f"v{number}"}]
            return Answer(json.dumps({"plan": f"plan {number}", "edits": edits}), tokens_of(asked))
        return Answer(json.dumps({"plan": f"plan {number}", "source": source}), tokens_of(asked))


class Run(Writer):
    """A finished run of a recipe on one problem."""

    def __init__(self, folder: Path, recipe: str, referee: FakeReferee | None = None, **more) -> None:
        super().__init__()
        self.referee = referee or FakeReferee({f"v{number}": 1.0 + number / 10 for number in range(200)})
        with serve(self) as server, Store.open(folder / "store.db") as store:
            flags = {"coder": "openai:coder", "recipe": recipe, "parallel_problems": 1, **more}
            places = {"store": folder / "store.db", "cache_dir": folder / "cache"}
            given = {**places, **flags, "openai_base_url": server.openai_base_url, "max_tokens": 10**9}
            settings = with_recipe(Settings.load(given, env={}, cwd=folder))
            result = Campaign(settings, store, open_referee=lambda _: self.referee).run([make_problem("one")])
            self.evaluations = store.evaluations(run_id=result.run_id, confirmed=False)
            self.config = store.run(result.run_id).config
        self.status = result.status
        (self.row,) = result.rows

    @property
    def words(self) -> list[str]:
        """What was judged in the search, in order."""
        return [word for _, word, confirmed in self.referee.judged if not confirmed]

    @property
    def modes(self) -> list[str]:
        """What the Coder was asked for, in the order in which it was judged."""
        return [str((one.action.get("assignment") or {}).get("mode", "new")) for one in self.evaluations]


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def test_independent_samples_are_sampled_anew_and_know_nothing_of_each_other(tmp_path):
    failing = FakeReferee(statuses={f"v{number}": Status.COMPILE_ERROR for number in range(3)})
    run = Run(tmp_path, "best-of-n", failing, rounds=5)
    assert run.words == ["v0", "v1", "v2", "v3", "v4"]
    assert len({asked.text for asked in run.asked[:4]}) == 1, "the fourth one was asked for before anything had passed"
