"""What others can watch of a run: the record that its process keeps, and how the run stands."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from campaign_fakes import FakeReferee, make_candidate, make_evaluation, make_problem, register_scripted_roles

from kernelwright.campaign import Campaign, CampaignEvent, RunResult, SamplePlan, Sampler, live
from kernelwright.campaign.live import LiveKeeper, Watcher, driven_runs, live_records
from kernelwright.config import Settings
from kernelwright.pool import Dispatcher, OwnSeat, closing_pool
from kernelwright.records import RunConfig
from kernelwright.store import Store

PROBLEMS = [make_problem(name) for name in ("one", "two", "three")]


class Clock:
    """Seconds since 1970, which a test sets."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def always(monkeypatch):
    """Write the record at every step."""
    monkeypatch.setattr(live, "EVERY_S", 0.0)


def settings_in(folder, **more):
    register_scripted_roles()
    given = {"coder": "scripted", "judge": "scripted", "rounds": 2, **more}
    return Settings(store=folder / "store.db", cache_dir=folder / "cache", **given)


def referee():
    return FakeReferee({"v0": 1.1, "v1": 2.0})


def new_run(store, status="running", problems=PROBLEMS):
    run = store.create_run(RunConfig(problems=tuple(p.id for p in problems), baselines=("eager",)), problems)
    store.set_run_status(run, status)
    return run


def finish(store, run, problem, **more):
    row = RunResult(problem=problem.id, state="done", **more)
    store.set_problem_state(run, problem.id, "done", row.model_dump_json())


class Seats:
    kind = "test"

    def __init__(self, *seats):
        self._seats = {seat.name: seat for seat in seats}

    def names(self):
        return tuple(self._seats)

    def seat(self, name):
        return self._seats[name]

    def close(self):
        pass


@contextmanager
def two_seats(settings, languages, **more):
    judges = {str(number): referee() for number in range(2)}
    seats = [OwnSeat(settings, lambda _, own=own: own, name=name) for name, own in judges.items()]
    with closing_pool(Dispatcher(Seats(*seats), look_s=0.01, **more)) as pool:
        yield pool


@pytest.mark.parametrize("where", ["here", "side by side", "in a pool"])
def test_a_run_can_be_watched_while_it_is_driven(where, tmp_path, always):
    settings = settings_in(tmp_path, parallel_problems=1 if where == "here" else 3)
    seen = []
    with Store.open(settings.store) as store:

        def tell(event):
            if event.kind in ("judged", "problem-finished"):
                seen.append((event, Watcher(store, store.runs(limit=1)[0].id).look()))

        pools = {"open_pool": two_seats} if where == "in a pool" else {}
        campaign = Campaign(settings, store, open_referee=lambda _: referee(), tell=tell, **pools)
        result = campaign.run(PROBLEMS)
        after = Watcher(store, result.run_id).look()
    assert all(standing.driven and standing.processes == (os.getpid(),) for _, standing in seen)
    for event, standing in seen:
        assert standing.done + standing.running + standing.left == standing.problems == 3
        named = [one.problem for one in standing.working_on]
        if event.kind == "judged" and where == "here":
            assert named == [event.problem]
            assert standing.verdicts > 0
            assert standing.running == 1
        assert (standing.pool is not None) is (where == "in a pool")
    latest = seen[-1][1]
    assert latest.eta_s is not None
    if where == "in a pool":
        assert (latest.pool.kind, latest.pool.seats, latest.pool.lost) == ("test", 2, 0)
        assert 0 < latest.busy_share <= 1
    assert (after.status, after.driven, after.processes, after.pool) == ("finished", False, (), None)
    assert (after.done, after.running, after.left, after.winners) == (3, 0, 0, 3)
    assert (after.eta_s, after.working_on) == (None, ())
    assert after.device_seconds_per_winner == pytest.approx(after.device_seconds / 3)


def test_a_bench_can_be_watched_too(tmp_path, always):
    settings = settings_in(tmp_path)
    seen = []
    with Store.open(settings.store) as store:

        def tell(event):
            seen.append(driven_runs(store.path))

        sampler = Sampler(settings, store, open_referee=lambda _: referee(), tell=tell)
        run = sampler.create(SamplePlan(name="some", samples=1), PROBLEMS)
        sampler.work(run)
        assert seen
        assert set(seen) == {(run,)}
        assert driven_runs(store.path) == ()


def test_the_record_is_written_every_two_seconds_at_most(store):
    run, clock = new_run(store), Clock()
    with LiveKeeper(store, run, clock=clock) as keeper:
        keeper.heed(CampaignEvent("problem-started", PROBLEMS[0].id, {}))
        [first] = live_records(store.path, run)
        assert first.running == ()
        clock.now += 1.9
        keeper.tick()
        assert live_records(store.path, run) == (first,)
        clock.now += 0.2
        keeper.tick()
        [later] = live_records(store.path, run)
    assert [one.problem for one in later.running] == [PROBLEMS[0].id]
    assert later.started_at == first.started_at < later.written_at
    assert live_records(store.path, run) == ()


def test_what_is_awaited_is_counted(store, always):
    run = new_run(store)
    places = ["box/one", "box/two", "spool/answers/a.answer.json"]
    with LiveKeeper(store, run) as keeper:
        keeper.awaits(lambda: places)
        keeper.tick()
        standing = Watcher(store, run).look()
    assert (standing.replies_awaited, standing.verdicts_awaited) == (2, 1)


