"""How far apart two processes of the same code are timed on this machine, kept from one confirmation to the next.

Every confirmation times a second process of the reference beside the first; the ratio of the two is one, and what is
measured is noise. Kept by latency class, since short calls are noisier than long ones, in one small file for each
environment in the cache folder.
"""

from __future__ import annotations

import json
import math
import os
from collections import deque
from pathlib import Path

from kernelwright.evaluator import _statistics as statistics

_KEPT = 400  # of a class; older ones are forgotten, as machines change
_CLASSES_MS = (0.03, 0.3, 3.0, 30.0)
_LEAST = 0.002  # however quiet the history was


def latency_class(latency_ms: float) -> str:
    """The class of a latency: the power of ten that it is below, such as ``"<0.3ms"``."""
    return next((f"<{limit:g}ms" for limit in _CLASSES_MS if latency_ms < limit), f">={_CLASSES_MS[-1]:g}ms")


class NoiseHistory:
    """Control values (log-ratios of two processes of one code) by latency class, in an append-only file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._values: dict[str, deque[float]] = {}
        for line in self._lines():
            self._remember(line)

    def _lines(self) -> list[str]:
        try:
            return self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return []

    def _remember(self, line: str) -> None:
        """Take one line; a torn one (a kill, a full disk) is left out."""
        try:
            name, value = json.loads(line)
        except (ValueError, TypeError):
            return
        if isinstance(name, str) and isinstance(value, float) and math.isfinite(value):
            self._values.setdefault(name, deque(maxlen=_KEPT)).append(value)

    def add(self, latency_ms: float, log_ratio: float) -> None:
        """Keep one control value; a disk that does not take it costs nothing but the memory of it."""
        line = json.dumps([latency_class(latency_ms), float(log_ratio)])
        self._remember(line)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(descriptor, f"\n{line}\n".encode())
            finally:
                os.close(descriptor)
        except OSError:
            return

    def bound(self, latency_ms: float, default: float) -> float:
        """The noise bound of a latency's class, as a ratio minus one; ``default`` while too few values are known."""
        values = list(self._values.get(latency_class(latency_ms), ()))
        return max(statistics.noise_bound(values, default), _LEAST)
