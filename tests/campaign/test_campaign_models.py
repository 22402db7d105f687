"""Runs with language models: both vendors' real SDKs against a loopback server, over a referee that judges by table."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest
from campaign_fakes import FakeReferee, default_signals, line_recipe, make_problem, register_scripted_roles
from campaign_models import CONTENT, FAULTS, Faulty, reply_to, tokens_of, well_behaved
from llm_server import Answer, Hang, serve

from kernelwright.campaign import Campaign
from kernelwright.campaign.recordings import record_run
from kernelwright.config import Settings
from kernelwright.errors import MissingToolError, UsageError
from kernelwright.records import Profile
from kernelwright.store import Store

PRICES = """
[[price]]
provider = "openai"
models = ["coder"]
as_of = 2026-11-01
input_usd = 10.0
cached_usd = 1.0
output_usd = 100.0

[[price]]
provider = "anthropic"
models = ["judge"]
as_of = 2026-11-01
input_usd = 5.0
cached_usd = 1.0
output_usd = 50.0
"""


@pytest.fixture(autouse=True)
def roles(monkeypatch):
    register_scripted_roles()
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def settings_of(tmp_path: Path, server=None, **more) -> Settings:
    prices = tmp_path / "prices.toml"
    prices.write_text(PRICES)
    places = {"store": tmp_path / "store.db", "cache_dir": tmp_path / "cache", "prices": prices}
    if server is not None:
        places |= {"openai_base_url": server.openai_base_url, "anthropic_base_url": server.anthropic_base_url}
    roles = {"coder": "openai:coder", "judge": "anthropic:judge", "rounds": 3}
    return Settings(**{**places, **roles, **more})


def problems(count: int):
    return [make_problem(f"p{number}") for number in range(count)]


def campaign(settings, store, **more):
    referee = FakeReferee()
    return Campaign(settings, store, open_referee=lambda _: referee, **more), referee


def searched(referee: FakeReferee) -> list[str]:
    """What was judged, confirmations left out."""
    return [word for _, word, confirmed in referee.judged if not confirmed]


def test_a_run_asks_both_models_and_books_exactly_what_they_bill(tmp_path, store):
    with serve(well_behaved) as server:
        run, referee = campaign(settings_of(tmp_path, server), store)
        result = run.run(problems(3))
    assert result.status == "finished"
    assert [row.state for row in result.rows] == ["done"] * 3
    assert len(searched(referee)) == 3 * 3
    costs = store.run_costs(result.run_id)
    billed = server.totals
    assert costs.calls == sum(total.replies for total in billed.values()) == 3 * (3 + 3)
    assert costs.input_tokens == sum(total.input_tokens for total in billed.values())
    assert costs.output_tokens == sum(total.output_tokens for total in billed.values())
    assert costs.cost_usd == pytest.approx(store.spending(result.run_id).cost_usd)
    for evaluation in store.evaluations(run_id=result.run_id):
        candidate = evaluation.evaluation.candidate
        assert candidate.author == "openai:coder"
        assert problems(1)[0].source.strip() in store.get_text(candidate.prompt_sha256)
    assert store.check().ok


def test_the_best_kernel_is_what_the_next_round_begins_from(tmp_path, store):
    with serve(well_behaved) as server:
        run, _ = campaign(
            settings_of(tmp_path, server, rounds=2, parallel_problems=1, recipe=line_recipe(tmp_path)), store
        )
        run.run(problems(1))
    first, second = [asked for asked in server.asked if asked.vendor == "openai"]
    name = json.loads(reply_to(first))["source"].splitlines()[0]
    assert name not in first.text
    assert name in second.text
    (judged, _) = [asked for asked in server.asked if asked.vendor == "anthropic"]
    assert name in judged.text
    assert "one pass" in second.text, "the Judge's advice reaches the Coder"


def test_a_coder_is_told_why_its_answers_could_not_be_used_and_is_not_asked_the_same_again(tmp_path, store):
    coder_asked = []

    def script(asked):
        if asked.vendor == "openai":
            coder_asked.append(asked.text)
            if len(coder_asked) <= 4:
                return Answer('{"plan": "an idea", "source": "import torch"}', tokens_of(asked))
        return well_behaved(asked)

    with serve(script) as server:
        run, referee = campaign(settings_of(tmp_path, server, rounds=4), store)
        result = run.run(problems(1))
    assert [row.state for row in result.rows] == ["done"]
    assert len(searched(referee)) == 2
    assert len(coder_asked) == len(set(coder_asked)) == 6
    assert "round 1: " in coder_asked[2]
    assert "no class ModelNew" in coder_asked[2]
    assert "round 2: " in coder_asked[4]
    assert "round 2: " not in coder_asked[5], "a verdict is worth more"


def test_every_fault_of_a_long_run_is_accounted_for(tmp_path, store):
    """Fifty problems; each fault several times, at both vendors; nothing waits for real."""
    script = Faulty(every=4)
    with serve(script) as server:
        settings = settings_of(tmp_path, server, rounds=2, parallel_problems=16, openai_concurrency=16)
        run, _ = campaign(settings, store, wait=lambda watch, seconds: watch.reason())
        result = run.run(problems(50))
    assert result.status == "finished"
    assert set(script.faults) == set(range(len(FAULTS)))
    counts = store.request_counts(result.run_id)
    assert sum(count.requests for count in counts) == len(server.asked)
    assert {count.state for count in counts} == {"settled", "booked", "released"}
    billed = server.totals.values()
    settled = [count for count in counts if count.state == "settled"]
    assert sum(count.requests for count in settled) == sum(total.replies for total in billed)
    assert sum(count.tokens for count in settled) == sum(t.input_tokens + t.output_tokens for t in billed)
    assert {count.outcome for count in counts if count.state == "released"} == {"rate-limit", "overloaded"}
    assert {count.outcome for count in counts if count.state == "booked"} == {
        "server-error",
        "connection",
        "cut-stream",
        "reply without usage",
    }
    assert store.spending(result.run_id).tokens >= sum(t.input_tokens + t.output_tokens for t in billed)
    lost = [row.reason for row in result.rows if row.state != "done"]
    assert len(lost) <= 2, "two unusable replies to one question in each of two rounds"
    assert all("no usable reply from openai:coder" in reason for reason in lost)
    replies = sum(count.requests for count in counts if count.outcome.startswith("reply"))
    unanswered = sum(script.faults[number] for number, fault in enumerate(FAULTS) if fault not in CONTENT)
    assert sum(count.requests for count in counts) == replies + unanswered


def test_a_resumed_run_asks_nothing_again_that_was_answered(tmp_path, store):
    with serve(well_behaved) as server:
        settings = settings_of(tmp_path, server, parallel_problems=1)
        seen = []
        run = Campaign(
            settings,
            store,
            open_referee=lambda _: FakeReferee(),
            tell=lambda event: seen.append(event.kind) or (_pause(store) if seen.count("judged") == 4 else None),
        )
        first = run.run(problems(3))
        assert (first.status, first.reason) == ("paused", "paused")
        asked = len(server.asked)
        again = Campaign(settings, store, open_referee=lambda _: FakeReferee()).resume(first.run_id)
    assert again.status == "finished"
    assert 0 < asked < len(server.asked)
    texts = [(one.vendor, one.text) for one in server.asked]
    assert len(texts) == len(set(texts)) == 18


def _pause(store) -> None:
    store.set_run_status(store.runs()[0].id, "paused")


def test_a_rerun_is_free(tmp_path, store):
    with serve(well_behaved) as server:
        settings = settings_of(tmp_path, server, parallel_problems=1)
        first = campaign(settings, store)[0].run(problems(2))
        asked = len(server.asked)
        second = campaign(settings, store)[0].run(problems(2))
        assert len(server.asked) == asked
        campaign(settings.with_values(replies="fresh"), store)[0].run(problems(2))
        assert len(server.asked) == 2 * asked
    assert store.run_costs(second.run_id).calls == 0
    assert store.run_costs(second.run_id).reused_replies == store.run_costs(first.run_id).calls


def test_a_budget_stops_the_run_and_a_larger_one_lets_it_go_on(tmp_path, store):
    with serve(well_behaved) as server:
        settings = settings_of(tmp_path, server, parallel_problems=1, max_tokens=30_000, max_output_tokens=1000)
        first = campaign(settings, store)[0].run(problems(3))
        assert (first.status, first.reason) == ("paused", "budget")
        spent = store.spending(first.run_id)
        assert spent.open == 0
        assert 0 < spent.tokens <= 30_000
        run, _ = campaign(settings_of(tmp_path, server), store)
        again = run.resume(first.run_id, max_tokens=10_000_000)
    assert again.status == "finished"
    assert store.spending(first.run_id).tokens > spent.tokens
    assert store.run(first.run_id).config.max_tokens == 10_000_000


def test_the_referees_time_is_a_budget_too(tmp_path, store):
    with serve(well_behaved) as server:
        settings = settings_of(tmp_path, server, parallel_problems=1, max_device_seconds=0.25)
        first = campaign(settings, store)[0].run(problems(2))  # each evaluation takes 0.1 s of it
        assert (first.status, first.reason) == ("paused", "budget")
        assert store.device_seconds(first.run_id) == pytest.approx(0.3)
        again = campaign(settings, store)[0].resume(first.run_id)
        assert (again.status, store.device_seconds(first.run_id)) == ("paused", pytest.approx(0.3))
        again = campaign(settings, store)[0].resume(first.run_id, max_device_seconds=60)
    assert again.status == "finished"


def test_rounds_without_a_gain_end_a_problem(tmp_path, store):
    with serve(well_behaved) as server:
        result = campaign(settings_of(tmp_path, server, rounds=9, recipe_stall_rounds=2), store)[0].run(problems(1))
    assert (result.rows[0].rounds, result.rows[0].reason) == (3, "2 rounds without a gain")


def test_the_first_signal_lets_requests_in_flight_end_and_pays_for_them(tmp_path, store):
    noticed = threading.Event()

    def script(asked):
        if asked.number == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        noticed.wait()
        return well_behaved(asked)

    with default_signals(), serve(script) as server:
        settings = settings_of(tmp_path, server, parallel_problems=2)
        first = campaign(settings, store, signals=True, tell=_sets_once_stopping(noticed))[0].run(problems(6))
        assert first.status == "interrupted"
        assert {state for (state,) in _states(store)} == {"settled"}
        asked = len(server.asked)
        assert asked <= 4
        again = campaign(settings, store)[0].resume(first.run_id)
    assert again.status == "finished"
    texts = [(one.vendor, one.text) for one in server.asked]
    assert len(texts) == len(set(texts))


def test_the_second_signal_ends_a_request_that_nobody_answers(tmp_path, store):
    noticed = threading.Event()

    def script(asked):
        if asked.number == 0:
            os.kill(os.getpid(), signal.SIGINT)
            noticed.wait()  # of two signals that come together Python's main thread sees one
            os.kill(os.getpid(), signal.SIGINT)
        return Hang()

    with default_signals(), serve(script) as server:
        settings = settings_of(tmp_path, server, parallel_problems=2)
        result = campaign(settings, store, signals=True, tell=_sets_once_stopping(noticed))[0].run(problems(2))
    assert result.status == "interrupted"
    assert store.run(result.run_id).status == "interrupted"
    assert store.spending(result.run_id).open == 0
    assert {state for (state,) in _states(store)} == {"booked"}


def _sets_once_stopping(noticed: threading.Event):
    def tell(event):
        if event.kind == "stopping":
            noticed.set()

    return tell


def _states(store) -> list[tuple[str]]:
    return [(row["state"],) for row in store.query("SELECT state FROM llm_requests")]


def test_samples_are_written_side_by_side(tmp_path, store):
    def script(asked):
        reply = json.loads(reply_to(asked))
        if "source" in reply:  # a model that is asked the same thing thrice has three ideas
            reply["source"] = f"v{asked.number}\n{reply['source']}"
        return Answer(json.dumps(reply), tokens_of(asked))

    with serve(script) as server:
        settings = settings_of(
            tmp_path, server, recipe_samples=3, rounds=2, parallel_problems=1, recipe=line_recipe(tmp_path)
        )
        result = campaign(settings, store)[0].run(problems(1))
    assert result.status == "finished"
    places = {(use.step, use.role, use.sample) for use in store.uses(result.run_id)}
    assert places == {
        *((step, "coder", sample) for step in range(2) for sample in range(3)),
        *((step, "judge", 0) for step in range(2)),
    }
    operators = [e.evaluation.candidate.operator for e in store.evaluations(run_id=result.run_id, confirmed=False)]
    assert operators == ["new", "new", "new", "improve", "cross", "new"]


def test_a_model_of_unknown_price_needs_a_cap_in_tokens(tmp_path, store):
    with serve(well_behaved) as server:
        settings = settings_of(tmp_path, server, coder="openai:unlisted")
        with pytest.raises(UsageError, match="the price of openai:unlisted is unknown"):
            campaign(settings, store)[0].run(problems(1))
        result = campaign(settings.with_values(max_tokens=1_000_000), store)[0].run(problems(1))
    assert result.status == "finished"
    assert store.run_costs(result.run_id).cost_usd is None
    assert len(store.runs()) == 1


def test_a_missing_key_is_told_before_a_run_is_made(tmp_path, store):
    with pytest.raises(MissingToolError, match="OPENAI_API_KEY"):
        campaign(settings_of(tmp_path, coder="openai:coder", judge="offline"), store)[0].run(problems(1))
    assert not store.runs()


class Everything(dict):
    """The same entry for every kernel."""

    def __init__(self, entry) -> None:
        super().__init__()
        self.entry = entry

    def get(self, word, default=None):
        return self.entry


@pytest.mark.parametrize(
    ("distance", "more", "rounds"),
    [
        pytest.param(1.02, {}, 1, id="reached"),
        pytest.param(1.2, {}, 3, id="not reached"),
        pytest.param(1.2, {"recipe.speed_of_light": 0.8}, 1, id="reached where less is enough"),
        pytest.param(1.02, {"recipe.speed_of_light": None}, 3, id="not asked for"),
    ],
)
def test_a_problem_ends_where_nothing_faster_is_possible(tmp_path, store, distance, more, rounds):
    profile = Profile(rung="static", metrics={"distance_to_roofline": distance})
    with serve(well_behaved) as server:
        run, referee = campaign(settings_of(tmp_path, server, **more), store)
        referee.profiles = Everything(profile)
        (row,) = run.run(problems(1)).rows
    assert len(searched(referee)) == rounds
    assert ("% of the speed that the machine allows" in row.reason) == (rounds == 1)


# ---------------------------------------------------------------------------------------- mailbox and replay


class Correspondent:
    """Answers what lies in a mailbox, whenever the run has nothing else to do."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    def __call__(self, event) -> None:
        if event.kind != "awaiting":
            return
        for place in map(Path, event.data["places"]):
            self.prompts.append(place.name)
            judge = "-judge-" in place.name
            reply = place.with_name(place.name + (".reply.json" if judge else ".reply.md"))
            reply.write_text(JUDGEMENT if judge else KERNEL.format(name=place.name.replace("-", "_")))
            os.utime(reply, (0, 0))


