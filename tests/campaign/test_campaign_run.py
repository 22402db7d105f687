"""Runs over several problems: order, winners, faults, budgets, stops, resumption."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path

import pytest
from campaign_fakes import FakeReferee, FakeSession, default_signals, make_problem, register_scripted_roles

from kernelwright.agents.offline_coder import OfflineCoder
from kernelwright.campaign import Campaign, CampaignResult, rows_of
from kernelwright.campaign.runs import problems_of
from kernelwright.config import Measurement, Settings
from kernelwright.datasets import LintRecords
from kernelwright.errors import InvalidReferenceError, MachineError, SandboxError, UsageError
from kernelwright.records import InputGenerator, InputPattern, Problem, Stage, Status
from kernelwright.sandbox import WorkerFailed
from kernelwright.store import Store

PROBLEMS = [make_problem("one"), make_problem("two"), make_problem("three")]
SPEEDUPS = {"v0": 1.1, "v1": 2.0, "v2": 1.5}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    register_scripted_roles()
    return Settings(
        store=tmp_path / "store.db", cache_dir=tmp_path / "cache", coder="scripted", judge="scripted", rounds=3
    )


@pytest.fixture
def store(settings: Settings):
    with Store.open(settings.store) as opened:
        yield opened


def run(settings, store, referee, problems=PROBLEMS, **more) -> CampaignResult:
    return Campaign(settings, store, open_referee=lambda _: referee, **more).run(problems)


def test_every_problem_gets_its_confirmed_winner(settings, store):
    referee = FakeReferee(SPEEDUPS)
    result = run(settings, store, referee)
    assert result.status == "finished"
    assert [row.problem for row in result.rows] == [problem.id for problem in PROBLEMS]
    for row in result.rows:
        assert store.candidate(row.candidate).source.startswith("v1")
        assert row.stage is Stage.CONFIRMED
        assert row.confirmed
        assert row.speedup["eager"].median == 2.0
        assert row.rounds == 3
    assert [entry for entry in referee.judged if entry[2]] == [
        ("one", "v1", True),
        ("two", "v1", True),
        ("three", "v1", True),
    ]
    assert store.run(result.run_id).status == "finished"
    assert len(store.evaluations(run_id=result.run_id)) == 12
    assert len(store.notes(run_id=result.run_id)) == 9


def test_a_refused_winner_gives_way_to_the_runner_up(settings, store):
    referee = FakeReferee(SPEEDUPS, statuses={"v1 confirmed": Status.QUARANTINED})
    row = run(settings, store, referee, PROBLEMS[:1]).rows[0]
    assert store.candidate(row.candidate).source.startswith("v2")
    assert [word for _, word, confirm in referee.judged if confirm] == ["v1", "v2"]


def test_a_winner_that_is_not_faster_after_all_is_compared_with_the_runner_up(settings, store):
    referee = FakeReferee(SPEEDUPS, confirmed_speedups={"v1": 0.9, "v2": 1.3})
    row = run(settings, store, referee, PROBLEMS[:1]).rows[0]
    assert row.speedup["eager"].median == 1.3
    referee = FakeReferee(SPEEDUPS, confirmed_speedups={"v1": 0.9, "v2": 0.8})
    row = run(settings, store, referee, PROBLEMS[:1]).rows[0]
    assert row.speedup["eager"].median == 0.9


def test_what_is_slower_for_sure_is_not_confirmed(settings, store):
    slower, close = FakeReferee({"v0": 0.5, "v1": 0.8, "v2": 0.7}), FakeReferee({"v0": 0.5, "v1": 0.99, "v2": 0.7})
    (row,) = run(settings, store, slower, PROBLEMS[:1]).rows
    assert [entry for entry in slower.judged if entry[2]] == []
    assert (row.state, row.stage, row.confirmed) == ("done", Stage.TIMED, False)
    assert row.speedup["eager"].median == 0.8, "the search's figure stands"
    run(settings, store, close, PROBLEMS[:1])
    assert [entry for entry in close.judged if entry[2]] == [("one", "v1", True)], "the runner-up cannot win"


def test_a_winner_that_the_runner_up_beats_beside_it_is_not_published_for_a_luckier_confirmation(
    settings, store, monkeypatch
):
    ratio = FakeSession._ratio

    def beaten(session, speedup, rival, confirm):
        return 0.8 if confirm else ratio(session, speedup, rival, confirm)

    monkeypatch.setattr(FakeSession, "_ratio", beaten)
    referee = FakeReferee(SPEEDUPS, confirmed_speedups={"v1": 1.5, "v2": 1.3})
    row = run(settings, store, referee, PROBLEMS[:1]).rows[0]
    assert [word for _, word, confirm in referee.judged if confirm] == ["v1", "v2"]
    assert row.speedup["eager"].median == 1.3
    assert store.candidate(row.candidate).source.startswith("v2")

    referee = FakeReferee(SPEEDUPS, confirmed_speedups={"v1": 1.5, "v2": 0.98})
    row = run(settings, store, referee, PROBLEMS[:1]).rows[0]
    assert row.speedup["eager"].median == 1.5, "what is no faster than the baseline wins nothing"

    statuses = {"v2 confirmed": Status.QUARANTINED}
    referee = FakeReferee(SPEEDUPS, confirmed_speedups={"v1": 1.5}, statuses=statuses)
    row = run(settings, store, referee, PROBLEMS[:1]).rows[0]
    assert row.speedup["eager"].median == 1.5


def test_a_disturbed_confirmation_of_the_runner_up_loses_nothing(settings, store):
    def disturb(point: str) -> None:
        if point == "judging v2 True":
            raise MachineError("too busy")

    referee = FakeReferee(SPEEDUPS, confirmed_speedups={"v1": 0.9}, point=disturb)
    row = run(settings, store, referee, PROBLEMS[:1]).rows[0]
    assert row.speedup["eager"].median == 0.9
    assert [word for _, word, confirm in referee.judged if confirm] == ["v1"]


def test_nothing_is_published_when_the_confirmation_refuses_both(settings, store):
    statuses = {"v1 confirmed": Status.QUARANTINED, "v2 confirmed": Status.QUARANTINED}
    result = run(settings, store, FakeReferee(SPEEDUPS, statuses=statuses), PROBLEMS[:1])
    assert result.rows[0].candidate is None
    assert result.rows[0].state == "failed"
    assert "confirmation refused" in result.rows[0].reason
    assert not result.all_won


def test_a_problem_where_nothing_passes_says_why(settings, store):
    statuses = dict.fromkeys(SPEEDUPS, Status.INCORRECT_NUMERICAL)
    row = run(settings, store, FakeReferee(statuses=statuses), PROBLEMS[:1]).rows[0]
    assert row.candidate is None
    assert row.status is Status.INCORRECT_NUMERICAL
    assert "no candidate passed in 3 rounds" in row.reason


def test_a_coder_with_nothing_to_offer_ends_the_loop(settings, store):
    row = run(settings.with_values(coder="scripted:2"), store, FakeReferee(SPEEDUPS), PROBLEMS[:1]).rows[0]
    assert (row.rounds, row.reason) == (2, "scripted: nothing more to offer")
    row = run(settings.with_values(coder="scripted:0"), store, FakeReferee(SPEEDUPS), PROBLEMS[:1]).rows[0]
    assert row.reason == "no candidate was proposed"


def test_an_unusable_reference_does_not_stop_the_others(settings, store):
    fault = InvalidReferenceError("forward returns nothing", line=9)
    result = run(settings, store, FakeReferee(SPEEDUPS, faults={"two": [fault]}))
    assert [row.state for row in result.rows] == ["done", "failed", "done"]
    assert result.rows[1].status is Status.INVALID_REFERENCE
    assert "forward returns nothing" in result.rows[1].reason


def test_an_error_that_nobody_foresaw_does_not_stop_the_others(settings, store):
    result = run(settings, store, FakeReferee(SPEEDUPS, faults={"two": [RecursionError("too deep")]}))
    assert [row.state for row in result.rows] == ["done", "failed", "done"]
    assert [(row.problem, row.reason) for row in result.unjudged] == [
        (PROBLEMS[1].id, "an error of kernelwright: RecursionError: too deep")
    ]
    assert not result.all_won


def test_a_fault_of_the_machine_is_tried_again_once(settings, store):
    result = run(settings, store, FakeReferee(SPEEDUPS, faults={"one": [MachineError("no pulse")]}), PROBLEMS[:1])
    assert result.all_won
    assert [event.data["problem"] for event in store.events(result.run_id, kind="machine-error")] == [PROBLEMS[0].id]


def test_a_machine_that_stays_broken_fails_the_problem_and_a_resume_tries_again(settings, store):
    faults = {"one": [MachineError("no pulse"), MachineError("no pulse")]}
    result = run(settings, store, FakeReferee(SPEEDUPS, faults=faults), PROBLEMS[:2])
    assert [row.state for row in result.rows] == ["failed", "done"]
    assert result.rows[0].retry
    store.set_run_status(result.run_id, "interrupted")
    referee = FakeReferee(SPEEDUPS)
    resumed = Campaign(settings, store, open_referee=lambda _: referee).resume(result.run_id)
    assert resumed.all_won
    assert {name for name, _, _ in referee.judged} == {"one"}


def test_a_broken_sandbox_ends_the_run_and_it_can_be_resumed(settings, store):
    referee = FakeReferee(SPEEDUPS, faults={"two": [SandboxError("a hole")]})
    with pytest.raises(SandboxError):
        run(settings, store, referee)
    stored = store.runs()[0]
    assert stored.status == "failed"
    referee = FakeReferee(SPEEDUPS)
    assert Campaign(settings, store, open_referee=lambda _: referee).resume(stored.id).all_won
    assert "one" not in {name for name, _, _ in referee.judged}


def test_the_budget_pauses_the_run(settings, store):
    result = run(settings.with_values(max_minutes=1e-9), store, FakeReferee(SPEEDUPS))
    assert (result.status, result.reason) == ("paused", "budget")
    assert {row.state for row in result.rows} == {"pending"}
    campaign = Campaign(settings, store, open_referee=lambda _: FakeReferee(SPEEDUPS))
    assert campaign.resume(result.run_id).status == "paused"
    assert campaign.resume(result.run_id, max_minutes=60).all_won


def test_a_stop_between_two_rounds_loses_nothing_and_repeats_nothing(settings, store):
    campaign = Campaign(
        settings, store, open_referee=lambda _: FakeReferee(SPEEDUPS, point=cancel_at("judged v1 False", store))
    )
    result = campaign.run(PROBLEMS)
    assert result.status == "cancelled"
    assert len(store.evaluations(run_id=result.run_id)) == 2
    store.set_run_status(result.run_id, "interrupted")
    referee = FakeReferee(SPEEDUPS)
    resumed = Campaign(settings, store, open_referee=lambda _: referee).resume(result.run_id)
    assert resumed.all_won
    assert referee.judged[0] == ("one", "v2", False)
    assert len(store.evaluations(run_id=result.run_id)) == 12


def cancel_at(where: str, store: Store):
    def point(name: str) -> None:
        if name == where:
            store.set_run_status(store.runs()[0].id, "cancelled")

    return point


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_finishes_what_is_in_flight(settings, store, number):
    def point(name: str) -> None:
        if name == "judging v1 False":
            os.kill(os.getpid(), number)

    told: list[str] = []
    before = signal.getsignal(number)
    with default_signals():
        result = run(
            settings,
            store,
            FakeReferee(SPEEDUPS, point=point),
            signals=True,
            tell=lambda event: told.append(event.kind),
        )
        assert signal.getsignal(number) is before
    assert result.status == "interrupted"
    assert "stopping" in told
    assert [e.candidate.source[:2] for e in store.evaluations(run_id=result.run_id)] == ["v0", "v1"]
    assert result.rows[0].state == "running"


def test_the_second_signal_drops_what_is_in_flight(settings, store):
    def point(name: str) -> None:
        if name == "judging v1 False":
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with default_signals():
        result = run(settings, store, FakeReferee(SPEEDUPS, point=point), signals=True)
    assert result.status == "interrupted"
    assert len(store.evaluations(run_id=result.run_id)) == 1


def test_a_run_that_is_being_driven_cannot_be_resumed_as_well(settings, store):
    seen: list[UsageError] = []

    def point(name: str) -> None:
        if name == "judged v0 False" and not seen:
            with pytest.raises(UsageError) as caught:
                Campaign(settings, store, open_referee=lambda _: FakeReferee(SPEEDUPS)).resume(store.runs()[0].id)
            seen.append(caught.value)

    run(settings, store, FakeReferee(SPEEDUPS, point=point), PROBLEMS[:1])
    assert str(os.getpid()) in seen[0].message


def test_a_lock_left_by_a_dead_process_is_no_obstacle(settings, store):
    result = run(settings.with_values(max_minutes=1e-9), store, FakeReferee(SPEEDUPS))
    lock = settings.store.with_name("store.db.locks") / f"{result.run_id}.lock"
    assert lock.exists()
    with lock.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UsageError):
            Campaign(settings, store, open_referee=lambda _: FakeReferee()).resume(result.run_id)
    referee = FakeReferee(SPEEDUPS)
    assert Campaign(settings, store, open_referee=lambda _: referee).resume(result.run_id, max_minutes=60).all_won


def test_a_verdict_that_was_told_before_a_kill_is_not_told_again(settings, store):
    class Killed(BaseException):
        pass

    told = []

    def killed(event):
        told.append(event)
        if event.kind == "judged" and len([one for one in told if one.kind == "judged"]) == 2:
            raise Killed

    referee = FakeReferee(SPEEDUPS)
    with pytest.raises(Killed):
        run(settings, store, referee, PROBLEMS[:1], tell=killed)
    referee = FakeReferee(SPEEDUPS)
    campaign = Campaign(settings, store, open_referee=lambda _: referee, tell=told.append)
    assert campaign.resume(store.runs()[0].id).all_won
    assert [event.data["round"] for event in told if event.kind == "judged"] == [0, 1, 2]
    assert referee.judged == [("one", "v2", False), ("one", "v1", True)]


def test_a_finished_run_is_not_resumed(settings, store):
    result = run(settings, store, FakeReferee(SPEEDUPS), PROBLEMS[:1])
    with pytest.raises(UsageError, match="finished"):
        Campaign(settings, store, open_referee=lambda _: FakeReferee()).resume(result.run_id)


def test_a_resume_keeps_the_reference_and_the_settings_of_the_run(settings, store):
    result = run(settings.with_values(max_minutes=1e-9), store, FakeReferee(SPEEDUPS), PROBLEMS[:1])
    changed = Problem(**{**PROBLEMS[0].model_dump(), "source": PROBLEMS[0].source + "# changed\n"})
    store.record_problem(changed)
    used: list[tuple[Settings, str]] = []

    class Watching(FakeReferee):
        def open(self, problem, **more):
            used.append((given[0], problem.source))
            return super().open(problem, **more)

    given: list[Settings] = []

    def open_referee(resumed: Settings) -> FakeReferee:
        given.append(resumed)
        return Watching(SPEEDUPS)

    today = settings.with_values(
        rounds=1, measurement=Measurement(noise_bound=0.5), cache_dir=settings.cache_dir / "new"
    )
    resumed = Campaign(today, store, open_referee=open_referee).resume(result.run_id, max_minutes=60)
    assert resumed.rows[0].rounds == 3
    assert used[0][0].measurement == settings.measurement
    assert used[0][0].cache_dir == today.cache_dir
    assert used[0][1] == PROBLEMS[0].source


def test_bad_requests_create_no_run(settings, store, monkeypatch):
    with pytest.raises(UsageError):
        run(settings, store, FakeReferee(), [])
    with pytest.raises(UsageError):
        run(settings, store, FakeReferee(), [PROBLEMS[0], PROBLEMS[0]])
    with pytest.raises(UsageError, match="nobody"):
        run(settings.with_values(coder="nobody"), store, FakeReferee())
    monkeypatch.setattr(OfflineCoder, "backends", frozenset({"cpp", "triton"}))
    with pytest.raises(UsageError, match="no kernels for --backend cuda"):
        run(settings.with_values(backend="cuda"), store, FakeReferee())
    assert store.runs() == []


def test_rows_of_a_run_in_the_middle(settings, store):
    campaign = Campaign(
        settings, store, open_referee=lambda _: FakeReferee(SPEEDUPS, point=cancel_at("open two", store))
    )
    result = campaign.run(PROBLEMS)
    assert [row.state for row in rows_of(store, result.run_id)] == ["done", "running", "pending"]


def test_a_problem_is_linted_once_and_what_was_found_is_kept(settings, store):
    weak = make_problem("one", PROBLEMS[0].source + "\n# of its own\n")
    referee = FakeReferee(SPEEDUPS, weaknesses={"one": ["tiny-output"]})
    result = run(settings, store, referee, [weak])
    run(settings, store, referee, [weak])
    assert referee.linted == ["one"]
    assert [finding.rule for finding in LintRecords(settings.cache_dir).get(weak)] == ["tiny-output"]
    assert problems_of(store, result.run_id) == (weak,)


def test_a_lint_that_cannot_run_does_not_stop_the_run(settings, store):
    told = []
    referee = FakeReferee(SPEEDUPS, weaknesses={"one": WorkerFailed("too slow", kind="timeout")})
    result = run(settings, store, referee, PROBLEMS[:1], tell=told.append)
    assert result.rows[0].candidate is not None
    assert LintRecords(settings.cache_dir).get(PROBLEMS[0]) is None
    assert any("the lint could not run" in event.data["text"] for event in told if event.kind == "note")


def test_every_problem_is_opened_with_its_archive(settings, store):
    ties = InputGenerator(inputs={"x": InputPattern(kind="ties")})
    store.add_generators(PROBLEMS[1], [ties], author="offline", evidence={})
    referee = FakeReferee(SPEEDUPS)
    run(settings, store, referee)
    assert referee.archives == {"one": (), "two": (ties,), "three": ()}
