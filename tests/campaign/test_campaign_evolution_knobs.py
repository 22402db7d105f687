"""Runs whose search sets declared knobs itself: nobody is asked for those kernels, and nothing is paid for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from campaign_fakes import FakeReferee, make_candidate, make_evaluation, make_problem

from kernelwright.agents import StepContext
from kernelwright.agents.registry import coders, judges
from kernelwright.agents.roles import Proposal
from kernelwright.campaign import Campaign
from kernelwright.config import Settings
from kernelwright.records import Advice, Candidate, Evaluation
from kernelwright.store import Store

PROBLEM = make_problem()
SOURCE = 'v0\nKNOBS = {"A": [1, 2, 4], "B": [1, 2]}\n'
RECIPE = """
summary = "one kernel, and its knobs"

[settings]
stall_rounds = "none"
speed_of_light = "none"

[search]
remeasure_every = 0

[[search.islands]]
name = "main"
founders = 1
operators = { tune = 5, improve = 0.001 }
"""


class OneKernel:
    """Writes one kernel with knobs, and afterwards others without any; counts how often it was asked."""

    name = "one-kernel"
    backends = frozenset({"cpp"})
    asked: list[str]

    def __init__(self, asked: list[str]) -> None:
        self.asked = asked

    def propose(self, context: StepContext) -> Proposal:
        self.asked.append(context.assignment.mode)
        source = SOURCE if not context.attempts else f"w{context.round}\n"
        candidate = Candidate(
            problem_id=context.problem.id, source=source, backend="cpp", parents=context.assignment.parents, author="m"
        )
        return Proposal(candidate, "written", {})


class Talker:
    """A Judge that says something whenever it is asked."""

    name = "talker"

    def __init__(self, asked: list[str]) -> None:
        self.asked = asked

    def advise(self, context: StepContext, evaluation: Evaluation) -> Advice:
        self.asked.append(f"advice after {context.round}")
        return Advice(mode="optimise", bottleneck="b", method="m", plan="p")


@pytest.fixture
def taught() -> int:
    """Problems of which the store has seen what their kernels' knobs are worth."""
    return 0


@pytest.fixture
def run(tmp_path: Path, taught: int):
    asked: list[str] = []
    for registry, made in ((coders, OneKernel), (judges, Talker)):
        if made.__name__.lower() not in registry.words():
            registry.register(made.__name__.lower(), lambda rest, made=made: made(asked_now))
    asked_now = asked
    recipe = tmp_path / "knobs.toml"
    recipe.write_text(RECIPE)
    settings = Settings(
        store=tmp_path / "store.db",
        cache_dir=tmp_path / "cache",
        coder="onekernel",
        judge="talker",
        recipe=str(recipe),
        rounds=6,
    )
    with Store.open(settings.store) as store:
        for number in range(taught):
            other = make_problem(f"other{number}")
            store.record_problem(other)
            for knobs in ({"A": a, "B": b} for a in (1, 2, 4) for b in (1, 2)):
                candidate = make_candidate(other, SOURCE, knobs=knobs)
                store.record_evaluation(make_evaluation(candidate, speedup=(number + 1) * knobs["A"] ** 0.5))
        referee = FakeReferee({"v0": 1.0, "v0 A=2 B=1": 1.4, "v0 A=4 B=2": 0.5})
        result = Campaign(settings, store, open_referee=lambda _: referee).run([PROBLEM])
        yield result, store, referee, asked


def test_settings_of_a_kernel_are_tried_without_a_coder_or_advice(run):
    result, store, referee, asked = run
    assert result.status == "finished"
    judged = [word for _, word, confirm in referee.judged if not confirm]
    assert len(set(judged)) == len(judged)
    assert set(judged) == {f"v0 A={a} B={b}" for a in (1, 2, 4) for b in (1, 2)} - {"v0 A=1 B=1"} | {"v0"}
    assert [word for word in asked if not word.startswith("advice")] == ["new"]
    assert not [word for word in asked if word != "new" and word != "advice after 5"], "nobody would read it"
    tuned = [row for row in store.evaluations(run_id=result.run_id, purpose="search") if row.candidate.knobs]
    assert {row.candidate.operator for row in tuned if not row.verdict.timing.confirmed} == {"tune"}
    assert {row.candidate.author for row in tuned} == {"m"}
    assert store.candidate(result.rows[0].candidate).knobs == {"A": 2, "B": 1}
    assert store.run_costs(result.run_id).calls == 0


def set_in_turn(referee: FakeReferee) -> list[str]:
    """The settings that were judged, in order."""
    return [word for _, word, confirm in referee.judged if not confirm and "=" in word]


def test_settings_near_the_best_are_tried_first_where_nothing_is_known(run):
    result, store, referee, _ = run
    assert set_in_turn(referee)[:2] == ["v0 A=1 B=2", "v0 A=2 B=1"]
    (learned,) = store.events(result.run_id, kind="cost-model")
    assert (learned.data["used"], learned.data["kernels"]) == (False, 0)


@pytest.mark.parametrize("taught", [8])
def test_what_the_store_has_learned_orders_the_settings(run):
    result, store, referee, _ = run
    assert {word.split()[1] for word in set_in_turn(referee)[:2]} == {"A=4"}
    (learned,) = store.events(result.run_id, kind="cost-model")
    assert (learned.data["used"], learned.data["kernels"], learned.data["problems"]) == (True, 48, 8)
    assert learned.data["rank_correlation"]["low"] > 0.5
