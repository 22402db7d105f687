"""Benches: independent samples, kept as they come, judged once in each environment, by as many processes as like."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest
from campaign_fakes import FakeReferee, default_signals, make_candidate, make_problem

from kernelwright.agents import CoderError, RoleFailed
from kernelwright.agents.llm import AwaitingReply, ModelFault
from kernelwright.agents.registry import coders
from kernelwright.agents.roles import Proposal
from kernelwright.campaign import Campaign, SamplePlan, Sampler, find_bench, plan_of, rows_of
from kernelwright.campaign._locks import RunLock
from kernelwright.campaign._sample_job import lock_of
from kernelwright.campaign.benches import benches
from kernelwright.config import Settings
from kernelwright.errors import InvalidReferenceError, MachineError, SandboxError, UsageError
from kernelwright.records import Candidate, Status, sha256_text
from kernelwright.store import Sample, Store

PROBLEMS = [make_problem("one"), make_problem("two")]
ASKED = []
SIZES = []  # of the checks, as the Coder is told


class Drawing:
    """Writes ``v<sample>``; some samples fail as the table says."""

    name = "drawing"
    backends = frozenset({"cpp"})
    failures: dict[tuple[str, int], Exception] = {}  # noqa: RUF012 - set by tests, and reset by the fixture

    def propose(self, context):
        number = context.assignment.sample
        ASKED.append((context.problem.name, number, context.assignment.seed))
        SIZES.append(context.bench.small(context.backend))
        assert (context.attempts, context.round, context.rounds) == ((), 0, 1)
        failure = self.failures.get((context.problem.name, number))
        if isinstance(failure, Exception):
            raise failure
        if failure is not None:
            return Proposal(None, failure)
        source = f"v{number}\n# {sha256_text(context.problem.id)}\n"
        return Proposal(Candidate(problem_id=context.problem.id, source=source, backend="cpp"), "drawn")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    ASKED.clear()
    SIZES.clear()
    Drawing.failures = {}
    if "drawing" not in coders.words():
        coders.register("drawing", lambda rest: Drawing())
    return Settings(store=tmp_path / "store.db", cache_dir=tmp_path / "cache", coder="drawing")


@pytest.fixture
def store(settings):
    with Store.open(settings.store) as opened:
        yield opened


class Bench:
    def __init__(self, settings, store, referee=None, *, samples=3, problems=PROBLEMS, **more):
        self.referee = referee or FakeReferee({"v0": 1.1, "v1": 2.0, "v2": 1.5})
        self.store = store
        self.sampler = Sampler(settings, store, open_referee=lambda _: self.referee, **more)
        self.id = self.sampler.create(SamplePlan(name="mine", samples=samples), problems)

    def work(self, **how):
        return self.sampler.work(self.id, **how)

    @property
    def states(self):
        return {row.problem.rpartition("/")[2]: row.state for row in rows_of(self.store, self.id)}


def test_samples_are_written_without_being_judged_and_judged_later(settings, store):
    bench = Bench(settings, store)
    result = bench.work(judge=False)
    assert (result.status, result.reason) == ("paused", "")
    assert bench.referee.judged == []
    assert [(s.problem[-3:], s.number) for s in store.run_samples(bench.id)] == [
        (name, number) for name in ("one", "two") for number in range(3)
    ]
    assert bench.states == {"one": "pending", "two": "pending"}

    result = bench.work(write=False)
    assert result.status == "finished"
    assert len(ASKED) == 6
    assert [word for _, word, _ in bench.referee.judged] == ["v0", "v1", "v2"] * 2
    assert [row.speedup["eager"].median for row in result.rows] == [2.0, 2.0]
    assert not any(confirmed for _, _, confirmed in bench.referee.judged)


def test_samples_are_told_in_which_sizes_they_are_checked(settings, store):
    Bench(settings, store, FakeReferee({"v0": 1.1}, small={"cpp": PROBLEMS[1]}), problems=PROBLEMS[:1]).work()
    assert [PROBLEMS[1]] * 3 == SIZES


def test_samples_know_of_no_other_and_draw_from_seeds_of_their_own(settings, store):
    Bench(settings, store).work()
    assert len({seed for _, _, seed in ASKED} - {0}) == 6
    again = [*ASKED]
    ASKED.clear()
    with Store.open(settings.store.with_name("other.db")) as other:
        Bench(settings, other).work(judge=False)
    assert again == ASKED


def test_nothing_is_written_or_judged_twice_and_more_samples_can_be_asked_for(settings, store):
    bench = Bench(settings, store, samples=2)
    bench.work()
    bench.work()
    assert len(ASKED) == len(bench.referee.judged) == 4
    more = SamplePlan(name="mine", samples=3).model_dump(mode="json")
    store.set_run_config(bench.id, store.run(bench.id).config.model_copy(update={"bench": more}))
    bench.work()
    assert [number for _, number, _ in ASKED] == [0, 1, 0, 1, 2, 2]
    assert len(bench.referee.judged) == 6


def test_samples_that_never_came_are_kept_with_their_reason(settings, store):
    Drawing.failures = {
        ("one", 0): RoleFailed("no code in the reply"),
        ("one", 1): "nothing more to offer",
        ("two", 2): CoderError("it cannot be captured"),
    }
    bench = Bench(settings, store)
    result = bench.work()
    reasons = {(s.problem[-3:], s.number): s.reason for s in store.run_samples(bench.id) if s.candidate is None}
    assert reasons == {
        ("one", 0): "no code in the reply",
        ("one", 1): "nothing more to offer",
        ("two", 2): "it cannot be captured",
    }
    assert result.status == "finished"
    assert len(bench.referee.judged) == 3
    bench.work()
    assert len(ASKED) == 6


def test_a_problem_on_which_nothing_passes_is_over(settings, store):
    bench = Bench(
        settings, store, FakeReferee(statuses=dict.fromkeys(("v0", "v1"), Status.INCORRECT_NUMERICAL)), samples=2
    )
    result = bench.work()
    assert result.status == "finished"
    assert [(row.state, row.status, row.reason) for row in result.rows] == [
        ("failed", Status.INCORRECT_NUMERICAL, "it is wrong")
    ] * 2


def test_a_reference_that_cannot_be_used_ends_its_problem_alone(settings, store):
    bench = Bench(settings, store, FakeReferee({}, faults={"one": [InvalidReferenceError("line 3")]}))
    result = bench.work()
    assert [(row.state, row.status) for row in result.rows] == [
        ("failed", Status.INVALID_REFERENCE),
        ("done", Status.PASSED),
    ]
    assert result.status == "finished"


@pytest.mark.parametrize("stage", ["writing", "judging"])
def test_an_error_that_nobody_foresaw_is_the_row_of_its_problem(settings, store, stage):
    fault = RecursionError("too deep")
    referee = FakeReferee({}, faults={"one": [fault]} if stage == "judging" else {})
    bench = Bench(settings, store, referee)
    Drawing.failures = {("one", 0): fault} if stage == "writing" else {}
    result = bench.work()
    assert [row.state for row in result.rows] == ["failed", "done"]
    assert result.unjudged == result.rows[:1]
    assert "RecursionError: too deep" in result.rows[0].reason
    assert result.status == "finished"
    (event,) = store.events(bench.id, kind="problem-error")
    assert "Traceback" in event.data["traceback"]


@pytest.mark.parametrize("error", [SandboxError("a hole"), OSError(errno.ENOSPC, "disk full")], ids=["sandbox", "disk"])
def test_what_no_other_problem_would_fare_better_with_ends_the_bench(settings, store, error):
    bench = Bench(settings, store, FakeReferee({}, faults={"one": [error]}))
    with pytest.raises(type(error)):
        bench.work()
    assert bench.states["two"] == "pending"


def test_a_fault_of_the_machine_is_tried_again_and_then_left_for_another_time(settings, store):
    fault = MachineError("out of memory")
    bench = Bench(settings, store, FakeReferee({}, faults={"one": [fault], "two": [fault, fault]}))
    result = bench.work()
    assert bench.states == {"one": "done", "two": "failed"}
    assert (result.status, result.rows[1].retry) == ("finished", True)
    assert [row.problem for row in result.unjudged] == [PROBLEMS[1].id]
    assert bench.work().status == "finished"
    assert len(ASKED) == 6


def test_what_another_process_works_on_is_left_to_it(settings, store):
    bench = Bench(settings, store)
    told = []
    bench.sampler = Sampler(settings, store, open_referee=lambda _: bench.referee, tell=told.append)
    with RunLock(settings.store, lock_of(bench.id, PROBLEMS[0].id)):
        result = bench.work()
    assert bench.states == {"one": "pending", "two": "done"}
    assert result.status == store.run(bench.id).status == "running", "a status of paused would stop the other one"
    assert any("another process works on" in event.data.get("text", "") for event in told if event.kind == "note")
    assert bench.work().status == "finished"
    assert len(bench.referee.judged) == 6


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_after_the_sample_in_flight_and_nothing_is_lost(settings, store, number):
    def point(name):
        if name == "judging v1 False" and not sent:
            sent.append(os.kill(os.getpid(), number))

    sent: list[None] = []
    bench = Bench(settings, store, FakeReferee({}, point=point), signals=True)
    with default_signals():
        result = bench.work()
    assert (result.status, result.reason) == ("interrupted", "interrupted")
    assert [word for _, word, _ in bench.referee.judged] == ["v0", "v1"]
    assert bench.work().status == "finished"
    assert len(bench.referee.judged) == 6


def test_a_spent_budget_pauses_and_a_new_one_goes_on(settings, store):
    bench = Bench(settings, store)
    result = bench.work(max_device_seconds=0.15)
    assert (result.status, result.reason, result.budgets) == ("paused", "budget", ("max_device_seconds",))
    assert len(bench.referee.judged) == 2
    assert bench.work(max_device_seconds=1000.0).status == "finished"


def test_a_bench_asks_for_some_own_kernels_on_problems_of_ones_own_too(settings, store):
    own = [PROBLEMS[0].model_copy(update={"suite": "file"})]
    config = store.run(Bench(settings, store, problems=own).id).config
    assert config.settings["own_kernels"] == "some"


def test_controls_are_judged_as_such_and_once(settings, store):
    given = [Sample(problem=p.id, number=0, candidate=make_candidate(p)) for p in PROBLEMS]
    referee = FakeReferee({})
    sampler = Sampler(settings, store, open_referee=lambda _: referee)
    run_id = sampler.create(SamplePlan(name="refs", origin="references"), PROBLEMS, given)
    for _ in range(2):
        assert sampler.work(run_id).status == "finished"
    assert [found.verdict.control for found in store.evaluations(run_id=run_id)] == [True, True]
    assert len(referee.judged) == 2
    assert ASKED == []


def test_one_process_alone_writes_and_keeps_the_budget(settings, store):
    bench = Bench(settings, store)
    with RunLock(settings.store, bench.id):
        with pytest.raises(UsageError, match="is being driven by process"):
            bench.work()
        assert bench.work(write=False).reason == ""
    assert bench.work().status == "finished"


def test_whoever_ends_first_does_not_stop_the_others(settings, store):
    def point(name):
        if name == "judging v0 False" and not told:
            told.append(Sampler(settings, store, open_referee=lambda _: other).work(bench.id, write=False).status)

    told: list[str] = []
    other = FakeReferee({})
    bench = Bench(settings, store, FakeReferee({}, point=point))
    bench.work(judge=False)
    assert bench.work(write=False).status == "finished"
    assert told == ["running"]
    judged = [(name, word) for name, word, _ in (*bench.referee.judged, *other.judged)]
    assert sorted(judged) == [(name, f"v{n}") for name in ("one", "two") for n in range(3)]


def test_what_somebody_died_over_is_taken_up_when_it_is_let_go(settings, store):
    bench = Bench(settings, store)
    bench.work(judge=False)
    lock = RunLock(settings.store, lock_of(bench.id, PROBLEMS[0].id))

    def point(name):
        if name == "judged v2 False" and held:
            lock.__exit__(None, None, None)
            held.clear()

    held = [lock.__enter__()]
    bench.sampler = Sampler(settings, store, open_referee=lambda _: FakeReferee({}, point=point))
    assert bench.work(write=False).status == "finished"
    assert bench.states == {"one": "done", "two": "done"}


def test_a_model_that_cannot_be_reached_is_asked_again_another_day(settings, store):
    fault = RoleFailed("no reply from openai:x: overloaded: later")
    fault.__cause__ = ModelFault("later", kind="overloaded")
    Drawing.failures = {("one", 1): fault}
    bench = Bench(settings, store)
    assert bench.work().status == "paused"
    assert [s.number for s in store.run_samples(bench.id, PROBLEMS[0].id)] == [0, 2]
    Drawing.failures = {}
    assert bench.work().status == "finished"
    assert len(ASKED) == 7


def test_all_replies_of_a_problem_are_awaited_at_once_and_what_came_is_judged(settings, store, tmp_path):
    places = {number: tmp_path / f"sample{number}" for number in (1, 2)}
    Drawing.failures = {
        ("one", number): AwaitingReply("nobody answered yet", path=str(place)) for number, place in places.items()
    }
    told = []
    bench = Bench(settings.with_values("test", mailbox_minutes=0.0001), store)
    bench.sampler = Sampler(
        settings.with_values("test", mailbox_minutes=0.0001),
        store,
        open_referee=lambda _: bench.referee,
        tell=told.append,
    )
    bench.id = bench.sampler.create(SamplePlan(name="slow", samples=3), PROBLEMS)
    result = bench.work()
    assert (result.status, result.reason) == ("paused", "replies")
    (awaiting,) = (event.data["places"] for event in told if event.kind == "awaiting")
    assert awaiting == [str(place) for place in places.values()]
    assert [(name, word) for name, word, _ in bench.referee.judged][:1] == [("one", "v0")]
    Drawing.failures = {}
    assert bench.work().status == "finished"


def test_a_cancelled_bench_stays_so(settings, store):
    bench = Bench(settings, store)
    store.set_run_status(bench.id, "cancelled")
    with pytest.raises(UsageError, match="was cancelled"):
        bench.work()


def test_benches_are_found_by_their_names_and_other_runs_are_none(settings, store):
    bench = Bench(settings, store)
    assert [plan_of(found).name for found in benches(store)] == ["mine"]
    assert find_bench(store, "mine").id == find_bench(store, bench.id).id == bench.id
    assert find_bench(store, "other") is None
    with pytest.raises(UsageError, match="has a bench 'mine' already"):
        bench.sampler.create(SamplePlan(name="mine"), PROBLEMS)
    with pytest.raises(UsageError, match="is a bench"):
        Campaign(settings, store, open_referee=lambda _: bench.referee).resume(bench.id)
    with pytest.raises(UsageError, match="each one once"):
        bench.sampler.create(SamplePlan(name="twice"), [PROBLEMS[0], PROBLEMS[0]])


def test_a_bench_that_cannot_be_kept_is_not_begun(settings, store):
    with pytest.raises(UsageError, match="unknown coder"):
        Sampler(settings.with_values("test", coder="nobody"), store).create(SamplePlan(name="x"), PROBLEMS)
    assert store.runs() == []
