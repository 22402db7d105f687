"""The queue on a stand-in for the driver: keeper, workers and referee as on a GPU, in processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from kernelwright.evaluator.device.keeper_client import Keeper, Placed
from kernelwright.evaluator.device.queue import Queue, QueueLibrary, certified_speedup, fresh_keys
from kernelwright.evaluator.wire import queue as wire
from kernelwright.evaluator.wire.claims import Failure, WorkerFailed
from kernelwright.sandbox import product_memfd

HERE = Path(__file__).parent.parent / "stand_in"
COUNT, SLOTS, ROOMS = 1000, 8, 4
SLOT_BYTES, STRIDE = 4096, 4096


@pytest.fixture(scope="module")
def machine(rehearsed, tmp_path_factory):
    return rehearsed, QueueLibrary(tmp_path_factory.mktemp("queue"))


class Contestant:
    """A worker process with memory of its own, and what the referee holds for it."""

    def __init__(self, machine, keeper, way, calls, *, places=2, nasty=""):
        (library, images, affine), queue_library = machine
        self.keeper, self.calls = keeper, calls
        self.plain = keeper.allocate(SLOT_BYTES * SLOTS)
        self.values = np.random.default_rng().standard_normal((SLOTS, SLOT_BYTES // 4)).astype(np.float32)
        keeper.put(self.plain, self.values)
        self.sealed, sealed_fd = keeper.share(SLOT_BYTES * SLOTS)
        self.opened, opened_fd = keeper.share(STRIDE * ROOMS)
        self.queue = Queue(queue_library, way)
        given = [product_memfd(images[0]), product_memfd(affine)]
        pages = [os.dup(fd) for fd in self.queue.fds()]
        told = {
            "library": library,
            "way": way,
            "images": given,
            "pages": pages,
            "sealed": sealed_fd,
            "opened": opened_fd,
            "slot_bytes": SLOT_BYTES,
            "slots": SLOTS,
            "stride": STRIDE,
            "rooms": ROOMS,
            "places": places,
            "count": COUNT,
            "first": self.queue.first_call(),
            "calls": calls,
        }
        fds = [*given, *pages, sealed_fd, opened_fd]
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "queue_worker.py"), json.dumps(told)],
            pass_fds=fds,
            env={**os.environ, "KW_STANDIN_NASTY": nasty},
            stderr=subprocess.PIPE,
        )
        for fd in fds:
            os.close(fd)

    def window(self, opened, *, timeout_s=10.0, skip=False):
        keys = fresh_keys(self.calls)
        slots = np.random.default_rng().integers(0, SLOTS, self.calls)
        if self.calls <= SLOTS:
            slots = np.random.default_rng().permutation(SLOTS)[: self.calls]
            rows = zip(slots, keys, strict=True)
            sealings = [(self.plain, int(s) * SLOT_BYTES, self.sealed, int(s) * SLOT_BYTES, int(k)) for s, k in rows]
            self.keeper.seal(sealings, SLOT_BYTES)
        self.slots = slots
        return self.queue.window(slots, keys, opened, check_alive=self.check_alive, call_timeout_s=timeout_s, skip=skip)

    def check_alive(self):
        if self.process.poll() is not None:
            said = self.process.stderr.read().decode()
            raise WorkerFailed(Failure("died", "forward", said[-300:]), "candidate")

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()
        self.queue.close()


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


def judged(contestant, window):
    """By opened call: whether the copy is what was acknowledged, and how far it is from the truth."""
    found = {}
    for call, place in window.places.items():
        output = Placed(contestant.opened, place * STRIDE, "float32", (COUNT,), (1,))
        digest = contestant.keeper.digest([(contestant.opened, place * STRIDE, 4 * COUNT)], int(window.keys[call]))
        want = 2.0 * contestant.values[contestant.slots[call], :COUNT] + 1.0
        memory = contestant.keeper.allocate(want.nbytes)
        contestant.keeper.put(memory, want)
        apart = contestant.keeper.difference(output, Placed(memory, 0, "float32", (COUNT,), (1,)))
        found[call] = digest == int(window.sums[call]), apart.different
    return found


@pytest.mark.parametrize("nasty", ["", "free,hint,dirty", "queue,delay"])
def test_an_honest_candidate_is_timed_and_its_opened_outputs_are_right(contestant, nasty):
    one = contestant("honest", nasty=nasty)
    window = one.window({0: 2, 3: 0, 7: 1})
    assert window.durations_ns.shape == (SLOTS,)
    assert np.all(window.durations_ns > 0)
    assert window.together == ("queue" not in nasty)  # its driver's queue is shorter than the window
    assert judged(one, window) == {0: (True, 0), 3: (True, 0), 7: (True, 0)}
    assert one.process.wait(10.0) == 0


def test_a_candidate_that_waits_for_its_device_is_served_call_by_call(contestant):
    one = contestant("synchronising")
    window = one.window({1: 0, 6: 1})
    assert not window.together
    assert judged(one, window) == {1: (True, 0), 6: (True, 0)}


def test_an_empty_call_has_the_digest_of_nothing(contestant):
    window = contestant("empty").window({})
    assert not window.sums.any()


def test_results_of_an_earlier_call_are_found_when_they_are_opened(contestant):
    one = contestant("stale", places=1)
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