JUDGEMENT = json.dumps({"bottleneck": "memory", "method": "fuse", "plan": "one pass", "expected_effect": "2x"})
KERNEL = """## plan

An idea.

## source
```python
{name}


class ModelNew:
    pass
```
"""


def mailbox_settings(tmp_path, **more):
    box = f"mailbox:{tmp_path / 'box'}"
    return settings_of(tmp_path, coder=box, judge=box, rounds=2, **more)


def test_a_person_can_be_the_model(tmp_path, store):
    correspondent = Correspondent()
    result = campaign(mailbox_settings(tmp_path), store, tell=correspondent)[0].run(problems(2))
    assert result.status == "finished"
    assert len(correspondent.prompts) == 2 * (2 + 2)
    assert [row.state for row in result.rows] == ["done", "done"]
    assert store.run_costs(result.run_id).calls == 8
    assert store.spending(result.run_id).tokens == 0


def test_a_run_keeps_no_place_of_this_machine_but_in_what_it_was_asked_to_do(tmp_path, store):
    result = campaign(mailbox_settings(tmp_path), store, tell=Correspondent())[0].run(problems(1))
    text = record_run(store, result.run_id)[0]
    assert str(tmp_path) not in text
    authors = {e.evaluation.candidate.author for e in store.evaluations(run_id=result.run_id)}
    assert authors == {"mailbox"}


