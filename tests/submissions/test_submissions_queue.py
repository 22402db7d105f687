"""The queue over a referee that does nothing real: what is judged how, what is recorded, and what faults do."""

from __future__ import annotations

import pytest
from campaign_fakes import make_evaluation

from kernelwright.datasets import find_problem
from kernelwright.errors import (
    InvalidReferenceError,
    MachineError,
    MissingToolError,
    SandboxError,
    StoreError,
    UsageError,
)
from kernelwright.evaluator import Check, Confirm, Device
from kernelwright.records import Candidate, Status
from kernelwright.store import Store
from kernelwright.submissions import QueueReport, Spool, judge_submissions
from kernelwright.submissions._judging import MAX_TRIES
from kernelwright.submissions._queue import RETRY_S
from kernelwright.submissions._spool import DIED

PROBLEM = "things/level1/plus_one"
PASSED, REFUSED, FAILED, PUT_BACK = (QueueReport(**{name: 1}) for name in QueueReport._fields)
TRITON = """
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(1,)](x, y, x.numel(), BLOCK=8)
        return y
"""


def sessions(store, submission):
    """What was recorded of a submission: session, whether anything was timed, whether it is a confirmation."""
    found = [row for row in store.evaluations() if row.action.get("submission") == submission.id]
    return [
        (
            row.action["session"],
            row.verdict.timing is not None,
            bool(row.verdict.timing and row.verdict.timing.confirmed),
        )
        for row in found
    ]


def fault(message="the lane is gone"):
    return MachineError(message, hint="restart")


# -------------------------------------------------------------------------------------------------- judging


def test_what_passes_is_checked_without_a_time_and_confirmed_in_a_session_of_its_own(run, spool, store, fake, put):
    made = put(spool, "v1\n", note="mine")
    fake.confirmed_speedups = {"v1": 1.7}
    assert run() == PASSED
    assert fake.judged == [("plus_one", "v1", False), ("plus_one", "v1", True)]
    assert sessions(store, made) == [("check", False, False), ("confirm", True, True)]
    (row,) = store.best(PROBLEM)
    assert (row.author, row.confirmed, row.speedup.median) == ("submitted:ada", True, 1.7)
    state = spool.state(made.id)
    assert (state.state, state.status, state.reason) == ("judged", "PASSED", "")
    assert state.evaluations[1] == row.evaluation_id
    candidate = store.evaluation(row.evaluation_id).candidate
    assert (candidate.operator, candidate.note, candidate.source) == ("given", "mine", "v1\n")


def test_each_session_is_opened_anew(run, spool, fake, put, monkeypatch):
    opened = []
    real = type(fake).evaluate

    def evaluate(self, candidate, problem, depth, **more):
        opened.append((depth, tuple(more["baselines"])))
        return real(self, candidate, problem, depth, **more)

    monkeypatch.setattr(type(fake), "evaluate", evaluate)
    monkeypatch.setattr(type(fake), "open", lambda *_, **__: pytest.fail("a session of several judgements"))
    put(spool)
    run()
    assert opened == [(Check(), ("eager", "compile")), (Confirm(), ("eager", "compile"))]


def test_what_does_not_pass_is_not_confirmed(run, spool, store, fake, put):
    fake.statuses = {"v0": Status.REWARD_HACK}
    made = put(spool)
    assert run() == REFUSED
    assert sessions(store, made) == [("check", False, False)]
    state = spool.state(made.id)
    assert (state.state, state.status, state.reason) == ("judged", "REWARD_HACK", "it is wrong")
    assert store.best() == []


def test_what_the_confirmation_refuses_is_on_no_board(run, spool, store, fake, put):
    fake.statuses = {"v0 confirmed": Status.QUARANTINED}
    made = put(spool)
    assert run() == REFUSED
    assert len(spool.state(made.id).evaluations) == 2
    assert spool.state(made.id).status == "QUARANTINED"
    assert store.best() == []


def test_the_language_is_what_the_source_shows_and_what_cannot_be_timed_ends_after_the_check(run, spool, store, put):
    made, said = put(spool, TRITON), put(spool, TRITON + "\n", backend="triton")
    assert run() == QueueReport(passed=2)
    for submission in (made, said):
        assert sessions(store, submission) == [("check", False, False)]
        (evaluation,) = spool.state(submission.id).evaluations
        assert store.evaluation(evaluation).candidate.backend == "triton"
        assert spool.state(submission.id).reason == "checked; it cannot be timed here"


