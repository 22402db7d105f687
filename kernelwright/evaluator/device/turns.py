"""Turns on a device: what may be claimed of their times."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from kernelwright.evaluator.device.empty import Empty
from kernelwright.evaluator.device.queue import certified_speedup
from kernelwright.evaluator.device.recorder import ReplaySide
from kernelwright.evaluator.device.side import DeviceSide
from kernelwright.evaluator.host.door import Window
from kernelwright.evaluator.host.seat import Seat
from kernelwright.evaluator.timing.turns import OVERWRITTEN, Turns
from kernelwright.evaluator.wire.roles import is_foreign
from kernelwright.records import Status

__all__ = ["DeviceTurns"]

_LEAST_MS = 1e-6


class DeviceTurns(Turns):
    """Turns whose claims are certified.

    Attributes:
        empty: what empty calls take, in ms: usual ones, and those of a side that waits for its device in its calls.
        overwrites: whether the candidate's calls overwrite the output of the call before, and the reference's do not.
    """

    empty: tuple[Empty, Callable[[], Empty]]
    overwrites = False

    def _empty_of(self, side: Seat) -> Empty:
        usual, waiting = self.empty
        return waiting() if isinstance(side, DeviceSide) and side.synchronising else usual

    def _empty_ms(self, side: Seat) -> float:
        mean_ms = self._empty_of(side).mean_ms
        return min(mean_ms, self.empty[0].mean_ms) if is_foreign(side.name) else mean_ms  # it may only pretend to wait

    def _claimed(self, latency_ms: Mapping[str, float], windows: Mapping[str, Window]) -> dict[str, float]:
        """See :meth:`Turns._claimed`.

        In a replay the door is ours, so its cost is taken off both sides. Against a rival, which runs foreign code as
        well, nothing can be certified: the estimate decides races.
        """
        own = self._sides[0].name
        raw, replayed = windows[own].mean_ms, isinstance(self._sides[0], ReplaySide)
        most_ms = {side.name: self._empty_of(side).most_ms for side in self._sides}
        return {
            name: math.log(
                latency_ms[name] / latency_ms[own]
                if replayed or is_foreign(name)
                else max(certified_speedup(window.mean_ms, raw, most_ms[name]), _LEAST_MS / raw)
            )
            for name, window in windows.items()
        }

    def _overwritten(self, windows: Mapping[str, Window]) -> tuple[Status, str] | None:
        return OVERWRITTEN if self.overwrites else None

    def _late(self, windows: Mapping[str, Window]) -> tuple[Status, str] | None:
        """None: outputs that come later than their digests are refused for that."""
        return None
