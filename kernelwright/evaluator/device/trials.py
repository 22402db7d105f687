"""Trials in the keeper's memory: their inputs and what is known of their outputs, put there on first use."""

from __future__ import annotations

import numpy as np

from kernelwright.evaluator.accuracy import arrays
from kernelwright.evaluator.accuracy.trials import Trial
from kernelwright.evaluator.device.keeper_client import Expected, Keeper, Memory

__all__ = ["DeviceTrials"]


class DeviceTrials:
    """The trials of one problem that a keeper holds. Nothing of them is ever shared with a worker."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._trials: dict[int, Trial] = {}  # by identity, which lasts while they are held
        self._inputs: dict[int, Memory] = {}
        self._expected: dict[tuple[int, int], Expected] = {}
        self._rooms: dict[tuple[int, int], Memory] = {}

    def inputs(self, trial: Trial) -> Memory:
        """A trial's inputs, as they lie in a slot."""
        if trial.elsewhere is not None:
            held: Memory = trial.elsewhere
            return held
        key = self._hold(trial)
        if key not in self._inputs:
            self._inputs[key] = memory = self._keeper.allocate(trial.data.nbytes)
            self._keeper.put(memory, trial.data)
        return self._inputs[key]

    def expected(self, trial: Trial, j: int, dtype: str) -> Expected:
        """The truth of output ``j``, which is of a float ``dtype`` and not empty."""
        if (elsewhere := trial.truths[j].elsewhere) is not None:
            expected: Expected = elsewhere.expected
            return expected
        key = self._hold(trial), j
        if key not in self._expected:
            truth = trial.truths[j]
            parts = [np.ascontiguousarray(part, dtype=np.float64) for part in (truth.low, truth.exact, truth.scale)]
            size = parts[0].nbytes
            memory = self._keeper.allocate(3 * size)
            for number, part in enumerate(parts):
                self._keeper.put(memory, part, number * size)
            _, unit = self._keeper.scales(memory, 2 * size, parts[2].size)
            close = arrays.kernelbench_tolerance(dtype)
            self._expected[key] = Expected(memory, 0, size, 2 * size, arrays.largest(dtype), unit, close)
        return self._expected[key]

    def room(self, trial: Trial, j: int, size: int) -> Memory:
        """Memory for a candidate's output ``j`` of ``size`` bytes; the same every time, or larger."""
        key = self._hold(trial), j
        kept = self._rooms.get(key)
        if kept is None or kept.size < size:
            if kept is not None:
                self._keeper.release(kept)
            kept = self._rooms[key] = self._keeper.allocate(size)
        return kept

    def close(self) -> None:
        """Free the memory."""
        held = [*self._inputs.values(), *(expected.memory for expected in self._expected.values())]
        held += self._rooms.values()
        self._inputs, self._expected, self._rooms, self._trials = {}, {}, {}, {}
        self._keeper.release(*held)

    def _hold(self, trial: Trial) -> int:
        self._trials[id(trial)] = trial
        return id(trial)
