"""Windows on this CPU: pools in shared memory, the door's own cost, and the floor of reading the inputs."""

from __future__ import annotations

import numpy as np

from kernelwright.evaluator.accuracy.trials import CheckSet
from kernelwright.evaluator.cpu.instruments import Instruments
from kernelwright.evaluator.cpu.pool import Pool, Source
from kernelwright.evaluator.cpu.side import Reading, Side
from kernelwright.evaluator.timing.clockwork import WARM_CALLS, Clockwork
from kernelwright.evaluator.timing.slots import Slots
from kernelwright.evaluator.timing.workers import Workers
from kernelwright.records import Problem

__all__ = ["CpuClockwork"]

_FLOOR_WINDOWS = 5
_FLOOR_CALLS = 256


class CpuClockwork(Clockwork):
    """Windows on this CPU."""

    def __init__(self, instruments: Instruments, workers: Workers, problem: Problem) -> None:
        super().__init__(workers, problem)
        self._instruments = instruments
        self._sources: dict[tuple[str, int], Source] = {}
        self._floors: dict[str, float] = {}

    def close(self) -> None:
        """Free the pools and end their drawers."""
        super().close()
        self._sources = {}

    def empty_call_ms(self, check_set: CheckSet) -> tuple[float, float]:
        """See :meth:`Clockwork.empty_call_ms`: the door's cost, the same for all shapes."""
        null_ms = self._instruments.null_ms()
        return null_ms, null_ms

    def floor_ms(self, check_set: CheckSet, *, anew: bool = False) -> float:
        """See :meth:`Clockwork.floor_ms`: the time that reading the inputs takes through the same door.

        Only those float inputs count in which every element matters. A worker of the referee's own measures it once for
        each check set.
        """
        if check_set.id not in self._floors or anew:
            found = self._measure_floor(check_set) if check_set.read else 0.0
            self._floors[check_set.id] = min(found, self._floors.get(check_set.id, found))
        return self._floors[check_set.id]

    def _measure_floor(self, check_set: CheckSet) -> float:
        pool = self._pool(check_set, 0, WARM_CALLS)
        side = self._workers.bare("floor")
        assert isinstance(side, Side)
        assert isinstance(pool, Pool)
        try:
            means = []
            for reading in (Reading((), False), Reading(check_set.read, False), Reading(check_set.read, True)):
                side.enter(pool, only_reading=reading)
                order = np.random.default_rng().permutation(pool.slots)[:_FLOOR_CALLS]
                windows = [
                    side.door.window(side.client, order, [], [64], call_timeout_s=self._settings.call_timeout_s)
                    for _ in range(_FLOOR_WINDOWS + 1)
                ]
                means.append(min(window.mean_ms for window in windows[1:]))
                side.leave(timeout_s=self._settings.call_timeout_s)
            return max(min(means[1:]) - means[0], 0.0)
        finally:
            side.end()

    def _make_pool(self, check_set: CheckSet, index: int, slots: int) -> Slots:
        variant, key = check_set.variants[index], (check_set.id, index)
        if key not in self._sources:
            trials, draw = check_set.trials[index], self._draw(variant)
            self._sources[key] = Source(variant, trials, self._instruments.fresh, draw)
        return Pool(variant, self._sources[key], slots)
