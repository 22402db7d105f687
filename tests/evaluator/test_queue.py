"""The queue on a stand-in for the driver: keeper, workers and referee as on a GPU, in processes of their own."""

from __future__ import annotations

import contextlib
import signal
import time

import numpy as np
import pytest
from stand_in.contestant import COUNT, SLOT_BYTES, SLOTS, Contestant, judged

from kernelwright.evaluator.device.keeper_client import Keeper
from kernelwright.evaluator.device.queue import QueueLibrary, certified_speedup
from kernelwright.evaluator.wire import queue as wire
from kernelwright.evaluator.wire.claims import WorkerFailed


@pytest.fixture(scope="module")
def machine(rehearsed, tmp_path_factory):
    return rehearsed, QueueLibrary(tmp_path_factory.mktemp("queue"))


@pytest.fixture
def keeper(machine):
    made = Keeper(machine[0].library, images=machine[0].images)
    yield made
    made.close()


@pytest.fixture
def contestant(machine, keeper):
    with contextlib.ExitStack() as ending:

        def start(way, calls=SLOTS, **more):
            made = Contestant(machine, keeper, way, calls, **more)
            ending.callback(made.end)
            return made

        yield start


@pytest.mark.parametrize("nasty", ["", "free,hint,dirty", "queue,delay"])
def test_an_honest_candidate_is_timed_and_its_opened_outputs_are_right(contestant, nasty):
    one = contestant("honest", nasty=nasty)
    window = one.window({0: 2, 3: 0, 7: 1})
    assert window.durations_ns.shape == (SLOTS,)
    assert np.all(window.durations_ns > 0)
    assert window.together == ("queue" not in nasty)  # its driver's queue is shorter than the window
    assert not window.waits
    assert window.ahead == SLOTS if window.together else window.ahead > 1
    assert judged(one, window) == {0: (True, 0), 3: (True, 0), 7: (True, 0)}
    assert one.process.wait(10.0) == 0


def test_a_candidate_that_waits_for_its_device_is_served_call_by_call(contestant):
    one = contestant("synchronising")
    window = one.window({1: 0, 6: 1})
    assert window.waits
    assert judged(one, window) == {1: (True, 0), 6: (True, 0)}


def test_an_empty_call_has_the_digest_of_nothing(contestant):
    window = contestant("empty").window({})
    assert not window.sums.any()


def test_results_of_an_earlier_call_are_found_when_they_are_opened(contestant):
    one = contestant("stale")
    window = one.window({0: 0, 4: 1})
    found = judged(one, window)
    assert found[0] == (True, 0)
    assert found[4][0]
    assert found[4][1] > COUNT // 2


def test_a_wrong_output_is_found(contestant):
    one = contestant("wrong")
    assert judged(one, one.window({5: 0}))[5][1] > COUNT // 2


def test_sealed_slots_are_of_no_use_before_their_reveal(contestant):
    one = contestant("honest")
    one.window({})
    sealed = np.frombuffer(one.keeper.get(one.sealed, SLOT_BYTES * SLOTS), dtype=np.float32)
    with np.errstate(invalid="ignore"):
        assert np.mean(sealed.reshape(SLOTS, -1) == one.values) < 0.01


@pytest.mark.parametrize(
    ("way", "kind", "said"),
    [
        ("raising", "died", "no third call"),
        ("dying", "died", "^$"),
        ("hanging", "timeout", "longer than 0.5 s"),
        ("out_of_bounds", "died", "700"),
    ],
)
def test_a_worker_that_fails_is_told_as_such(contestant, way, kind, said):
    with pytest.raises(WorkerFailed, match=said) as caught:
        contestant(way).window({}, timeout_s=0.5 if kind == "timeout" else 10.0)
    assert caught.value.failure.kind == kind


def test_a_window_that_is_given_up_ends_at_once(contestant):
    one = contestant("honest")
    window = one.window({}, skip=True)
    assert not window.sums.any()
    assert one.process.wait(10.0) == 0


def test_a_queue_holds_as_many_calls_as_its_driver_takes():
    assert wire.depth(1) == 133
    assert wire.depth(0) == 160
    assert wire.depth(5000) == 1


def test_only_the_reference_gets_the_empty_call_off():
    assert certified_speedup(21.0, 11.0, 1.0) == pytest.approx(20 / 11)
    assert certified_speedup(1.0, 2.0, 5.0) == 0.0


def test_a_frozen_referee_or_worker_loses_nothing(contestant):
    """A worker that is stopped in the middle of its window goes on where it stopped."""
    one = contestant("synchronising")
    one.process.send_signal(signal.SIGSTOP)
    started = time.monotonic()
    with pytest.raises(WorkerFailed, match="longer than"):
        one.window({}, timeout_s=0.2)
    assert time.monotonic() - started < 5.0
