"""The Tester as a model: what it is shown, and which of its proposals are searched with."""

from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace

import pytest
from agents_models import FakePrices, FakeProvider

from kernelwright.agents import RoleFailed, registry
from kernelwright.agents.llm import Budget, Limits, ModelClient
from kernelwright.agents.model_roles import ModelTools
from kernelwright.agents.tester import ModelTester
from kernelwright.datasets import find_problem
from kernelwright.prompts import DeviceFacts, Task
from kernelwright.records import Candidate, InputGenerator, InputPattern, RunConfig, Stage, Status, Verdict
from kernelwright.store import Store

PROBLEM = find_problem("kernelwright/level1/cross_entropy", ())
PATTERN = {"input": "logits", "kind": "ties", "magnitude": 2.0, "count": 4, "place": "random", "axis": -1}
TIES = InputGenerator(inputs={"logits": InputPattern(kind="ties", magnitude=2.0, count=4)})
SORTED = InputGenerator(inputs={"logits": InputPattern(kind="sorted")})


def reply(*patterns: dict) -> dict:
    return {"generators": [{"patterns": [pattern], "catches": "a merge that drops ties"} for pattern in patterns]}


def survivor(source: str) -> tuple[Candidate, SimpleNamespace]:
    candidate = Candidate(problem_id=PROBLEM.id, source=source, backend="cpp")
    verdict = Verdict(
        candidate=candidate.sha256,
        problem=PROBLEM.id,
        backend="cpp",
        stage=Stage.CHECKED,
        failed_stage=None,
        status=Status.PASSED,
        reason="",
        environment="cpu",
        sandbox=(),
        seconds={},
    )
    return candidate, SimpleNamespace(verdict=verdict, artifacts={})


@pytest.fixture
def playing(tmp_path):
    with Store.open(tmp_path / "store.db") as store:

        def play(*answers):
            provider = FakeProvider(lambda request, number: answers[number])
            run_id = store.create_run(RunConfig(problems=(PROBLEM.id,)), [PROBLEM])
            client = ModelClient(
                provider,
                store,
                run_id,
                Budget(store, run_id, Limits()),
                FakePrices(),
                wait=lambda seconds: "",
                fresh=True,
            )
            facts = DeviceFacts(name="a CPU", device_class="cpu", facts={})
            tools = ModelTools(client, partial(Task.of, PROBLEM), lambda backend: facts, {}, 4000)
            return ModelTester("openai:gpt").with_tools(tools), provider

        yield play


def test_its_proposals_become_generators(playing):
    tester, provider = playing(reply(PATTERN, {**PATTERN, "kind": "sorted", "magnitude": 1.0, "count": 1}))
    assert tester.propose(PROBLEM, [], []) == (TIES, SORTED)
    assert provider.requests[0].place == (PROBLEM.id, 0, "tester", 0, 0)


def test_it_is_shown_what_is_known_and_what_survives(playing):
    tester, provider = playing(reply(PATTERN))
    tester.propose(PROBLEM, [SORTED], [survivor(f"kernel_{n} = 1\n") for n in range(5)])
    prompt = provider.requests[0].messages[0].text
    assert SORTED.describe() in prompt
    assert [f"kernel_{n} = 1" in prompt for n in range(5)] == [True, True, True, False, False]
    assert json.loads(json.dumps(provider.requests[0].schema))["title"] == "ProposedGenerators"


def test_what_is_known_already_is_left_out_and_nothing_twice(playing):
    tester, _ = playing(reply(PATTERN, PATTERN, {**PATTERN, "kind": "sorted", "magnitude": 1.0, "count": 1}))
    assert tester.propose(PROBLEM, [SORTED], []) == (TIES,)


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (reply({**PATTERN, "input": "target"}), "no input 'target' may be drawn"),
        (reply({**PATTERN, "input": "nothing"}), "no input 'nothing' may be drawn"),
        (reply({**PATTERN, "magnitude": 0.0}), "magnitude 0"),
        (reply({**PATTERN, "count": 0}), "count"),
        (reply({**PATTERN, "kind": "import os"}), "kind"),
        (reply(), "at least one generator"),
        ({"generators": [{"patterns": [PATTERN, PATTERN], "catches": ""}]}, "two patterns"),
    ],
)
def test_what_cannot_be_used_is_asked_again_once(playing, bad, told):
    tester, provider = playing(bad, reply(PATTERN))
    assert tester.propose(PROBLEM, [], []) == (TIES,)
    assert told in provider.requests[1].messages[-1].text
    tester, _ = playing(bad, bad)
    with pytest.raises(RoleFailed, match="no usable reply"):
        tester.propose(PROBLEM, [], [])


def test_no_more_than_eight_are_taken(playing):
    tester, _ = playing(reply(*({**PATTERN, "count": n} for n in range(1, 20))))
    assert len(tester.propose(PROBLEM, [], [])) == 8


def test_the_words_for_a_tester():
    assert registry.tester_from_spec("offline") is None
    assert registry.tester_from_spec("openai:gpt").spec == "openai:gpt"
