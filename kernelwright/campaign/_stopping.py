"""When a run is to stop before its end: Ctrl-C, SIGTERM, a spent budget, a cancellation from elsewhere."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ASK_AGAIN_S = 1.0


class StopWatch:
    """Asked between steps whether to stop, by any thread. The first reason stays the reason."""

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
        """ "" to go on, else "interrupted", "budget", "paused" or "cancelled"."""
        if not self._reason and self._budget_s is not None and self.seconds >= self._budget_s:
            self.request("budget")
        if not self._reason and (reason := self._asked()):
            self.request(reason)
        return self._reason

    def wait(self, seconds: float) -> str:
        """Wait so long, or until there is a reason to stop; returns it, or ""."""
        until = time.monotonic() + seconds
        while not (reason := self.reason()) and (left := until - time.monotonic()) > 0:
            self._requested.wait(min(left, _ASK_AGAIN_S))
        return reason


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