def test_on_a_device_triton_is_confirmed_as_well(spool, store, settings, fake, put, monkeypatch):
    made = put(spool, TRITON)
    device = Device("cuda:0", "a GPU that is not here", "sm_90a", 80 << 30)
    monkeypatch.setattr("kernelwright.evaluator.host.host.find_device", lambda: device)
    judge_submissions(settings.with_values(device="auto"), store, spool, once=True, open_referee=lambda _: fake)
    assert [confirm for *_, confirm in fake.judged] == [False, True]
    assert len(spool.state(made.id).evaluations) == 2


def test_a_language_that_the_source_belies_is_an_answer(run, spool, fake, put):
    made = put(spool, TRITON, backend="cpp")
    assert run() == FAILED
    assert "for triton, not for cpp" in spool.state(made.id).reason
    assert fake.judged == []


@pytest.mark.parametrize("problem", ["things/level1/plus_two", "nowhere/level1/x", "things/level1/plus_one@9"])
def test_an_unknown_problem_is_an_answer(run, spool, fake, put, problem):
    made = put(spool, problem_id=problem)
    assert run() == FAILED
    state = spool.state(made.id)
    assert (state.state, state.status, state.evaluations) == ("failed", None, ())
    assert "plus_two" in state.reason or "x" in state.reason or "variant" in state.reason
    assert fake.judged == []


def test_a_problem_that_breaks_the_contract_is_an_answer(run, spool, settings, put):
    (settings.suite_dirs[0] / "level1" / "plus_one.py").write_text("def Model(): ...\n")
    made = put(spool)
    assert run() == FAILED
    assert "Model" in spool.state(made.id).reason


@pytest.mark.parametrize("error", [UsageError("no such variant here"), InvalidReferenceError("it raises")])
def test_what_cannot_be_judged_at_all_is_an_answer(run, spool, fake, put, error):
    fake.faults = {"plus_one": [error]}
    made = put(spool)
    assert run() == FAILED
    assert error.message in spool.state(made.id).reason


def test_one_after_the_other_the_oldest_first(run, spool, fake, put, clock):
    for source in ("v2\n", "v0\n", "v1\n"):
        put(spool, source)
        clock.seconds += 1
    assert run(limit=2) == QueueReport(passed=2)
    assert [word for _, word, confirm in fake.judged if not confirm] == ["v2", "v0"]
    assert spool.waiting() == 1
    assert run() == PASSED


# -------------------------------------------------------------------------------------------------- once only


def test_the_same_kernel_is_not_judged_again_while_it_stands(run, spool, store, fake, put):
    first = put(spool)
    run()
    again, other = put(spool), put(spool, author="bob")
    fake.statuses = {"v0": Status.INCORRECT_NUMERICAL}  # bad luck, that would take it off the board
    assert run() == QueueReport(passed=2)
    assert len(fake.judged) == 2
    confirmation = spool.state(first.id).evaluations[1]
    assert spool.state(again.id).evaluations == spool.state(other.id).evaluations == (confirmation,)
    assert "made by submitted:ada" in spool.state(other.id).reason
    assert "made by" not in spool.state(again.id).reason
    assert [row.author for row in store.best()] == ["submitted:ada"]


def test_what_does_not_stand_any_more_is_judged_again(run, spool, store, fake, put):
    first = put(spool)
    run()
    store.quarantine(spool.state(first.id).evaluations[1], "too good")
    put(spool)
    run()
    assert len(fake.judged) == 4


def test_on_a_changed_problem_it_is_judged_again(run, spool, settings, fake, put):
    put(spool)
    run()
    path = settings.suite_dirs[0] / "level1" / "plus_one.py"
    path.write_text(path.read_text().replace("x + 1", "x + 2"))
    put(spool)
    run()
    assert len(fake.judged) == 4


def test_a_fault_while_it_is_to_stop_is_no_try(run, spool, fake, put):
    made = put(spool)
    fake.faults = {"plus_one": [fault("its worker was interrupted")]}
    assert run(stop=lambda: not fake.faults["plus_one"]) == QueueReport()
    assert (spool.state(made.id).state, spool.state(made.id).tries) == ("waiting", 0)


@pytest.mark.parametrize("recorded", [1, 2])
def test_what_was_recorded_before_the_process_died_is_not_judged_again(
    run, spool, store, fake, put, monkeypatch, recorded
):
    made = put(spool)
    real = Store.record_evaluation
    left = [recorded]

    def dying(self, *arguments, **named):
        result = real(self, *arguments, **named)
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Store, "record_evaluation", dying)
        with pytest.raises(KeyboardInterrupt):
            run()
    assert (spool.state(made.id).state, spool.state(made.id).tries) == ("waiting", 0)
    assert run() == PASSED
    assert [confirm for *_, confirm in fake.judged] == [False, True]
    assert [session for session, *_ in sessions(store, made)] == ["check", "confirm"]


