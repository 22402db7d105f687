"""Reasons to stop a run before its end: Ctrl-C, SIGTERM, a spent budget, a cancellation by another process."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelwright.store import Store

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ASK_AGAIN_S = 1.0


class StopWatch:
    """Says between steps whether to stop. Any thread may ask. The first reason stays the reason."""

    def __init__(self, *, budget_s: float | None = None, asked: Callable[[], str] = lambda: "") -> None:
        """``budget_s``: seconds left to the run; None for no limit. ``asked``: gives further reasons, or ""."""
        self._started = time.monotonic()
        self._budget_s = budget_s
        self._asked = asked
        self._reason = ""
        self._requested = threading.Event()

    @property
    def seconds(self) -> float:
        """Seconds since the watch was started."""
        return time.monotonic() - self._started

    def request(self, reason: str) -> None:
        """Ask for a stop."""
        self._reason = self._reason or reason
        self._requested.set()

    def reason(self) -> str:
        """The reason to stop: "interrupted", "budget", "paused" or "cancelled"; "" to continue."""
        if not self._reason and self._budget_s is not None and self.seconds >= self._budget_s:
            self.request("budget")
        if not self._reason and (reason := self._asked()):
            self.request(reason)
        return self._reason

    def wait(self, seconds: float) -> str:
        """Wait for some seconds or until there is a reason to stop; returns the reason, or ""."""
        until = time.monotonic() + seconds
        while not (reason := self.reason()) and (left := until - time.monotonic()) > 0:
            self._requested.wait(min(left, _ASK_AGAIN_S))
        return reason


class DeviceSeconds:
    """The referee's time on a run so far. It is asked between all steps, so it reads only new evaluations."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._lock = threading.Lock()
        self._seconds = 0.0
        self._latest = ""

    def so_far(self) -> float:
        """The seconds of all stages of all evaluations so far."""
        with self._lock:
            more, self._latest = self._store.device_seconds_after(self._run_id, self._latest)
            self._seconds += more
            return self._seconds


@contextmanager
def stop_on_signals(watch: StopWatch, notify: Callable[[], None]) -> Iterator[None]:
    """The first SIGINT or SIGTERM asks for a stop after the work in flight; the second one interrupts it.

    Outside the main thread, where Python allows no handlers, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    seen: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        if len(seen) > 1:
            raise KeyboardInterrupt
        watch.request("interrupted")
        notify()

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
