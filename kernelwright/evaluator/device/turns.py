"""Turns on a device: what may be claimed of their times."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from kernelwright.evaluator.device.empty import Beyond, Empty
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
        beyond: by how much a replay's take longer.
        overwrites: whether the candidate's calls overwrite the output of the call before, and the reference's do not.
    """

    empty: tuple[Empty, Callable[[], Empty]]
    beyond = Beyond(0.0, 0.0)
    overwrites = False

    def _empty_of(self, side: Seat) -> Empty:
        usual, waiting = self.empty
        return waiting() if isinstance(side, DeviceSide) and side.synchronising else usual

    def _empty_ms(self, side: Seat) -> float:
        if isinstance(side, ReplaySide):
            return self.empty[0].mean_ms + self.beyond.mean_ms
        mean_ms = self._empty_of(side).mean_ms
        return min(mean_ms, self.empty[0].mean_ms) if is_foreign(side.name) else mean_ms  # it may only pretend to wait

    def _claimed(self, latency_ms: Mapping[str, float], windows: Mapping[str, Window]) -> dict[str, float]:
        """See :meth:`Turns._claimed`.

        In a replay the door is ours, so its cost is taken off both sides, at its lower limit: a larger one would make
        a greater speedup. What a replay's door costs beyond a worker's is taken off at its lower limit as well.
        Against a rival, which runs foreign code as well, nothing can be certified: the estimate decides races.
        """
        ours, *others = self._sides
        raw, replayed = windows[ours.name].mean_ms, isinstance(ours, ReplaySide)
        claimed = {ours.name: 0.0}
        for side in others:
            theirs, empty = windows[side.name].mean_ms, self._empty_of(side)
            if is_foreign(side.name):
                speedup = latency_ms[side.name] / latency_ms[ours.name]
            elif replayed:
                least, beyond = self.empty[0].least_ms, self.beyond
                taken = least if empty is self.empty[0] else empty.most_ms
                own = max(raw - least - (beyond.mean_ms - beyond.spread_ms), _LEAST_MS)
                speedup = max(theirs - taken, _LEAST_MS) / own
            else:
                speedup = max(certified_speedup(theirs, raw, empty.most_ms), _LEAST_MS / raw)
            claimed[side.name] = math.log(speedup)
        return claimed

    def _overwritten(self, windows: Mapping[str, Window]) -> tuple[Status, str] | None:
        return OVERWRITTEN if self.overwrites else None

    def _late(self, windows: Mapping[str, Window]) -> tuple[Status, str] | None:
        """None: outputs that come later than their digests are refused for that."""
        return None
