"""A worker of the rehearsal: it serves one queue on the stand-in's device, honestly or not.

Run with one argument, a JSON object: library, way (see ``WAYS``), numbers, and descriptors. It serves one window.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from ctypes import c_uint32, c_uint64
from typing import Any

from kernelwright.evaluator.driver.cuda import Driver, Launch
from kernelwright.evaluator.wire.queue import Rooms
from kernelwright.evaluator.worker.queue import Output, Queue

ONE = Launch((2, 1, 1), 1)
_PR_SET_PDEATHSIG = 1


class Candidate:
    """A forward over one input of ``count`` floats."""

    def __init__(self, driver: Driver, image: bytes, place: int, count: int) -> None:
        self.driver = driver
        self.kernel = driver.load(image).function("affine")
        self.place = place
        self.count = count
        self.outputs = [driver.allocate(4 * count) for _ in range(8)]
        self.calls = 0
        self.honest()  # a first launch may wait until the device is idle
        self.calls = 0
        driver.synchronize(0)

    def honest(self) -> list[Output]:
        """y = 2 x + 1, into memory of this call."""
        to = self.outputs[self.calls % len(self.outputs)]
        self.calls += 1
        self.kernel(ONE, c_uint64(self.place), c_uint64(to), c_uint32(self.count))
        return [Output(to, 4 * self.count, [])]

    def empty(self) -> list[Output]:
        """Nothing: what the door itself costs."""
        return []

    def synchronising(self) -> list[Output]:
        """It waits for its device in the middle, as ``.item()`` does."""
        found = self.honest()
        self.driver.synchronize(0)
        return found

    def stale(self) -> list[Output]:
        """It computes on the data of the call before, which lies in the place until the reveal."""
        to = self.outputs[0]
        if self.calls == 0:
            self.kernel(ONE, c_uint64(self.place), c_uint64(to), c_uint32(self.count))
        self.calls += 1
        return [Output(to, 4 * self.count, [])]

    def wrong(self) -> list[Output]:
        """It hands over its input."""
        return [Output(self.place, 4 * self.count, [])]

    def out_of_bounds(self) -> list[Output]:
        """Its kernel writes where nothing is mapped."""
        self.kernel(ONE, c_uint64(self.place), c_uint64(64), c_uint32(self.count))
        return [Output(self.outputs[0], 4 * self.count, [])]

    def raising(self) -> list[Output]:
        """It raises in its third call."""
        self.calls += 1
        if self.calls == 3:
            raise ValueError("no third call")
        return self.honest()

    def dying(self) -> list[Output]:
        """It is killed in its third call."""
        self.calls += 1
        if self.calls == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.honest()

    def hanging(self) -> list[Output]:
        """It never returns from its third call."""
        self.calls += 1
        while self.calls == 3:
            time.sleep(1.0)
        return self.honest()


def main() -> None:
    """Serve one window and end, or end with the process that has started this one."""
    told: dict[str, Any] = json.loads(sys.argv[1])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != told["parent"]:
        sys.exit("the process that started this one has ended")
    driver = Driver(told["library"])
    images = [os.pread(fd, os.fstat(fd).st_size, 0) for fd in told["images"]]
    queue = Queue(driver, images[0], *told["pages"])
    sealed = driver.adopt(told["sealed"], told["slot_bytes"] * told["slots"])
    opened = driver.adopt(told["opened"], told["stride"] * told["rooms"])
    place = driver.allocate(told["slot_bytes"])
    driver.clear(place, told["slot_bytes"])
    candidate = Candidate(driver, images[1], place, told["count"])
    forward: Callable[[], list[Output]] = getattr(candidate, told["way"])
    queue.serve(
        forward,
        first=told["first"],
        calls=told["calls"],
        sealed=sealed,
        slot_bytes=told["slot_bytes"],
        place=place,
        opened=opened,
        rooms=Rooms([0], [told["stride"]], told["stride"]),
    )
    driver.synchronize()


if __name__ == "__main__":
    main()
