"""The tools that this CPU's clock shares among all problems: its C libraries, and the cost of the door itself."""

from __future__ import annotations

import numpy as np

from kernelwright.errors import MachineError
from kernelwright.evaluator.cpu.fresh import FreshLibrary
from kernelwright.evaluator.cpu.share import ShareSampler
from kernelwright.evaluator.host.door import Door
from kernelwright.evaluator.host.host import RUNNER, Host, Program
from kernelwright.evaluator.profile.code import CodeReader
from kernelwright.evaluator.wire.claims import WorkerFailed
from kernelwright.evaluator.worker.guarded_memory import GuardLibrary

_NULL_CALLS = 200
_NULL_WINDOWS = 5


class Instruments:
    """The tools of the CPU clock on one host.

    Attributes:
        fresh: fills slots with new data.
        guard: poisons and guards a worker's memory.
        sampler: samples what a worker spends its time on.
        code: reads the machine code of products.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self.fresh = FreshLibrary(host.cache_dir, host.last_cpu if host.own_cpu is not None else None)
        self.guard = GuardLibrary(host.cache_dir)
        self.sampler = ShareSampler(host.cache_dir)
        self.code = CodeReader(host.sandbox)
        self._null_ms: float | None = None

    def close(self) -> None:
        """End the thread that helps to fill slots."""
        self.fresh.close()

    def null_ms(self) -> float:
        """The cost of the door itself, in ms for each call. It is measured once and subtracted everywhere.

        The time of the worker's own Python is not subtracted. A candidate that speaks the door's protocol itself saves
        that time, so subtracting it would let a short call come out near zero.

        Raises:
            MachineError: it cannot be measured.
        """
        if self._null_ms is None:
            self._null_ms = self._measure_null()
        return self._null_ms

    def _measure_null(self) -> float:
        door = Door(self._host.door_library)
        client = self._host.worker(RUNNER, name="null")
        try:
            self._host.load(client, door, Program(""))
            client.send("idle", yielding=door.yielding)
            slots = np.zeros(_NULL_CALLS, dtype=np.int64)
            windows = [door.window(client, slots, [], [], call_timeout_s=10.0) for _ in range(_NULL_WINDOWS + 1)]
            return min(window.mean_ms for window in windows[1:])
        except WorkerFailed as failed:
            raise MachineError(f"the null worker failed: {failed.failure.message}") from None
        finally:
            client.close()
