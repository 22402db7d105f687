"""A control chart of single measurements: whether a quantity that ought to be constant still is."""

from __future__ import annotations

from collections.abc import Sequence

_MOST_POINTS = 60
_LIMIT = 2.66  # three deviations, by the mean moving range: 3 / d2 with d2 = 1.128 for pairs


class Chart:
    """Individuals with limits by their moving range (W. A. Shewhart; D. C. Montgomery, Statistical Quality Control).

    A group of measurements whose median lies beyond the limits, twice in a row, begins the chart anew.
    """

    def __init__(self) -> None:
        self._points: list[float] = []
        self._doubted = False
        self.restarts = 0

    @property
    def mean(self) -> float:
        """Of the measurements since the last restart."""
        return sum(self._points) / len(self._points)

    @property
    def upper(self) -> float:
        """The limit above which a measurement is out of control."""
        return self.mean + self._reach

    @property
    def _reach(self) -> float:
        pairs = zip(self._points, self._points[1:], strict=False)
        moves = [abs(b - a) for a, b in pairs]
        return _LIMIT * sum(moves) / len(moves) if moves else 0.0

    def add(self, group: Sequence[float]) -> bool:
        """Take some measurements. False if they are out of control for the first time: measure again."""
        middle = sorted(group)[len(group) // 2]
        if self._points and abs(middle - self.mean) > self._reach:
            if not self._doubted:
                self._doubted = True
                return False
            self._points = []
            self.restarts += 1
        self._doubted = False
        self._points = [*self._points, *group][-_MOST_POINTS:]
        return True
