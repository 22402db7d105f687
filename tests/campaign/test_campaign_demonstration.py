"""The recording that ships: whole, honest about its prompts, and replayed by name without a key."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from contextlib import contextmanager
from importlib import resources

import pytest
from campaign_fakes import FakeReferee, FakeSession, no_point

from kernelwright.agents import reply_schemas
from kernelwright.campaign import Campaign, load_recipe
from kernelwright.campaign.recipe import settings_of
from kernelwright.config import Settings
from kernelwright.datasets import find_problem
from kernelwright.evaluator import Confirm, kernel_backends
from kernelwright.records import Status
from kernelwright.store import Store

ROUNDS = 6
PLACES = re.compile(r"(/home/|/root/|/work/|/tmp/|/Users/)")


@pytest.fixture(scope="module")
def rows():
    text = (resources.files("kernelwright.datasets") / "recordings" / "cudaforge.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def fields_of(row) -> list[set[str]]:
    names = ("coder-new", "coder-edit") if row["role"] == "coder" else ("judge-repair", "judge-optimise")
    return [set(reply_schemas()[name]["properties"]) - {"insights"} for name in names]  # it is older than those


def test_at_least_eight_problems_over_five_rounds(rows):
    steps = defaultdict(set)
    for row in rows:
        steps[row["problem"], row["role"]].add(row["step"])
    problems = {problem for problem, _ in steps}
    assert len(problems) >= 8
    assert all(steps[problem, role] == set(range(ROUNDS)) for problem in problems for role in ("coder", "judge"))
    for problem in problems:
        find_problem(problem, ())


def test_every_reply_has_its_schema_and_names_no_place_of_a_machine(rows):
    for row in rows:
        assert set(json.loads(row["reply"])) in fields_of(row), (row["problem"], row["step"])
        assert not PLACES.search(row["reply"])
        assert not PLACES.search(json.dumps(row["prompt"]))


def test_it_is_replayed_by_name(rows, tmp_path):
    failing = {}  # what the Judge repairs had failed
    for row in rows:
        if row["role"] == "judge" and "critical_issue" in json.loads(row["reply"]):
            failing.setdefault(row["problem"], set()).add(row["step"])

    class Session(FakeSession):
        rounds = -1

        def judge(self, candidate, depth=None, **more):
            confirmed = isinstance(depth, Confirm)
            self.rounds += not confirmed
            bad = self.rounds in failing.get(self.problem.id, ()) and not confirmed
            self.referee.statuses = {"import torch": Status.INCORRECT_NUMERICAL} if bad else {}
            assert kernel_backends(candidate.source) == {"cpp"}
            return super().judge(candidate, depth, **more)

    class Referee(FakeReferee):
        @contextmanager
        def open(self, problem, **more):
            yield Session(self, problem, no_point)

    names = sorted({row["problem"] for row in rows})
    given = {"coder": "replay:cudaforge", "judge": "replay:cudaforge", "rounds": ROUNDS, "recipe": "cudaforge"}
    places = {"store": tmp_path / "store.db", "cache_dir": tmp_path / "cache", "parallel_problems": 1}
    settings = Settings(**{**settings_of(load_recipe("cudaforge")), **given, **places})
    with Store.open(tmp_path / "store.db") as store:
        result = Campaign(settings, store, open_referee=lambda _: Referee()).run([find_problem(n, ()) for n in names])
        assert result.status == "finished"
        assert [row.rounds for row in result.rows] == [ROUNDS] * len(names)
        assert store.run_costs(result.run_id).calls == len(rows)
        judged = store.evaluations(run_id=result.run_id, confirmed=False)
        assert len(judged) == ROUNDS * len(names)
        assert len({e.evaluation.candidate.sha256 for e in judged}) == len(judged)
