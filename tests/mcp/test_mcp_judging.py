"""Which sessions are kept, and what follows a fault of the machine; over a referee that does nothing real."""

from __future__ import annotations

import signal
import threading

import pytest

import kernelwright.evaluator
from kernelwright.config import Settings
from kernelwright.errors import MachineError
from kernelwright.evaluator import Check
from kernelwright.mcp import _judging
from kernelwright.mcp._judging import Judging
from kernelwright.mcp._lane import Lane
from kernelwright.records import Candidate, Problem


class Sessions:
    """Stands for the referee and for its sessions, and notes what is done with them."""

    def __init__(self, faults=()):
        self.log = []
        self.archives = []
        self.faults = list(faults)

    def __call__(self, settings):
        self.log.append("referee")
        return _Noted(self, "referee")

    def judged(self):
        return [entry for entry in self.log if entry.startswith("judge")]


class _Noted:
    def __init__(self, sessions, name):
        self.sessions, self.name = sessions, name

    def __enter__(self):
        return self

    def __exit__(self, *details):
        self.sessions.log.append(f"close {self.name}")

    def open(self, problem, *, backend, baselines, on_stage, archive):
        self.sessions.log.append(f"open {problem.name} {backend}")
        self.sessions.archives.append(archive)
        return _Noted(self.sessions, f"{problem.name} {backend}")

    def judge(self, candidate, depth):
        self.sessions.log.append(f"judge {self.name}")
        if self.sessions.faults:
            raise self.sessions.faults.pop(0)
        return candidate


@pytest.fixture
def sessions(monkeypatch):
    made = Sessions()
    monkeypatch.setitem(vars(kernelwright.evaluator), "Referee", made)
    return made


@pytest.fixture
def judge(sessions):
    with Judging(Settings(), lambda problem: (problem.name,)) as judging:

        def judge(name, backend="cpp", text="reference"):
            problem = Problem(id=f"t/level1/{name}", suite="t", level=1, name=name, source=text)
            candidate = Candidate(problem_id=problem.id, source="kernel", backend=backend)
            return judging.judge(candidate, problem, Check(), tell=lambda stage: None)

        yield judge


def test_the_latest_two_sessions_are_kept(sessions, judge):
    for name in ("a", "b", "a", "c", "a", "b"):
        judge(name)
    opened = [entry for entry in sessions.log if not entry.startswith("judge")]
    expected = ["referee", "open a cpp", "open b cpp", "close b cpp", "open c cpp", "close c cpp", "open b cpp"]
    assert opened == expected


def test_a_session_gets_the_archive_of_its_problem(sessions, judge):
    judge("a")
    judge("b")
    assert sessions.archives == [("a",), ("b",)]


def test_a_session_is_for_all_backends_and_one_text_of_a_problem(sessions, judge):
    for more in ({}, {"backend": "cuda"}, {"text": "changed"}, {"text": "changed"}):
        judge("a", **more)
    opened = [entry for entry in sessions.log if entry.startswith("open")]
    assert opened == ["open a cpp", "open a cpp"]


def test_a_session_is_renewed_before_its_secrets_wear_out(sessions, judge):
    for _ in range(_judging.JUDGEMENTS_OF_A_SESSION + 1):
        judge("a")
    assert sessions.log[-3:] == ["close a cpp", "open a cpp", "judge a cpp"]


def test_after_a_fault_of_the_machine_all_is_opened_anew_once(sessions, judge):
    sessions.faults = [MachineError("first")]
    judge("a")
    assert sessions.log[3:6] == ["close a cpp", "close referee", "referee"]
    sessions.faults = [MachineError("second"), MachineError("third")]
    with pytest.raises(MachineError, match="third"):
        judge("a")
    judge("a")
    assert len(sessions.judged()) == 5


@pytest.fixture
def _signals_given_back():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_signals_given_back")
def test_a_lane_skips_what_was_cancelled_and_hands_back_errors():
    lane, done = Lane(), []
    lane.submit(lambda: done.append("cancelled")).cancel()
    failed = lane.submit(lambda: 1 / 0)
    last = lane.submit(lambda: done.append("done"))
    ender = threading.Thread(target=lambda: (last.result(), lane.end()))
    ender.start()
    lane.run()
    ender.join()
    assert done == ["done"]
    assert not lane.signalled
    with pytest.raises(ZeroDivisionError):
        failed.result()


@pytest.mark.usefixtures("_signals_given_back")
def test_a_lane_ends_where_its_signal_comes_just_before_it_waits(monkeypatch):
    """The handler would run after the wait only, so the end must not depend on it."""
    monkeypatch.setattr(signal, "pthread_kill", lambda thread, number: None)
    lane = Lane()
    ender = threading.Thread(target=lane.end)
    ender.start()
    lane.run()
    ender.join()


@pytest.mark.usefixtures("_signals_given_back")
def test_a_signal_ends_a_lane_and_the_job_in_hand_which_is_told():
    lane = Lane()
    running = lane.submit(lambda: (signal.raise_signal(signal.SIGINT), signal.pause()))
    never = lane.submit(list)
    lane.run()
    assert lane.signalled
    assert not never.done()
    with pytest.raises(MachineError, match="stopped"):
        running.result()
    signal.raise_signal(signal.SIGTERM)  # does nothing any more
