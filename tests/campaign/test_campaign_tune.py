"""Tuning as a run: what is judged beside what, what is confirmed, what is said, and that a run that stops goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from campaign_fakes import ENVIRONMENT, FakeReferee, make_candidate, make_evaluation, make_problem

from kernelwright.campaign import Campaign, Tuner, rows_of
from kernelwright.campaign.tune_results import TunePlan, TuneResult
from kernelwright.config import Settings
from kernelwright.errors import MachineError, MissingToolError, UsageError
from kernelwright.evolution import in_words
from kernelwright.records import Candidate, Status, sha256_text
from kernelwright.store import Store

PROBLEM = make_problem()
SOURCE = 'v0\nKNOBS = {"A": [1, 2, 4], "B": [1, 2]}\nlib = cpp(TEXT, defines={"A": A, "B": B})\n'
GIVEN = make_candidate(PROBLEM, SOURCE, author="user")
WIDE = 'v0\nKNOBS = {"A": [1, 2, 4, 8, 16], "B": [1, 2, 4, 8], "C": [1, 2, 3]}\nuse(A, B, C)\n'
GOOD = {"v0": 1.0, "v0 A=2 B=1": 1.2, "v0 A=4 B=1": 1.5, "v0 A=4 B=2": 1.1, "v0 A=1 B=2": 0.5, "v0 A=2 B=2": 0.9}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(store=tmp_path / "store.db", cache_dir=tmp_path / "cache")


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    with Store.open(settings.store) as opened:
        yield opened


class Clock:
    """Seconds that pass when something is judged."""

    def __init__(self, each_s: float) -> None:
        self.now, self.each_s = 0.0, each_s

    def __call__(self) -> float:
        return self.now

    def point(self, name: str) -> None:
        self.now += self.each_s * name.startswith("judging")


def tune(settings: Settings, store: Store, referee: FakeReferee, given: Candidate = GIVEN, **plan: Any) -> TuneResult:
    more = {name: plan.pop(name) for name in ("tell", "clock") if name in plan}
    tuner = Tuner(settings, store, open_referee=lambda _: referee, **more)
    return tuner.run(given, PROBLEM, TunePlan(candidate=given.sha256, **plan))


def searched(referee: FakeReferee) -> list[str]:
    return [word for _, word, confirm in referee.judged if not confirm]


def confirmed(referee: FakeReferee) -> list[str]:
    return [word for _, word, confirm in referee.judged if confirm]


def test_the_best_setting_is_found_and_confirmed_beside_the_default(settings, store):
    referee = FakeReferee(GOOD)
    result = tune(settings, store, referee)
    assert result.status == "finished"
    assert result.outcome == "improved"
    assert result.setting == {"A": 4, "B": 1}
    assert result.ratio.median == pytest.approx(1.5)
    assert (result.space, result.exhaustive, result.judged) == (6, True, 6)
    assert searched(referee)[0] == "v0", "the default is first"
    assert len(set(searched(referee))) == 6
    assert confirmed(referee) == ["v0 A=4 B=1"]
    assert referee.beside[-1] == ("v0 A=4 B=1", ("v0",))
    assert result.summary == "A = 4 is 1.50x [1.47, 1.53] of the default (A = 1, B = 1)"


def test_each_setting_is_raced_with_the_best_so_far(settings, store):
    referee = FakeReferee(GOOD)
    result = tune(settings, store, referee)
    best = "v0"
    for word, beside in referee.beside[:-1]:
        assert beside == (best,)
        best = word if GOOD[word] / GOOD[best] > 1.04 else best
    assert best == "v0 A=4 B=1"
    speeds = {in_words(t.changes): t.speedup for t in result.tried}
    assert speeds[""] == 1.0
    assert speeds["A = 4"] == pytest.approx(1.5)
    assert speeds["B = 2"] == pytest.approx(0.5)


def test_settings_are_built_side_by_side_before_any_of_them_is_timed(settings, store):
    points: list[str] = []
    referee = FakeReferee(GOOD, point=points.append)
    tune(settings, store, referee)
    assert [len(batch) for batch in referee.built] == [1, 4, 1]
    second = [place for place, point in enumerate(points) if point == "built"][1]
    assert points[second + 1].startswith("judging")
    assert sum(point.startswith("judging") for point in points[:second]) == 1


def test_a_default_that_nothing_beats_is_proved_beside_the_nearest(settings, store):
    words = dict.fromkeys(GOOD, 0.8) | {"v0": 1.0, "v0 A=2 B=2": 0.98}
    referee = FakeReferee(words)
    result = tune(settings, store, referee)
    assert result.outcome == "default"
    assert result.best == GIVEN.sha256
    assert referee.beside[-1] == ("v0", ("v0 A=2 B=2",))
    assert confirmed(referee) == ["v0"]
    assert result.nearest_changes == {"A": 2, "B": 2}
    assert result.ratio.high < 1.01
    assert "was best of all 6 settings: the nearest, A = 2, B = 2, is 0.980x" in result.summary
    (row,) = rows_of(store, result.run_id)
    assert (row.candidate, row.confirmed) == (GIVEN.sha256, True)


def test_a_winner_of_races_that_is_no_faster_after_all_is_no_improvement(settings, store):
    result = tune(settings, store, FakeReferee(GOOD, confirmed_speedups={"v0 A=4 B=1": 1.0, "v0": 1.0}))
    assert result.outcome == "default"
    assert result.best == GIVEN.sha256
    result = tune(settings, store, FakeReferee(GOOD, confirmed_speedups={"v0 A=4 B=1": 1.03, "v0": 1.0}))
    assert result.outcome == "undecided"
    assert "of all 6 settings none was proved faster" in result.summary


def test_a_setting_that_the_confirmation_finds_faster_than_the_default_gets_one_of_its_own(settings, store):
    words = dict.fromkeys(GOOD, 0.8) | {"v0": 1.0, "v0 A=2 B=2": 0.98}
    referee = FakeReferee(words, confirmed_speedups={"v0 A=2 B=2": 1.2})
    result = tune(settings, store, referee)
    assert confirmed(referee) == ["v0", "v0 A=2 B=2"]
    assert (result.outcome, result.setting) == ("improved", {"A": 2, "B": 2})
    assert store.evaluation(result.evaluation).verdict.timing.confirmed


def test_a_winner_that_the_confirmation_refuses_gives_way_to_the_next(settings, store):
    notes: list[str] = []
    referee = FakeReferee(GOOD, statuses={"v0 A=4 B=1 confirmed": Status.QUARANTINED})
    result = tune(settings, store, referee, tell=lambda event: notes.append(str(event.data.get("text"))))
    assert confirmed(referee) == ["v0 A=4 B=1", "v0", "v0 A=2 B=1"]
    assert result.setting == {"A": 2, "B": 1}
    assert any("refused A = 4" in note for note in notes)


def test_settings_that_fail_are_passed_by(settings, store):
    statuses = {"v0 A=4 B=1": Status.COMPILE_ERROR, "v0 A=4 B=2": Status.INCORRECT_NUMERICAL}
    result = tune(settings, store, FakeReferee(GOOD, statuses=statuses))
    assert result.setting == {"A": 2, "B": 1}
    failed = {in_words(t.changes): t.status for t in result.tried if t.speedup is None}
    assert failed == {"A = 4": Status.COMPILE_ERROR, "A = 4, B = 2": Status.INCORRECT_NUMERICAL}


def test_where_all_others_fail_the_default_is_confirmed_alone(settings, store):
    statuses = {word: Status.COMPILE_ERROR for word in GOOD if word != "v0"}
    result = tune(settings, store, FakeReferee(GOOD, statuses=statuses))
    assert (result.outcome, result.ratio, result.best) == ("default", None, GIVEN.sha256)
    assert "no other setting passed" in result.summary


def test_where_time_sufficed_for_the_default_alone_nothing_is_claimed(settings, store):
    clock = Clock(each_s=20.0)
    result = tune(settings, store, FakeReferee(GOOD, point=clock.point), max_seconds=45, clock=clock)
    assert (result.judged, result.outcome, result.status, result.reason) == (1, "unfinished", "paused", "budget")


def test_a_default_that_does_not_pass_ends_it(settings, store):
    result = tune(settings, store, FakeReferee(GOOD, statuses={"v0": Status.INCORRECT_NUMERICAL}))
    assert (result.outcome, result.best, result.judged) == ("failed", None, 1)
    assert "INCORRECT_NUMERICAL: it is wrong" in result.reason
    assert rows_of(store, result.run_id)[0].state == "failed"


def test_the_same_machine_code_is_not_judged_again(settings, store):
    codes = {"v0": "c", "v0 A=1 B=2": "c", "v0 A=4 B=1": "d", "v0 A=4 B=2": "d"}
    referee = FakeReferee(GOOD, machine_codes=codes)
    result = tune(settings, store, referee)
    assert sorted(searched(referee)) == ["v0", "v0 A=2 B=1", "v0 A=2 B=2", "v0 A=4 B=1"]
    twins = {in_words(t.changes): t.twin for t in result.tried if t.twin}
    assert twins["B = 2"] == GIVEN.sha256
    assert set(twins) == {"B = 2", "A = 4, B = 2"}
    assert result.judged == 4


def test_budgets_of_settings_hold(settings, store):
    given = make_candidate(PROBLEM, WIDE)
    referee = FakeReferee()
    result = tune(settings, store, referee, given, max_evaluations=9)
    assert (result.judged, result.exhaustive, result.space) == (9, False, 60)
    assert len(set(searched(referee))) == 9


def test_it_ends_within_its_time_confirmation_included(settings, store):
    given = make_candidate(PROBLEM, WIDE)
    clock = Clock(each_s=4.0)
    referee = FakeReferee(point=clock.point)
    result = tune(settings, store, referee, given, max_seconds=40, clock=clock)
    assert result.status == "finished"
    assert 3 <= result.judged < 9
    assert len(confirmed(referee)) == 1
    assert clock.now <= 40


def test_without_time_for_a_confirmation_it_pauses_and_can_be_resumed(settings, store):
    clock = Clock(each_s=4.0)
    referee = FakeReferee(GOOD, point=clock.point)
    result = tune(settings, store, referee, max_seconds=5, clock=clock)
    assert (result.status, result.reason, result.outcome, result.judged) == ("paused", "budget", "unfinished", 1)
    assert store.run(result.run_id).status == "paused"
    tuner = Tuner(settings, store, open_referee=lambda _: referee)
    done = tuner.resume(result.run_id, max_minutes=2)
    assert (done.status, done.outcome) == ("finished", "improved")
    assert len(searched(referee)) == len(set(searched(referee))) == 6
    with pytest.raises(UsageError, match="is finished"):
        tuner.resume(result.run_id)


def test_a_fault_of_the_machine_is_tried_again_once(settings, store):
    referee = FakeReferee(GOOD, faults={"plus_one": [MachineError("too busy")]})
    assert tune(settings, store, referee).outcome == "improved"
    referee = FakeReferee(GOOD, faults={"plus_one": [MachineError("too busy"), MachineError("too busy")]})
    with pytest.raises(MachineError):
        tune(settings, store, referee)
    assert store.runs()[0].status == "failed"


def test_kernels_that_are_not_timed_here_cannot_be_tuned(settings, store):
    given = make_candidate(PROBLEM, SOURCE).model_copy(update={"backend": "triton"})
    referee = FakeReferee({"v0": None})  # type: ignore[dict-item]
    with pytest.raises(MissingToolError, match="are not timed here"):
        tune(settings, store, referee, given)


def test_what_cannot_be_tuned_makes_no_run(settings, store):
    with pytest.raises(UsageError, match="declares no knobs"):
        tune(settings, store, FakeReferee(), make_candidate(PROBLEM, "v0\n"))
    words = 'v0\nKNOBS = {"A": [1, 2], "W": ["x", "y"]}\n'
    with pytest.raises(UsageError, match="--sampler tpe"):
        tune(settings, store, FakeReferee(), make_candidate(PROBLEM, words), sampler="cma-es")
    assert store.runs() == []


def test_a_campaign_leaves_runs_that_tune_alone(settings, store):
    result = tune(settings, store, FakeReferee(GOOD))
    with pytest.raises(UsageError, match="tunes one kernel"):
        Campaign(settings, store).resume(result.run_id)


# ----------------------------------------------------------------------------------------------- killed and resumed


class Killed(BaseException):
    """Ends a life of a run where ``kill -9`` would."""


class Table(dict[str, float]):
    """Speedups by the kernel's name: any name has one."""

    def get(self, word: str, default: Any = 1.0) -> Any:
        return 0.8 + int(sha256_text(word)[:6], 16) / 0xFFFFFF