def test_a_result_that_could_not_be_kept_is_kept_by_the_next_process(run, spool, fake, put, monkeypatch):
    made = put(spool)

    def full(self, claim, outcome):
        claim._lock.close()
        raise StoreError("full")

    for _ in range(MAX_TRIES + 1):  # however often
        with monkeypatch.context() as patch:
            patch.setattr(Spool, "finish", full)
            with pytest.raises(StoreError):
                run()
    assert run() == PASSED
    assert spool.state(made.id).state == "judged"
    assert len(fake.judged) == 2


# -------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize("kind", [MachineError, SandboxError, MissingToolError])
def test_a_fault_of_the_machine_is_tried_again_and_then_told(run, spool, fake, put, kind):
    made, other = put(spool), put(spool, "v1\n")
    fake.faults = {"plus_one": [kind("gone", hint="restart") for _ in range(MAX_TRIES + 1)]}
    reports = [run() for _ in range(2)]
    assert reports == [QueueReport(put_back=2), QueueReport(failed=0, put_back=2)]
    fake.faults = {}
    assert run() == QueueReport(passed=2)
    assert spool.state(made.id).tries == spool.state(other.id).tries == MAX_TRIES


def test_after_three_tries_it_has_failed_with_the_reason(run, spool, fake, put):
    made = put(spool)
    fake.faults = {"plus_one": [fault(f"gone {number}") for number in range(9)]}
    for number in range(MAX_TRIES - 1):
        assert run() == PUT_BACK
        state = spool.state(made.id)
        assert (state.state, state.tries) == ("waiting", number + 1)
        assert f"gone {number} (restart)" in state.reason
    assert run() == FAILED
    state = spool.state(made.id)
    assert (state.state, state.tries) == ("failed", MAX_TRIES)
    assert "gone 2 (restart)" in state.reason
    assert run() == QueueReport()


def test_the_check_is_not_repeated_after_a_fault_of_the_confirmation(run, spool, store, fake, put, monkeypatch):
    made = put(spool)
    real = type(fake).evaluate
    faults = [fault()]

    def evaluate(self, candidate, problem, depth, **more):
        if depth == Confirm() and faults:
            raise faults.pop()
        return real(self, candidate, problem, depth, **more)

    monkeypatch.setattr(type(fake), "evaluate", evaluate)
    assert run() == PUT_BACK
    assert run() == PASSED
    assert [session for session, *_ in sessions(store, made)] == ["check", "confirm"]


def test_after_a_fault_the_referee_is_opened_anew(run, spool, fake, put):
    put(spool), put(spool, "v1\n")
    opened = []
    fake.faults = {"plus_one": [fault()]}
    run(open_referee=lambda _: opened.append(1) or fake)
    assert len(opened) == 2


def test_submissions_are_asked_for_some_own_kernels_whatever_problem_they_are_for(run, spool, fake, put):
    put(spool)
    opened = []
    run(open_referee=lambda settings: opened.append(settings.own_kernels) or fake)
    assert opened == ["some"]


def test_a_referee_that_cannot_be_opened_is_no_submissions_fault(run, spool, put):
    made = put(spool)

    def closed(settings):
        raise SandboxError("no bubblewrap")

    for _ in range(MAX_TRIES + 1):
        with pytest.raises(SandboxError):
            run(open_referee=closed)
    assert (spool.state(made.id).state, spool.state(made.id).tries) == ("waiting", 0)


def test_a_store_that_cannot_be_written_loses_nothing(run, spool, fake, put, monkeypatch):
    made = put(spool)

    def full(*_, **__):
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "record_evaluation", full)
        with pytest.raises(StoreError, match="the disk is full"):
            run()
    assert (spool.state(made.id).state, spool.state(made.id).tries) == ("waiting", 0)
    assert run() == PASSED


def test_a_bug_is_raised_and_met_only_so_often(run, spool, fake, put):
    made = put(spool)
    fake.faults = {"plus_one": [ZeroDivisionError() for _ in range(9)]}
    for _ in range(MAX_TRIES):
        with pytest.raises(ZeroDivisionError):
            run()
    assert run() == FAILED
    assert "ZeroDivisionError" in spool.state(made.id).reason