def test_processes_that_share_a_run_are_put_together(store, always):
    run = new_run(store)
    with LiveKeeper(store, run) as one:
        with LiveKeeper(store, run) as other:
            one.heed(CampaignEvent("problem-started", PROBLEMS[0].id, {}))
            other.heed(CampaignEvent("problem-started", PROBLEMS[1].id, {}))
            both = Watcher(store, run).look()
        alone = Watcher(store, run).look()
    assert both.processes == (os.getpid(),) * 2
    assert (both.running, both.left) == (2, 1)
    assert [one.problem for one in both.working_on] == [problem.id for problem in PROBLEMS[:2]]
    assert (len(alone.processes), alone.running) == (1, 1)


def test_the_record_of_a_killed_process_is_ignored_and_written_over(store):
    run = new_run(store)
    with LiveKeeper(store, run):
        [place] = store.path.with_name("store.db.locks").glob("*.json")
        left = place.read_bytes()
    place.write_bytes(left)  # as a killed process leaves it
    standing = Watcher(store, run).look()
    assert (standing.status, standing.driven, standing.eta_s) == ("running", False, None)
    assert driven_runs(store.path) == ()
    with LiveKeeper(store, run, clock=Clock()):
        [record] = live_records(store.path, run)
        assert record.started_at.startswith("2023-11-14")
    assert not place.exists()


def test_a_record_that_cannot_be_read_is_left_out(store):
    run = new_run(store)
    with LiveKeeper(store, run):
        [place] = store.path.with_name("store.db.locks").glob("*.json")
        for text in (b"", b"\xff{", b'{"run": 1}', b"[]"):
            place.write_bytes(text)
            assert live_records(store.path, run) == ()
            assert not Watcher(store, run).look().driven


@pytest.mark.parametrize("fails", ["writes", "folder"])
def test_a_full_disk_does_not_end_a_run(fails, tmp_path, always, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    settings = settings_in(tmp_path)
    if fails == "writes":
        monkeypatch.setattr(live, "write_whole", full)
    else:
        monkeypatch.setattr(LiveKeeper, "_take_place", full)
    with Store.open(settings.store) as store:
        seen = []
        campaign = Campaign(
            settings, store, open_referee=lambda _: referee(), tell=lambda event: seen.append(driven_runs(store.path))
        )
        result = campaign.run(PROBLEMS)
        assert set(seen) == {()}
        assert (result.status, Watcher(store, result.run_id).look().driven) == ("finished", False)


def test_reading_writes_nothing_beside_the_store(store):
    run = new_run(store)
    Watcher(store, run).look()
    assert driven_runs(store.path) == ()
    assert not store.path.with_name("store.db.locks").exists()


def test_rates_are_of_late_and_the_time_to_go_comes_from_finished_problems(store, always):
    begun = datetime.now(UTC).timestamp()
    clock = Clock(begun)
    run = new_run(store)
    for source in ("v0\n", "v1\n"):
        evaluation = make_evaluation(make_candidate(PROBLEMS[0], source))
        store.record_evaluation(evaluation, run_id=run)
    with LiveKeeper(store, run, clock=clock) as keeper:
        watcher = Watcher(store, run, clock)
        for problem in PROBLEMS[:2]:
            keeper.heed(CampaignEvent("problem-started", problem.id, {}))
        clock.now = begun + 300
        early = watcher.look()
        finish(store, run, PROBLEMS[0], candidate="0" * 64)
        keeper.heed(CampaignEvent("problem-finished", PROBLEMS[0].id, {}))
        later = watcher.look()
        clock.now = begun + 1200
        much_later = watcher.look()
    assert early.eta_s is None
    assert early.device_seconds_per_winner is None
    assert early.verdicts_per_minute == pytest.approx(2 / 5, rel=0.02)
    assert later.eta_s == pytest.approx(2 * 300, rel=0.01)
    assert (later.done, later.running, later.left, later.winners) == (1, 1, 1, 1)
    assert later.seconds == pytest.approx(300, rel=0.01)
    assert (much_later.verdicts, much_later.verdicts_per_minute) == (2, 0.0)


def test_a_run_without_rows_of_results_can_be_looked_at(store):
    run = new_run(store, "finished")
    store.set_problem_state(run, PROBLEMS[0].id, "done")
    store.set_problem_state(run, PROBLEMS[1].id, "failed")
    standing = Watcher(store, run).look()
    assert (standing.done, standing.winners, standing.left) == (2, 0, 1)
    empty = Watcher(store, new_run(store, "finished", ())).look()
    assert (empty.problems, empty.done, empty.left, empty.winners) == (0, 0, 0, 0)


def test_any_thread_may_tell_of_progress(store, always):
    run = new_run(store)
    with LiveKeeper(store, run) as keeper:

        def work(number):
            for step in range(20):
                keeper.heed(CampaignEvent("problem-started", f"{number}/{step}", {}))
                keeper.heed(CampaignEvent("problem-finished", f"{number}/{step}", {}))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        keeper.tick()
        [record] = live_records(store.path, run)
    assert (record.finished, record.running) == (80, ())
