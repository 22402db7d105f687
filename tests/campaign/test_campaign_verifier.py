"""Runs with a Verifier: what it says is measured, then believed or done without."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable

import pytest
from campaign_fakes import FakeReferee, make_candidate, make_evaluation, make_problem, register_scripted_roles
from campaign_models import reply_to, tokens_of
from llm_server import Answer, Asked, serve

from kernelwright.agents.verifier import Forecast
from kernelwright.campaign import Campaign
from kernelwright.campaign.ledger import StoreLedger, verifier_record
from kernelwright.config import Settings
from kernelwright.records import RunConfig, Status
from kernelwright.store import Store

PROBLEMS, ROUNDS = 16, 5


MET: dict[str, int] = {}  # kernels by when they first turned up; names depend on prompts, and so on the machine


def is_wrong(word: str) -> bool:
    """Whether the referee will refuse a kernel: two in a row of every five."""
    return MET.setdefault(word, len(MET)) % 5 in (1, 2)


class ByName(dict):
    """The referee's table of statuses, for any name."""

    def get(self, word: str, default: Status = Status.PASSED) -> Status:
        search = " " not in word
        return Status.INCORRECT_NUMERICAL if search and is_wrong(word) else default


class Model:
    """Writes kernels, and predicts verdicts as ``says`` wants: an outcome and how sure it is."""

    def __init__(self, says: Callable[[str], tuple[str, float]] | None) -> None:
        self.says = says
        self.predicted: list[str] = []

    def __call__(self, asked: Asked) -> Answer:
        if "confidence" not in (asked.schema or {}).get("properties", {}):
            return Answer(reply_to(asked), tokens_of(asked))
        word = re.findall(r"v_[0-9a-f]{8}", asked.text)[-1]
        self.predicted.append(word)
        if self.says is None:
            return Answer("no idea", tokens_of(asked))
        outcome, confidence = self.says(word)
        reply = {"outcome": outcome, "confidence": confidence, "reason": f"{word} drops a term"}
        return Answer(json.dumps(reply), tokens_of(asked))


@pytest.fixture
def run(tmp_path):
    """A run with a Verifier: its id, its store, its model, and the kernels that were judged, in order."""
    register_scripted_roles()
    MET.clear()

    def go(says: Callable[[str], tuple[str, float]] | None):
        model, referee = Model(says), FakeReferee(statuses=ByName())
        with serve(model) as server, Store.open(tmp_path / "store.db") as store:
            settings = Settings(
                store=store.path,
                cache_dir=tmp_path / "cache",
                coder="openai:coder",
                judge="scripted",
                verifier="openai:verifier",
                openai_base_url=server.openai_base_url,
                max_tokens=10**8,
                rounds=ROUNDS,
                parallel_problems=1,
            )
            problems = [make_problem(f"p{number}") for number in range(PROBLEMS)]
            result = Campaign(settings, store, open_referee=lambda _: referee).run(problems)
            assert result.status == "finished"
            judged = [word for _, word, confirmed in referee.judged if not confirmed]
            return verifier_record(store, result.run_id), model, judged, server

    return go


def honest(word: str) -> tuple[str, float]:
    return ("numerical-failure", 0.9) if is_wrong(word) else ("passes", 0.9)


def test_a_verifier_that_is_right_saves_the_referee_work_and_loses_no_good_kernel(run):
    record, model, judged, server = run(honest)
    assert record.standing == "believed"
    assert (record.precision, record.recall) == (1.0, 1.0)
    skipped = [word for word in model.predicted if word not in judged]
    assert len(skipped) == record.passed_over > 5
    assert all(map(is_wrong, skipped))
    assert set(model.predicted[:12]) <= set(judged), "nothing is decided by a word that was not yet measured"
    late = [word for word in judged if is_wrong(word) and word in model.predicted[12:]]
    assert late, "some are judged nevertheless, so that the measurement goes on"
    told = [asked.text for asked in server.asked if "drops a term" in asked.text]
    assert any("not judged, since a numerical-failure is expected" in text for text in told), (
        "its reason reaches the Coder"
    )


def test_two_rounds_in_a_row_never_pass_without_a_verdict(run):
    _, model, judged, _ = run(honest)
    rounds = [word in judged for word in model.predicted]
    assert not all(rounds)
    for number in range(PROBLEMS):  # one after the other, so each has its rounds together
        mine = rounds[number * ROUNDS : (number + 1) * ROUNDS]
        assert all(a or b for a, b in itertools.pairwise(mine))


@pytest.mark.parametrize(
    "says",
    [
        pytest.param(lambda word: ("build-failure", 0.9), id="everything fails"),
        pytest.param(lambda word: ("passes", 0.9), id="everything passes"),
        pytest.param(lambda word: (honest(word)[0], 0.3), id="never sure"),
    ],
)
def test_a_verifier_that_does_not_pay_is_asked_no_more(run, says):
    record, model, judged, _ = run(says)
    assert record.standing == "switched off"
    assert record.passed_over == 0
    assert len(judged) == PROBLEMS * ROUNDS
    assert len(model.predicted) == 12


def test_a_verifier_without_a_usable_answer_keeps_nothing_from_being_judged(run):
    record, model, judged, _ = run(None)
    assert record is None
    assert len(judged) == PROBLEMS * ROUNDS
    assert len(model.predicted) == 2 * len(judged), "asked again once, each time"


def test_a_resumed_run_keeps_what_was_said(run, tmp_path):
    """The record is worked out from the store alone."""
    record, *_ = run(honest)
    with Store.open(tmp_path / "store.db", readonly=True) as store:
        assert verifier_record(store, store.runs()[0].id) == record


@pytest.mark.parametrize("said", [("numerical-failure", "passes"), ("passes", "numerical-failure")])
def test_a_verifier_is_held_to_what_it_said_first_of_a_kernel(tmp_path, said):
    problem = make_problem()
    candidate = make_candidate(problem)
    with Store.open(tmp_path / "store.db") as store:
        run_id = store.create_run(RunConfig(problems=(problem.id,)), [problem])
        ledger = StoreLedger(store, run_id, problem.id)
        for number, outcome in enumerate(said):
            ledger.add_forecast(
                Forecast(
                    round=number,
                    candidate=candidate.sha256,
                    verifier="test",
                    outcome=outcome,
                    confidence=0.9,
                    reason="",
                    passed_over=False,
                )
            )
        ledger.record(make_evaluation(candidate, status=Status.INCORRECT_NUMERICAL), step=0)
        record = verifier_record(store, run_id)
    assert (record.judged, record.recall) == (1, 1.0 if said[0] != "passes" else 0.0)
