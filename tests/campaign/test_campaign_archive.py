"""Making an archive: right kernels, the model that proposes, and what is kept of it."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from campaign_fakes import ENVIRONMENT, make_evaluation
from campaign_models import Answer
from llm_server import serve

from kernelwright.agents.llm import AwaitingReply
from kernelwright.campaign.archive import make_archive
from kernelwright.config import Settings
from kernelwright.datasets import find_problem
from kernelwright.errors import UsageError
from kernelwright.records import Candidate, InputGenerator, InputPattern, Status
from kernelwright.sandbox import WorkerFailed
from kernelwright.store import Store

PROBLEM = find_problem("kernelwright/level1/softmax", ())
RIGHT = Candidate(
    problem_id=PROBLEM.id, source="import torch\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n", backend="cpp"
)
RARE = InputGenerator(inputs={"x": InputPattern(kind="outliers", magnitude=777.0)})
PROPOSED = {"input": "x", "kind": "outliers", "magnitude": 777.0, "count": 1, "place": "random", "axis": -1}
REPLY = {"generators": [{"patterns": [PROPOSED], "catches": "whoever clips at 700"}]}


class Bench:
    """A referee whose every fault passes the check, but for what its archive ``shows``."""

    def __init__(self, shows, right=lambda generator: True):
        self.shows, self.right = shows, right
        self.opened: list[tuple[InputGenerator, ...]] = []

    @contextmanager
    def __call__(self, settings):
        yield self

    def environment_for(self, backend):
        return ENVIRONMENT

    @contextmanager
    def open(self, problem, *, backend, baselines, archive):
        self.opened.append(tuple(archive))
        yield self

    def call(self, entry, payload):
        raise WorkerFailed("no generator here")

    def judge(self, candidate, depth):
        caught = any(self.shows(generator) for generator in self.opened[-1])
        return make_evaluation(candidate, status=Status.INCORRECT_NUMERICAL if caught else Status.PASSED)

    def admit(self, wanted, backend):
        return SimpleNamespace(admissions=[SimpleNamespace(generator=g, admitted=True) for g in wanted])

    def caught_by(self, candidate, trials):
        wanted = [admission.generator for admission in trials.admissions]
        if candidate == RIGHT:
            return frozenset(g.id for g in wanted if not self.right(g))
        return frozenset(g.id for g in wanted if self.shows(g))


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "store.db") as opened:
        opened.record_problem(PROBLEM)
        yield opened


@pytest.fixture
def settings(tmp_path):
    return Settings(store=tmp_path / "store.db", cache_dir=tmp_path / "cache")


def a_right_kernel(store):
    store.record_evaluation(make_evaluation(RIGHT), run_id=None)


def ties(generator) -> bool:
    return generator.inputs["x"].kind == "ties"


def test_what_is_found_joins_the_archive(settings, store):
    a_right_kernel(store)
    bench = Bench(ties)
    made = make_archive(PROBLEM, settings=settings, store=store, open_referee=bench)
    assert (made.kernels, made.faults, made.new) == (1, 12, len(made.generators))
    assert set(made.generators) == set(store.archive(PROBLEM)) != set()
    assert {row.author for row in store.archived(PROBLEM)} == {"offline"}
    assert store.runs() == []
    again = make_archive(PROBLEM, settings=settings, store=store, open_referee=bench)
    assert bench.opened == [(), made.generators]
    assert again.new == 0


def test_a_generator_on_which_a_right_kernel_fails_is_not_kept(settings, store):
    a_right_kernel(store)
    bench = Bench(ties, right=lambda generator: generator.inputs["x"].magnitude > 0)
    made = make_archive(PROBLEM, settings=settings, store=store, open_referee=bench)
    assert made.generators
    assert all(generator.inputs["x"].magnitude > 0 for generator in made.generators)
    assert any(generator.inputs["x"].magnitude < 0 for generator in made.archive.generators)


def test_an_archive_does_not_grow_for_ever(settings, store):
    a_right_kernel(store)
    many = [InputGenerator(inputs={"x": InputPattern(kind="sparse", count=n + 1)}) for n in range(31)]
    store.add_generators(PROBLEM, many, author="offline", evidence={})
    made = make_archive(PROBLEM, settings=settings, store=store, open_referee=Bench(ties))
    assert made.new == 1
    with pytest.raises(UsageError, match="full: 32 generators"):
        make_archive(PROBLEM, settings=settings, store=store, open_referee=Bench(ties))


def test_without_a_right_kernel_there_is_nothing_to_seed_faults_into(settings, store):
    with pytest.raises(UsageError, match=r"no kernel .* has passed"):
        make_archive(PROBLEM, settings=settings, store=store, open_referee=Bench(ties))


def test_a_models_proposals_are_searched_with_and_paid_for(settings, store, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    a_right_kernel(store)
    with serve(lambda asked: Answer(json.dumps(REPLY))) as server:
        priced = settings.with_values(
            tester="openai:gpt",
            tester_parameters={"temperature": 0.4},
            openai_base_url=server.openai_base_url,
            max_tokens=200_000,
        )
        bench = Bench(lambda generator: generator == RARE)
        made = make_archive(PROBLEM, settings=priced, store=store, open_referee=bench)
        assert len(server.asked) == 1
        assert server.asked[0].schema["title"] == "ProposedGenerators"
        assert server.asked[0].body["temperature"] == 0.4
    assert RARE in made.generators
    assert {row.generator: row.author for row in store.archived(PROBLEM)}[RARE] == "openai"
    (run,) = store.runs()
    assert (run.status, run.config.recipe) == ("finished", "archive")
    assert store.run_costs(run.id).calls == 1


def test_without_a_usable_reply_the_search_goes_on_alone(settings, store, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    a_right_kernel(store)
    told: list[str] = []
    with serve(lambda asked: Answer("no JSON at all")) as server:
        asking = settings.with_values(tester="openai:gpt", openai_base_url=server.openai_base_url, max_tokens=200_000)
        made = make_archive(PROBLEM, settings=asking, store=store, open_referee=Bench(ties), tell=told.append)
    assert len(server.asked) == 2
    assert made.new > 0
    assert any("continues without the model" in line for line in told)
    assert {row.author for row in store.archived(PROBLEM)} == {"offline"}


def test_a_mailbox_is_waited_for_by_calling_again(settings, store, tmp_path):
    a_right_kernel(store)
    box = tmp_path / "box"
    asking = settings.with_values(tester=f"mailbox:{box}")
    bench = Bench(lambda generator: generator == RARE)
    with pytest.raises(AwaitingReply):
        make_archive(PROBLEM, settings=asking, store=store, open_referee=bench)
    assert [run.status for run in store.runs()] == ["failed"]
    (prompt,) = box.rglob("*.prompt.md")
    reply = prompt.with_name(prompt.name.replace(".prompt.md", ".reply.json"))
    reply.write_text(json.dumps(REPLY))
    os.utime(reply, (0, 0))  # nobody is writing it any more
    assert RARE in make_archive(PROBLEM, settings=asking, store=store, open_referee=bench).generators
    authors = {row.generator == RARE: row.author for row in store.archived(PROBLEM)}
    assert authors == {True: "mailbox", False: "offline"}  # what is not its own are mirror images