def test_one_at_which_the_process_dies_each_time_has_failed_in_the_end(run, spool, put):
    made = put(spool)
    for _ in range(MAX_TRIES):
        spool.claim()._lock.close()  # as when its process dies
    assert run() == FAILED
    state = spool.state(made.id)
    assert (state.state, state.status) == ("failed", None)
    assert DIED in state.reason


def test_bad_settings_are_held_against_nobody(run, spool, settings, store, put):
    made = put(spool)
    for change in ({"baselines": ("eagre",)}, {"suite_dirs": (settings.store.parent / "missing",)}):
        with pytest.raises(UsageError):
            judge_submissions(settings.with_values(**change), store, spool, once=True)
    assert (spool.state(made.id).state, spool.state(made.id).tries) == ("waiting", 0)


# -------------------------------------------------------------------------------------------------- going on, ending


def test_it_waits_for_more_until_it_is_to_stop(run, spool, fake, put):
    waits = []
    points = []
    fake.point = points.append

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 2:
            put(spool, "v1\n")

    put(spool)
    report = run(once=False, wait=wait, stop=lambda: len(waits) == 4)
    assert report == QueueReport(passed=2)
    assert len(waits) == 4
    assert points.count("closed") == 2, "an idle queue gives the referee's memory back"


def test_a_try_that_failed_is_repeated_only_after_a_while(run, spool, fake, put):
    now, tried_at = [0.0], []
    fake.faults = {"plus_one": [fault() for _ in range(9)]}
    fake.point = lambda name: tried_at.append(now[0]) if name.startswith("judging") else None
    put(spool)

    def wait(seconds):
        now[0] += seconds

    report = run(once=False, wait=wait, clock=lambda: now[0], stop=lambda: now[0] > 10 * RETRY_S)
    assert report == QueueReport(failed=1, put_back=MAX_TRIES - 1)
    assert tried_at == [0.0, RETRY_S, 2 * RETRY_S]


def test_once_means_one_try_however_long_it_takes(run, fake, spool, put):
    fake.faults = {"plus_one": [fault() for _ in range(9)]}
    put(spool)
    moments = iter(range(0, 10**9, 10**6))
    assert run(clock=lambda: next(moments)) == PUT_BACK


def test_the_referee_is_closed_in_the_end(run, fake, spool, put):
    put(spool)
    points = []
    fake.point = points.append
    run(limit=1)
    assert points[-1] == "closed"


def test_it_stops_between_sessions_and_goes_on_where_it_was(run, spool, store, fake, put):
    made = put(spool)
    assert run(stop=lambda: bool(fake.judged)) == QueueReport()
    assert [session for session, *_ in sessions(store, made)] == ["check"]
    assert (spool.state(made.id).state, spool.state(made.id).tries) == ("waiting", 0)
    assert run() == PASSED
    assert [session for session, *_ in sessions(store, made)] == ["check", "confirm"]


def test_it_does_not_begin_where_it_is_to_stop(run, spool, fake, put):
    put(spool)
    assert run(stop=lambda: True) == QueueReport()
    assert fake.judged == []
    assert not (spool.folder / "claims").exists() or not list((spool.folder / "claims").iterdir())


def test_it_tells_each_step_and_what_it_leaves_alone_once(run, spool, put):
    made = put(spool)
    (spool.folder / "incoming" / "README").write_text("hello")
    told, waits = [], []
    run(once=False, tell=told.append, wait=waits.append, stop=lambda: len(waits) == 3)
    assert told == [
        f"{made.id}: build",
        f"{made.id}: build",
        f"{made.id}: PASSED",
        "left alone: incoming/README: its name is not an id of a submission",
    ]


def test_generators_of_the_archive_are_used(run, spool, store, fake, put, monkeypatch):
    monkeypatch.setattr(Store, "archive", lambda self, problem: (problem.name,))
    put(spool)
    run()
    assert fake.archives == {"plus_one": ("plus_one",)}


def test_a_candidate_of_a_run_that_is_not_confirmed_is_judged(run, spool, store, settings, fake, put):
    problem = find_problem(PROBLEM, settings.suite_dirs)
    store.record_problem(problem)
    candidate = Candidate(problem_id=problem.id, source="v0\n", backend="cpp", author="offline")
    store.record_evaluation(make_evaluation(candidate, speedup=1.4))
    put(spool)
    assert run() == PASSED
    assert len(fake.judged) == 2
    assert [(row.author, row.confirmed) for row in store.best()] == [("offline", True)], "whoever made it first"