def test_a_mailbox_is_the_same_folder_wherever_the_run_is_resumed(tmp_path, store, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = settings_of(tmp_path, coder="mailbox:box", judge="scripted", rounds=1, mailbox_minutes=0)
    result = campaign(settings, store)[0].run(problems(1))
    monkeypatch.chdir("/")
    asked = []
    campaign(settings, store, tell=asked.append)[0].resume(result.run_id)
    (awaiting,) = [event for event in asked if event.kind == "awaiting"]
    assert awaiting.data["places"][0].startswith(str(tmp_path / "box"))


def test_a_run_without_patience_pauses_and_is_resumed_when_replies_have_come(tmp_path, store):
    settings = mailbox_settings(tmp_path, mailbox_minutes=0)
    correspondent, asked = Correspondent(), []
    run = campaign(settings, store, tell=asked.append)[0]
    result = run.run(problems(2))
    assert (result.status, result.reason) == ("paused", "replies")
    (awaiting,) = [event for event in asked if event.kind == "awaiting"]
    assert len(awaiting.data["places"]) == 2, "each problem got as far as it could"
    for _ in range(10):
        correspondent([event for event in asked if event.kind == "awaiting"][-1])
        result = campaign(settings, store, tell=asked.append)[0].resume(result.run_id)
        if result.status == "finished":
            break
    assert result.status == "finished"
    assert store.run_costs(result.run_id).calls == 8


def test_a_recording_is_replayed_without_a_model_and_judged_afresh(tmp_path, store):
    with serve(well_behaved) as server:
        first = campaign(settings_of(tmp_path, server, parallel_problems=1), store)[0].run(problems(2))
    text, count = record_run(store, first.run_id)
    assert count == 12
    recording = tmp_path / "run.jsonl"
    recording.write_text(text)
    replay = f"replay:{recording}"
    with Store.open(tmp_path / "elsewhere.db") as other:
        settings = settings_of(tmp_path, coder=replay, judge=replay)
        run, referee = campaign(settings, other)
        second = run.run(problems(2))
        assert second.status == "finished"
        assert len(searched(referee)) == 6
        sources = [e.evaluation.candidate.source for e in other.evaluations(run_id=second.run_id)]
        assert sources == [e.evaluation.candidate.source for e in store.evaluations(run_id=first.run_id)]
        assert other.run_costs(second.run_id).cost_usd == 0.0


def test_a_recording_that_ends_ends_the_problem(tmp_path, store):
    with serve(well_behaved) as server:
        first = campaign(settings_of(tmp_path, server, rounds=1), store)[0].run(problems(1))
    recording = tmp_path / "run.jsonl"
    recording.write_text(record_run(store, first.run_id)[0])
    replay = f"replay:{recording}"
    result = campaign(settings_of(tmp_path, coder=replay, judge=replay, rounds=5), store)[0].run(problems(1))
    assert result.status == "finished"
    assert result.rows[0].rounds == 1
    assert "recording" in result.rows[0].reason
