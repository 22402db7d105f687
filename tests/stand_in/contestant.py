"""One contestant of the rehearsal: a worker process with memory of its own, and what the referee holds for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from kernelwright.evaluator.device.keeper_client import Placed
from kernelwright.evaluator.device.queue import Queue, fresh_keys
from kernelwright.evaluator.wire.claims import Failure, WorkerFailed
from kernelwright.sandbox import product_memfd

HERE = Path(__file__).parent
COUNT, SLOTS, ROOMS = 1000, 8, 4
SLOT_BYTES, STRIDE = 4096, 4096


class Contestant:
    """A worker process with memory of its own, and what the referee holds for it."""

    def __init__(self, machine, keeper, way, calls, *, nasty=""):
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
            "count": COUNT,
            "first": self.queue.first_call(),
            "calls": calls,
            "parent": os.getpid(),
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
