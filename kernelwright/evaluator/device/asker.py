"""Asks an oracle on a device: inputs and what is known of float outputs go into the keeper's memory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kernelwright.evaluator.accuracy import arrays
from kernelwright.evaluator.accuracy.trials import Trial, Truth, TruthFacts, Variant
from kernelwright.evaluator.device.keeper_client import Expected, Keeper, Memory, Placed
from kernelwright.evaluator.device.pool import drawn
from kernelwright.evaluator.host.client import Client
from kernelwright.evaluator.truth.oracle_client import TRUTH_TIMEOUT_S, Asker
from kernelwright.evaluator.wire import tensors as wire
from kernelwright.records import InputDomain, Problem

__all__ = ["DeviceAsker", "TruthThere"]


_MOST_SHARE = 0.5  # of a device's memory, for trials and truths


class TruthThere:
    """What a keeper holds of a float output, as a ``Truth``'s ``elsewhere``."""

    def __init__(self, keeper: Keeper, expected: Expected, shape: tuple[int, ...], facts: TruthFacts) -> None:
        self.expected = expected
        self.facts = facts
        self._keeper = keeper
        self._shape = shape

    def reference_sums(self, *, peaks: bool) -> arrays.ErrorSums:
        """The error sums of the reference's own output; ``peaks`` as in ``arrays.error_sums``."""
        stride = wire.contiguous_stride(self._shape)
        own = Placed(self.expected.memory, self.expected.low, "float64", self._shape, stride)
        return self._keeper.errors(own, self.expected, peaks=peaks)[0]


class DeviceAsker(Asker):
    """Sends requests to one oracle worker on a device."""

    _truth = "truth_there"

    def __init__(self, client: Client, problem: Problem, reduced: Sequence[str], keeper: Keeper) -> None:
        super().__init__(client, problem, reduced)
        self._keeper = keeper
        self._at = 0
        self._held: list[Memory] = []  # by all trials and truths so far

    def drawn(self, name: str, spec: wire.TensorSpec, domain: InputDomain) -> np.ndarray | None:
        """See :meth:`Asker.drawn`: the device draws a thousand times as fast as the host."""
        return drawn(self._keeper, name, spec, domain)

    def data_of(self, trial: Trial) -> np.ndarray:
        """See :meth:`Asker.data_of`; copied from the device."""
        return np.frombuffer(self._keeper.get(trial.elsewhere, trial.elsewhere.size), dtype=np.uint8)

    def _placed(self, trial: Trial) -> Trial:
        self._see_room(trial.data.nbytes)
        memory = self._keeper.allocate(trial.data.nbytes)
        self._held.append(memory)
        self._keeper.put(memory, trial.data)
        return trial._replace(data=trial.data[:0].copy(), elsewhere=memory)

    def _see_room(self, size: int) -> None:
        """Check that ``size`` bytes more leave the device room for candidates.

        Raises:
            InvalidReferenceError: they do not.
        """
        most = _MOST_SHARE * self._keeper.about["total"]
        if sum(memory.size for memory in self._held) + size > most:
            raise self.invalid(
                f"its inputs and expected outputs take more than {most / 2**30:.1f} GiB, half of the device's memory: "
                "use smaller sizes (--fit, --set NAME=VALUE)",
                "check",
            )

    def free(self) -> None:
        """Free the memory of all trials and truths."""
        held, self._held = self._held, []
        self._keeper.release(*held)

    def _more_of(self, variant: Variant) -> dict[str, Any]:
        floats = [spec.dtype if spec.dtype in wire.FLOATS else "float32" for spec in variant.outputs]
        return {
            "roundoffs": [arrays.unit_roundoff(dtype, self._reduced) for dtype in floats],
            "floors": [arrays.smallest_scale(dtype) for dtype in floats],
        }

    def _collected(self, reply: Mapping[str, Any]) -> list[np.ndarray]:
        size, self._at = int(reply["there"]), 0
        if size:
            self._see_room(size)
            memory, fd = self._keeper.share(size)
            self._held.append(memory)
            try:
                self._client.request("collect_there", timeout_s=TRUTH_TIMEOUT_S, fds=[fd], size=size)
            finally:
                os.close(fd)
        return self.collect(reply) if reply["tensors"] else []

    def _make_truth(self, item: Mapping[str, Any], found: Sequence[np.ndarray], dtype: str) -> Truth:
        if "facts" not in item:
            return super()._make_truth(item, found, dtype)
        shape = tuple(int(n) for n in item["shape"])
        none = np.broadcast_to(np.float64(0.0), shape)  # of the right shape, and without memory
        count = int(np.prod(shape, dtype=np.int64))
        if count == 0:
            return Truth("float", none, none, none, None)
        memory, low, size = self._held[-1], self._at, 8 * count
        self._at += 3 * size
        _, unit = self._keeper.scales(memory, low + 2 * size, count)
        close = arrays.kernelbench_tolerance(dtype)
        expected = Expected(memory, low, low + size, low + 2 * size, arrays.largest(dtype), unit, close)
        facts = TruthFacts(**item["facts"])
        return Truth("float", none, none, none, None, TruthThere(self._keeper, expected, shape, facts))