def lives(settings: Settings, folder: Path, die_at: int) -> tuple[list[Any], TuneResult]:
    """A run that dies at its ``die_at``-th point, and is resumed; what is in the store, and the result."""
    given = make_candidate(PROBLEM, WIDE)
    seen = 0

    def point(name: str) -> None:
        nonlocal seen
        seen += 1
        if seen == die_at:
            raise Killed

    settings = settings.with_values(store=folder / f"{die_at}.db")
    with Store.open(settings.store) as store:
        referee = FakeReferee(Table(), point=point)
        try:
            result = tune(settings, store, referee, given, max_evaluations=11, max_seconds=900)
        except Killed:
            run = store.runs()[0]
            result = Tuner(settings, store, open_referee=lambda _: referee).resume(run.id)
        rows = store.evaluations(run_id=result.run_id)
        return [(r.candidate.sha256, r.action, r.verdict.stage) for r in rows], result


def test_a_run_that_is_killed_anywhere_ends_as_an_undisturbed_one(settings, tmp_path):
    rows, whole = lives(settings, tmp_path, die_at=0)
    assert len(rows) == 12
    assert len({sha256 for sha256, _, _ in rows[:-1]}) == 11
    for die_at in range(2, 30):
        again, result = lives(settings, tmp_path, die_at)
        assert again == rows, die_at
        assert result.tried == whole.tried
        assert (result.best, result.outcome) == (whole.best, whole.outcome)


