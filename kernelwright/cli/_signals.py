"""Stops a command that works until it is told to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from kernelwright.cli._common import say

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_on_signals(after: str) -> Iterator[threading.Event]:
    """The first SIGINT or SIGTERM asks for a stop after what ``after`` names; the second one interrupts it.

    Outside the main thread, Python allows no handlers, and none is set.
    """
    stopping = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()
        say(f"ending after {after}; press Ctrl-C again to interrupt it")

    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
