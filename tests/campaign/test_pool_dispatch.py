"""The dispatcher: which seat does what, and what happens when seats die, turn bad, or are other machines."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from campaign_fakes import ENVIRONMENT, FakeReferee, FakeSession, Seats, make_job

from kernelwright.config import Settings
from kernelwright.errors import InvalidReferenceError, MachineError, SandboxError
from kernelwright.pool import Card, Depth, Dispatcher, Fault, OwnSeat, SeatLost, version
from kernelwright.records import Status

OTHER = ENVIRONMENT.model_copy(update={"cpu": "other"})


class ScriptedSeat:
    """A seat that does for each job what its script says next, and then what a good seat does."""

    def __init__(self, name, script=(), *, environment=ENVIRONMENT, version_of=None, opens=None, gate=None):
        self.name, self.script, self.environment = name, list(script), environment
        self.version, self.opens, self.gate = version_of or version(), opens, gate
        self.done, self.closed = [], False
        self._own = OwnSeat(Settings(), lambda _: FakeReferee(), name=name)

    def open(self):
        if self.opens is not None:
            raise self.opens
        environments = dict.fromkeys(("cpp", "triton", "cuda"), self.environment)
        return Card(seat=self.name, version=self.version, environments=environments)

    def answer(self, job, on_stage, soon=()):
        if self.gate is not None:
            self.gate.wait(10)
        self.done.append((job.problem.name, job.candidate.source.strip()))
        answer = self._own.answer(job)
        step = self.script.pop(0) if self.script else None
        if step == "dies":
            raise SeatLost("it is gone")
        if isinstance(step, Exception):
            return answer.model_copy(update={"evaluation": None, "fault": Fault.of(step)})
        if isinstance(step, float):
            return answer.model_copy(update={"seconds": step})
        return answer

    def close(self):
        self.closed = True


@pytest.fixture
def dispatch():
    """Makes a dispatcher over seats, which is closed at the end."""
    made = []

    def make(*seats, **more):
        roster = Seats(*seats)
        dispatcher = Dispatcher(roster, look_s=0.01, **more)
        dispatcher.roster = roster
        made.append(dispatcher)
        return dispatcher

    yield make
    for dispatcher in made:
        dispatcher.close()


def both_open(dispatcher):
    while dispatcher.state.seats < 2:
        threading.Event().wait(0.005)


def answers(dispatcher, jobs):
    with ThreadPoolExecutor(len(jobs)) as threads:
        return list(threads.map(dispatcher.answer, jobs))


def test_every_job_is_answered_once_over_all_seats(dispatch):
    seats = [ScriptedSeat(name) for name in "abc"]
    jobs = [make_job(f"v{n}\n", f"p{n % 5}") for n in range(40)]
    dispatcher = dispatch(*seats)
    found = answers(dispatcher, jobs)
    assert [answer.evaluation.candidate for answer in found] == [job.candidate for job in jobs]
    assert sum(len(seat.done) for seat in seats) == 40
    assert dispatcher.state.answered == 40
    assert (dispatcher.state.waiting, dispatcher.state.busy) == (0, 0)


def test_the_job_of_a_lost_seat_is_asked_again(dispatch):
    told = []
    seats = [ScriptedSeat("a", ["dies"]), ScriptedSeat("b")]
    dispatcher = dispatch(*seats, tell=told.append)
    for n in range(9):
        assert dispatcher.answer(make_job(f"v{n}\n")).evaluation.verdict.passed
    if seats[0].done:
        assert "asked again" in told[0]
        assert dispatcher.state.lost == 1


def test_a_lost_seat_is_replaced(dispatch):
    seat = ScriptedSeat("a", ["dies"])
    assert dispatch(seat).answer(make_job()).evaluation.verdict.passed
    assert len(seat.done) == 2


def test_a_candidate_that_cost_two_seats_is_quarantined(dispatch):
    seat = ScriptedSeat("a", ["dies", "dies", "dies"])
    verdict = dispatch(seat).answer(make_job()).evaluation.verdict
    assert (verdict.status, verdict.environment) == (Status.QUARANTINED, ENVIRONMENT.id)
    assert len(seat.done) == 2


def test_a_job_on_which_the_machine_failed_is_tried_on_another_seat(dispatch):
    bad, good = ScriptedSeat("bad", [MachineError("xid 79")] * 9), ScriptedSeat("good")
    dispatcher = dispatch(bad, good)
    both_open(dispatcher)
    found = answers(dispatcher, [make_job(f"v{n}\n", f"p{n}") for n in range(4)])
    assert all(answer.evaluation is not None for answer in found)


def test_a_fault_of_the_machine_on_every_seat_is_the_answer(dispatch):
    fault = dispatch(ScriptedSeat("a", [MachineError("xid 79")] * 9)).answer(make_job()).fault
    with pytest.raises(MachineError, match=r"xid 79 \(on a\)"):
        raise fault.error("a")


def test_a_fault_of_the_problem_is_not_tried_again(dispatch):
    seat = ScriptedSeat("a", [InvalidReferenceError("no Model", problem="p", line=3)])
    error = dispatch(seat).answer(make_job()).fault.error("a")
    assert isinstance(error, InvalidReferenceError)
    assert error.data == {"problem": "p", "line": 3}
    assert len(seat.done) == 1


def test_a_sick_seat_is_put_aside_while_others_work(dispatch):
    told, sick = [], ScriptedSeat("sick", [MachineError("xid 79")] * 99)
    gate = threading.Event()
    dispatcher = dispatch(sick, ScriptedSeat("well", gate=gate), tell=told.append)
    both_open(dispatcher)
    with ThreadPoolExecutor(30) as threads:
        asked = [threads.submit(dispatcher.answer, make_job(f"v{n}\n", f"p{n}")) for n in range(30)]
        while not any("put aside" in line for line in told):
            gate.wait(0.01)
        gate.set()
        found = [future.result() for future in asked]
    assert all(answer.evaluation is not None for answer in found)
    assert sick.closed
    assert len(sick.done) == 3
    assert (dispatcher.state.seats, dispatcher.state.drained) == (1, 1)


def test_seats_of_another_machine_are_not_used_in_the_run(dispatch):
    other = ScriptedSeat("other", environment=OTHER)
    dispatcher = dispatch(ScriptedSeat("a"), expected={"cpp": ENVIRONMENT.id})
    assert dispatcher.environment_for("cpp") == ENVIRONMENT
    dispatcher.roster.there["other"] = other
    answers(dispatcher, [make_job(f"v{n}\n", f"p{n}") for n in range(20)])
    assert other.done == []


def test_a_run_that_was_judged_on_another_machine_does_not_go_on_here(dispatch):
    with pytest.raises(MachineError, match="that judged cpp in this run before"):
        dispatch(ScriptedSeat("a"), expected={"cpp": OTHER.id}).environment_for("cpp")


@pytest.mark.parametrize(
    ("seat", "said"),
    [
        (ScriptedSeat("a", version_of="0.0.0+other"), "runs kernelwright 0.0.0"),
        (ScriptedSeat("a", opens=SandboxError("no namespaces")), "no namespaces"),
    ],
)
def test_a_pool_whose_seats_cannot_judge_says_why(seat, said, dispatch):
    dispatcher = dispatch(seat)
    with pytest.raises(Exception, match=said):
        dispatcher.environment_for("cpp")
    with pytest.raises(Exception, match=said):
        dispatcher.answer(make_job())


def test_seats_may_join_and_leave(dispatch):
    first, second = ScriptedSeat("first"), ScriptedSeat("second")
    dispatcher = dispatch(first)
    dispatcher.answer(make_job())
    dispatcher.roster.there = {"second": second}
    while not first.closed:
        threading.Event().wait(0.005)
    answers(dispatcher, [make_job(f"v{n}\n") for n in range(5)])
    assert len(second.done) == 5


def test_a_pool_without_seats_gives_up_after_a_while(dispatch):
    dispatcher = dispatch(patience_s=0.05)
    with pytest.raises(MachineError, match="no seat of test could be had"):
        dispatcher.answer(make_job())


def test_a_seat_stays_with_its_problem_and_then_takes_the_longest(dispatch):
    gate = threading.Event()
    seat = ScriptedSeat("a", [1.0, 9.0, 1.0], gate=gate)
    dispatcher = dispatch(seat)
    gate.set()
    for name in ("short", "long", "filler", "filler2"):
        dispatcher.answer(make_job("first\n", name))
    gate.clear()
    seat.done.clear()
    with ThreadPoolExecutor(9) as threads:
        threads.submit(dispatcher.answer, make_job("v0\n", "filler"))
        while dispatcher.state.busy == 0:
            threading.Event().wait(0.005)
        for name in ("short", "long", "filler"):
            threads.submit(dispatcher.answer, make_job("v1\n", name))
        while dispatcher.state.waiting < 3:
            threading.Event().wait(0.005)
        gate.set()
    assert [name for name, _ in seat.done] == ["filler", "filler", "long", "short"]


def test_two_seats_do_not_share_a_problem_while_another_waits(dispatch):
    gates = [threading.Event(), threading.Event()]
    seats = [ScriptedSeat(name, gate=gate) for name, gate in zip("ab", gates, strict=True)]
    dispatcher = dispatch(*seats)
    both_open(dispatcher)
    with ThreadPoolExecutor(9) as threads:
        asked = []
        for jobs in ([make_job("v0\n", "one")], [make_job("v0\n", "zero")]):
            asked += [threads.submit(dispatcher.answer, job) for job in jobs]
            while dispatcher.state.busy < len(asked):
                threading.Event().wait(0.005)
        free = next(number for number, seat in enumerate(seats) if _works_on(dispatcher, seat) == "zero")
        for waiting, name in enumerate(("one", "two"), 1):  # "one" asked first
            asked.append(threads.submit(dispatcher.answer, make_job("v1\n", name)))
            while dispatcher.state.waiting < waiting:
                threading.Event().wait(0.005)
        gates[free].set()
        asked[1].result()
        while len(seats[free].done) < 2:
            threading.Event().wait(0.005)
        gates[1 - free].set()
        [future.result() for future in asked]
    assert [name for name, _ in seats[free].done][:2] == ["zero", "two"]


def _works_on(dispatcher, seat):
    doing = dispatcher._desks[seat.name].doing
    return doing and doing.job.problem.name


def test_the_busy_share_counts_only_time_when_work_was_ready():
    now = [0.0]
    gate, seat = threading.Event(), None
    seat = ScriptedSeat("a", gate=gate)
    dispatcher = Dispatcher(Seats(seat), look_s=0.01, clock=lambda: now[0])
    dispatcher.environment_for("cpp")
    now[0] = 100.0  # nothing was ready
    with ThreadPoolExecutor(2) as threads:
        asked = threads.submit(dispatcher.answer, make_job())
        while dispatcher.state.busy == 0:
            threading.Event().wait(0.005)
        now[0] = 130.0
        gate.set()
        asked.result()
    state = dispatcher.state
    dispatcher.close()
    assert (state.busy_s, state.ready_s) == (30.0, 30.0)


def test_closing_ends_what_waits(dispatch):
    gate = threading.Event()
    dispatcher = dispatch(ScriptedSeat("a", gate=gate))
    with ThreadPoolExecutor(3) as threads:
        working = threads.submit(dispatcher.answer, make_job())
        while dispatcher.state.busy == 0:
            threading.Event().wait(0.005)
        waiting = threads.submit(dispatcher.answer, make_job("v1\n"))
        while dispatcher.state.waiting == 0:
            threading.Event().wait(0.005)
        ended = threads.submit(dispatcher.close)
        with pytest.raises(MachineError, match="closed"):
            waiting.result()
        gate.set()
        assert working.result().evaluation.verdict.passed
        ended.result()


def test_candidates_of_the_same_problem_are_built_while_one_is_judged(dispatch, monkeypatch):
    built, gate = [], threading.Event()
    monkeypatch.setattr(FakeSession, "builds_ahead", lambda self, backend: True)
    monkeypatch.setattr(FakeSession, "build_ahead", lambda self, candidate: built.append(candidate.source.strip()))
    seat = OwnSeat(Settings(), lambda _: FakeReferee(point=lambda name: name == "open first" and gate.wait(10)))
    dispatcher = dispatch(seat)
    with ThreadPoolExecutor(9) as threads:
        first = threads.submit(dispatcher.answer, make_job("v0\n", "first"))
        while dispatcher.state.busy == 0:
            threading.Event().wait(0.005)
        jobs = [make_job(f"v{n}\n", name) for name in ("same", "same", "other") for n in range(2)]
        others = [threads.submit(dispatcher.answer, job) for job in {job.id: job for job in jobs}.values()]
        while dispatcher.state.waiting < len(others):
            threading.Event().wait(0.005)
        gate.set()
        assert all(future.result().evaluation for future in (first, *others))
    assert sorted(built) == ["v0", "v0", "v1", "v1"]


def test_seats_that_never_start_are_told_of_and_given_up(dispatch):
    dispatcher = dispatch(ScriptedSeat("a", opens=SeatLost("no module named kernelwright")), patience_s=0.1)
    with pytest.raises(MachineError, match=r"could be had for 0 s \(a: no module named kernelwright\)"):
        dispatcher.answer(make_job())


def test_a_seat_that_only_opens_does_not_hold_up_the_end():
    gate, stuck = threading.Event(), ScriptedSeat("stuck")
    stuck.open = lambda: gate.wait(60)
    dispatcher = Dispatcher(Seats(ScriptedSeat("a"), stuck), look_s=0.01)
    assert dispatcher.answer(make_job()).evaluation
    dispatcher.close()
    gate.set()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": "0.0.0+other"}, "made by kernelwright 0.0.0"),
        ({"job": "0" * 32}, "another job"),
        ({"evaluation": None}, "no single outcome"),
    ],
)
def test_an_answer_that_does_not_fit_is_no_answer(change, said, dispatch):
    """The seat is replaced, and the job asked again; with a second such answer the candidate is quarantined."""
    told = []
    seat = ScriptedSeat("a")
    right = seat.answer
    seat.answer = lambda *given: right(*given).model_copy(update=change)
    assert dispatch(seat, tell=told.append).answer(make_job()).evaluation.verdict.status is Status.QUARANTINED
    assert all(said in line for line in told)


def test_a_verdict_of_another_environment_is_no_answer(dispatch):
    job, told = make_job(), []
    seat = ScriptedSeat("a")
    found = seat.answer(job, print).evaluation
    verdict = found.verdict.model_copy(update={"environment": OTHER.id})
    seat.answer = lambda job, *given: (
        OwnSeat(Settings(), lambda _: FakeReferee())
        .answer(job)
        .model_copy(update={"evaluation": found.model_copy(update={"verdict": verdict, "environment": OTHER})})
    )
    assert dispatch(seat, tell=told.append).answer(job).evaluation.verdict.environment == ENVIRONMENT.id
    assert f"judged in environment {OTHER.id}" in told[0]


def test_a_quarantined_confirmation_is_a_confirmation(dispatch):
    """So a resumed run finds it, and does not ask for it again."""
    for depth, stage in ((Depth(kind="confirm"), "confirm"), (Depth(kind="search"), None)):
        verdict = dispatch(ScriptedSeat("a", ["dies", "dies"])).answer(make_job(depth=depth)).evaluation.verdict
        assert (verdict.status, verdict.failed_stage) == (Status.QUARANTINED, stage)