# ----------------------------------------------------------------------------------------------- the cost model


def teach(store: Store, settings: Settings) -> None:
    """Kernels of other problems, timed here: the larger A, the faster."""
    for number in range(6):
        problem = make_problem(f"other{number}")
        store.record_problem(problem)
        for a in (1, 2, 4, 8):
            for b in (1, 2):
                candidate = make_candidate(problem, SOURCE, knobs={"A": a, "B": b})
                store.record_evaluation(make_evaluation(candidate, speedup=(number + 1) * a**0.5))


def test_what_the_store_has_learned_orders_the_settings(settings, store):
    teach(store, settings)
    referee = FakeReferee(GOOD)
    result = tune(settings, store, referee)
    assert result.cost_model.used
    assert result.cost_model.rank_correlation.low > 0.5
    assert (result.cost_model.kernels, result.cost_model.problems) == (48, 6)
    assert {word.split()[1] for word in searched(referee)[1:3]} == {"A=4"}
    assert ENVIRONMENT.id == store.evaluations()[0].verdict.environment


def test_a_cost_model_that_knows_nothing_or_is_not_wanted_is_not_used(settings, store):
    result = tune(settings, store, FakeReferee(GOOD))
    assert not result.cost_model.used
    assert result.cost_model.reason == "only 0 kernels of 0 problems were timed here"
    teach(store, settings)
    result = tune(settings, store, FakeReferee(GOOD), cost_model=False)
    assert (result.cost_model.used, result.cost_model.reason) == (False, "as was asked")
