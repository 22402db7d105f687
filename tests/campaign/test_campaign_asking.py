"""What settings of roles, servers and recipes change in what models are asked."""

from __future__ import annotations

import threading

import pytest
from campaign_fakes import FakeReferee, line_recipe, register_scripted_roles
from campaign_models import well_behaved
from llm_server import Answer, Asked, overloaded, serve
from test_campaign_models import campaign, problems, settings_of

from kernelwright.campaign import Campaign
from kernelwright.prompts import exemplar_for
from kernelwright.records import Status


@pytest.fixture(autouse=True)
def roles(monkeypatch):
    register_scripted_roles()
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def is_coders(asked: Asked) -> bool:
    return "source" in (asked.schema or {}).get("properties", {})


def test_parameters_of_a_role_go_to_its_model_alone(tmp_path, store):
    temperatures = {"coder": 0.1, "judge": 0.2, "verifier": 0.3}
    with serve(well_behaved) as server:
        settings = settings_of(
            tmp_path,
            server,
            **{role: f"openai:{role}" for role in temperatures},
            coder_parameters={"temperature": 0.1},
            judge_parameters={"temperature": 0.2},
            verifier_parameters={"temperature": 0.3},
            rounds=2,
            max_tokens=10**8,
        )
        campaign(settings, store)[0].run(problems(1))
    sent = {(asked.model, asked.body["temperature"]) for asked in server.asked}
    assert sent == set(temperatures.items())


@pytest.mark.parametrize("vendor", ["openai", "anthropic"])
def test_a_request_is_sent_as_often_as_its_server_is_to_be_tried(tmp_path, store, vendor):
    tries = {"openai": 1, "anthropic": 3}[vendor]
    with serve(lambda asked: overloaded()) as server:
        changed = {"openai.tries": 1, "anthropic.tries": 3}
        settings = settings_of(tmp_path, server, coder=f"{vendor}:coder", rounds=1, max_tokens=10**8, **changed)
        campaign(settings, store, wait=lambda watch, seconds: watch.reason())[0].run(problems(1))
    assert [asked.vendor for asked in server.asked] == [vendor] * tries


@pytest.mark.parametrize("vendor", ["openai", "anthropic"])
def test_a_server_is_asked_as_much_at_once_as_it_allows(tmp_path, store, vendor):
    most = {"openai": 1, "anthropic": 3}[vendor]
    lock, inside, seen = threading.Lock(), [0], []
    all_here = threading.Barrier(most)

    def script(asked: Asked) -> Answer:
        with lock:
            inside[0] += 1
            seen.append(inside[0])
        all_here.wait(timeout=60)  # for as many as may come, of which there is a whole number of groups
        with lock:
            inside[0] -= 1
        return well_behaved(asked)

    with serve(script) as server:
        changed = {"openai.concurrency": 1, "anthropic.concurrency": 3, "judge": "scripted", "rounds": 1}
        settings = settings_of(
            tmp_path, server, coder=f"{vendor}:coder", parallel_problems=6, max_tokens=10**8, **changed
        )
        result = campaign(settings, store)[0].run(problems(6))
    assert result.status == "finished"
    assert max(seen) == most


class Failing(dict):
    """Every kernel but the first one is wrong."""

    def get(self, word, default=None):
        first = self.setdefault("first", word)
        return Status.PASSED if word == first else Status.INCORRECT_NUMERICAL


@pytest.mark.parametrize(("repairs", "operators"), [(0, "improve improve improve"), (2, "improve repair repair")])
def test_a_failed_kernel_is_repaired_as_often_as_the_recipe_says(tmp_path, store, repairs, operators):
    with serve(well_behaved) as server:
        settings = settings_of(
            tmp_path, server, recipe=line_recipe(tmp_path), recipe_repairs=repairs, rounds=4, judge="scripted"
        )
        referee = FakeReferee(statuses=Failing())
        result = Campaign(settings, store, open_referee=lambda _: referee).run(problems(1))
    written = [e.evaluation.candidate.operator for e in store.evaluations(run_id=result.run_id, confirmed=False)]
    assert written == ["new", *operators.split()]


@pytest.mark.parametrize(("shown", "told"), [(16, True), (0, False)])
def test_a_prompt_shows_measured_moves_where_the_recipe_says_so(tmp_path, store, shown, told):
    with serve(well_behaved) as server:
        settings = settings_of(
            tmp_path, server, recipe=line_recipe(tmp_path), recipe_history=shown, rounds=4, judge="scripted"
        )
        campaign(settings, store)[0].run(problems(1))
    last = [asked for asked in server.asked if is_coders(asked)][-1]
    assert ("go on: after 0" in last.text) is told, "the advice that led to the second kernel"


def test_a_prompt_shows_the_exemplar_that_the_recipe_says(tmp_path, store):
    assert "softsign_scale" in exemplar_for(problems(1)[0], "cpp", "pointwise").source
    for choice, shown in (("pointwise", True), ("none", False)):
        with serve(well_behaved) as server:
            settings = settings_of(tmp_path, server, recipe_exemplar=choice, rounds=1, replies="fresh")
            campaign(settings, store)[0].run(problems(1))
        assert ("softsign_scale" in server.asked[0].text) is shown
