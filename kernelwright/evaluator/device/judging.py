"""Outputs of a device's workers where they were opened, judged there by the keeper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kernelwright.evaluator.accuracy import budget
from kernelwright.evaluator.accuracy.judging import Judge
from kernelwright.evaluator.accuracy.trials import PROBES, Trial, data_of
from kernelwright.evaluator.device.keeper_client import Expected, Keeper, Memory, Placed
from kernelwright.evaluator.device.trials import DeviceTrials
from kernelwright.evaluator.timing.turns import Comparison
from kernelwright.evaluator.wire import tensors as wire
from kernelwright.evaluator.wire.claims import OutputClaim

__all__ = ["DeviceClaim", "DeviceComparison", "DeviceJudge"]


class DeviceClaim(OutputClaim):
    """An output as a worker described it, over the bytes that were opened when its call was done."""

    def __init__(
        self, keeper: Keeper, memory: Memory, offset: int, size: int, described: tuple[Any, Any, Any, Any]
    ) -> None:
        """``described``: address in the worker, dtype, shape, stride; ``size``: bytes that these span."""
        super().__init__(*described, np.zeros(0, dtype=np.uint8))
        self._keeper = keeper
        self._where = memory, offset
        self._size = size

    @property
    def size(self) -> int:
        """See :attr:`OutputClaim.size`."""
        return self._size

    @property
    def data(self) -> np.ndarray:
        """See :attr:`OutputClaim.data`; copied from the device, for outputs that the host judges."""
        if self._data.size != self._size:
            memory, offset = self._where
            self._data = np.frombuffer(self._keeper.get(memory, self._size, offset), dtype=np.uint8)
        return self._data

    @property
    def memory(self) -> Memory:
        """The memory that it lies in."""
        return self._where[0]

    @property
    def offset(self) -> int:
        """Bytes before it in its memory."""
        return self._where[1]

    @property
    def placed(self) -> Placed:
        """Where the keeper finds it. Its dtype is one that is supported."""
        assert self.dtype is not None
        return Placed(*self._where, self.dtype, self.shape, self.stride)


class _Seen(NamedTuple):
    """An output of a probe's trial: a copy in the keeper's own memory, and its average error in error scales."""

    copy: Placed | None
    noise: float


class DeviceJudge(Judge):
    """Judges float outputs on the device; the host judges others, which are integers, on copies."""

    def __init__(self, keeper: Keeper, trials: DeviceTrials) -> None:
        self._keeper = keeper
        self._trials = trials

    def _report(
        self, trial: Trial, j: int, claim: OutputClaim, spec: wire.TensorSpec, tolerance_scale: float
    ) -> tuple[budget.OutputReport, Any]:
        if trial.truths[j].kind != "float" or not claim.size:
            return super()._report(trial, j, claim, spec, tolerance_scale)
        assert isinstance(claim, DeviceClaim)
        data = data_of(trial.distribution)
        expected = self._trials.expected(trial, j, spec.dtype)
        sums, noise = self._keeper.errors(claim.placed, expected, peaks=data == "equal")
        report = budget.judge_sums(sums, trial.reductions, data=data, tolerance_scale=tolerance_scale)
        return report, self._seen(trial, j, claim, noise)

    def _seen(self, trial: Trial, j: int, claim: DeviceClaim, noise: float) -> _Seen:
        if trial.distribution not in PROBES.values():
            return _Seen(None, noise)
        placed, kept = claim.placed, self._trials.room(trial, j, claim.size)
        self._keeper.copy((placed.memory, placed.offset), (kept, 0), claim.size)
        return _Seen(placed._replace(memory=kept, offset=0), noise)

    def _response(self, trial: Trial, partner: Trial, j: int, ours: Any, other: Any) -> budget.BetaReport:
        if not isinstance(ours, _Seen) or not isinstance(other, _Seen) or ours.copy is None or other.copy is None:
            return super()._response(trial, partner, j, ours, other)
        dtype = ours.copy.dtype
        expected = tuple(self._trials.expected(one, j, dtype) for one in (trial, partner))
        sums = self._keeper.response((ours.copy, other.copy), (expected[0], expected[1]))
        return budget.judge_response(sums, noise=budget.probe_noise(ours.noise, trial.reductions))


class DeviceComparison(Comparison):
    """Compares outputs of timed calls on the device. Integers and random outputs are compared on copies."""

    def __init__(self, keeper: Keeper, outputs: Sequence[wire.TensorSpec], *given: Any, **named: Any) -> None:
        super().__init__(outputs, *given, **named)
        self._keeper = keeper

    def _scale(self, trial: Trial, j: int) -> tuple[float, float]:
        truth, key = trial.truths[j], (trial.distribution, j)
        if truth.elsewhere is None:
            return super()._scale(trial, j)
        if key not in self._limits:
            expected: Expected = truth.elsewhere.expected
            self._limits[key] = self._keeper.scales(expected.memory, expected.scale, truth.scale.size)
        return self._limits[key]

    def _agrees(self, claim: OutputClaim, other: OutputClaim, spec: wire.TensorSpec, j: int, label: str) -> bool:
        if self._redraws is not None or spec.dtype not in wire.FLOATS or not claim.size:
            return super()._agrees(claim, other, spec, j, label)
        assert isinstance(claim, DeviceClaim)
        assert isinstance(other, DeviceClaim)
        norm, largest = self._allowed(j, int(np.prod(spec.shape)), label)
        apart = self._keeper.difference(claim.placed, other.placed)
        return not apart.unlike and apart.norm <= norm and apart.largest <= largest
