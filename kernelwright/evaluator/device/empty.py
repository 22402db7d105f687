"""What an empty call takes on a device: the cost of the queue itself, by processes that hold only code of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from kernelwright.errors import MachineError
from kernelwright.evaluator.device.pool import DevicePool
from kernelwright.evaluator.device.recorder import ReplaySide
from kernelwright.evaluator.device.replay import CannotReplay
from kernelwright.evaluator.device.side import DeviceSide, Idle
from kernelwright.evaluator.figures.control_chart import Chart
from kernelwright.evaluator.wire.claims import WorkerFailed

__all__ = ["Beyond", "Empty", "EmptyCalls"]

_WINDOWS = 5


class Empty(NamedTuple):
    """What an empty call takes in ms.

    mean_ms: its mean. most_ms: its upper limit. spread_ms: from the mean to its own limit. idle_ms: the mean of calls
    that write no outputs.
    """

    mean_ms: float
    most_ms: float
    spread_ms: float
    idle_ms: float

    @property
    def least_ms(self) -> float:
        """The lower limit."""
        return max(self.mean_ms - self.spread_ms, 0.0)


class Beyond(NamedTuple):
    """By how many ms an empty call of a replay takes longer than a worker's: their mean, and from it to its limit."""

    mean_ms: float
    spread_ms: float


class EmptyCalls:
    """Measures empty calls, and keeps a control chart of each kind over a session."""

    def __init__(
        self,
        open_side: Callable[[], DeviceSide],
        open_replay: Callable[[DevicePool], ReplaySide],
        call_timeout_s: float,
    ) -> None:
        """``open_side`` starts a worker of ours, on first use and after one has ended.

        ``open_replay`` makes a replay of a call that computes nothing.
        """
        self._open = open_side
        self._open_replay = open_replay
        self._beyond: dict[str, Beyond] = {}
        self._timeout_s = call_timeout_s
        self._side: DeviceSide | None = None
        self._charts: dict[tuple[str, Idle], Chart] = {}
        self._fills: dict[str, float | None] = {}

    def end(self) -> None:
        """End the worker. Idempotent."""
        if self._side is not None:
            self._side.end()
            self._side = None

    def measured(self, shape: str, pool: DevicePool, calls: int, *, ahead: bool) -> Empty:
        """What an empty call takes on a pool, with limits by a control chart.

        The digest finds an output in the caches if the call has just written it. So calls that fill their outputs are
        timed, less the time of filling alone. Calls that do nothing take longer where outputs are large. The mean is
        of filling calls. The upper limit is the greater one of both kinds.

        Args:
            shape: names what charts are kept for. calls: of a window.
            ahead: as of a side whose calls are enqueued ahead. False: of one that waits for its device in its calls.

        Raises:
            MachineError: the worker failed.
        """
        try:
            if not ahead:
                return self._charted(shape, pool, calls, Idle(fills=False, ahead=False), 0.0)
            nothing = self._charted(shape, pool, calls, Idle(fills=False, ahead=True), 0.0)
            if shape not in self._fills:
                self._fills[shape] = self._worker().fill_ms(pool.variant)
            fill_ms = self._fills[shape]
            if fill_ms is None:
                return nothing
            filling = self._charted(shape, pool, calls, Idle(fills=True, ahead=True), fill_ms)
            return filling._replace(most_ms=max(filling.most_ms, nothing.most_ms), idle_ms=nothing.mean_ms)
        except WorkerFailed as failed:
            raise MachineError(f"the empty worker failed: {failed.failure.message}") from None

    def beyond(self, shape: str, pool: DevicePool, calls: int) -> Beyond:
        """By how much a replay's empty calls take longer than a worker's, measured once for each shape, in turns.

        Raises:
            CannotReplay: the worker or the replay failed.
        """
        if shape not in self._beyond:
            replay = self._open_replay(pool)
            try:
                self._beyond[shape] = self._apart(pool, calls, replay)
            except WorkerFailed as failed:
                raise CannotReplay(f"a replay of nothing failed: {failed.failure.message}") from None
            finally:
                replay.end()
        return self._beyond[shape]

    def _apart(self, pool: DevicePool, calls: int, replay: ReplaySide) -> Beyond:
        chart, order, side = Chart(), np.arange(calls), self._worker()
        side.idle(Idle(fills=False, ahead=True))
        sides = side, replay
        for each in sides:
            each.enter(pool)
        found = []
        for _ in range(_WINDOWS + 1):
            usual, replayed = (each.window(order, [], call_timeout_s=self._timeout_s).mean_ms for each in sides)
            found.append(replayed - usual)
        chart.add(found[1:])
        return Beyond(chart.mean, chart.upper - chart.mean)

    def _charted(self, shape: str, pool: DevicePool, calls: int, how: Idle, less_ms: float) -> Empty:
        chart = self._charts.setdefault((shape, how), Chart())
        while not chart.add([found - less_ms for found in self._means(pool, calls, how)]):
            pass  # at most once: the second group is taken
        mean_ms = max(chart.mean, 0.0)
        return Empty(mean_ms, max(chart.upper, 0.0), chart.upper - chart.mean, mean_ms)

    def _means(self, pool: DevicePool, calls: int, how: Idle) -> list[float]:
        """Mean ms of calls in some windows, after one that is not counted."""
        side, order = self._worker(), np.arange(calls)
        side.idle(how)
        side.enter(pool)
        windows = [side.window(order, [], call_timeout_s=self._timeout_s) for _ in range(_WINDOWS + 1)]
        return [window.mean_ms for window in windows[1:]]

    def _worker(self) -> DeviceSide:
        if self._side is not None and not self._side.client.worker.alive():
            self.end()
        if self._side is None:
            self._side = self._open()
        return self._side
