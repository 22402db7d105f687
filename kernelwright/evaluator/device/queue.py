"""The queue's clock, the referee's side: it reveals calls that a worker has enqueued ahead, and times each one.

See ``queue.c`` and ``code/door.cu`` for the protocol. Everything that is subtracted from these times lies in the
candidate's own process, where it can be fused away. So only :func:`certified_speedup` may be claimed.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kernelwright.evaluator.builds.referee_code import build_library
from kernelwright.evaluator.wire import queue as wire
from kernelwright.evaluator.wire.claims import Failure, WorkerFailed
from kernelwright.sandbox import SharedMemory

__all__ = ["Queue", "QueueLibrary", "QueueWindow", "certified_speedup", "fresh_keys"]

_DONE = 0
_FIRST_PATIENCE_NS, _PATIENCE_NS = 2_000_000, 20_000_000
_STALL_NS = 50_000_000  # without progress a worker waits for an answer; a busy machine alone holds it up for less
_PAUSE_NS = (3_000, 20_000)  # between two calls, or pipelines would be in phase with the reveals


class QueueWindow(NamedTuple):
    """The result of one window.

    durations_ns: (calls,) from reveal to acknowledgement. sums: (calls,) the digests that acknowledged them.
    keys: (calls,) the keys of the reveals. places: by the index of an opened call, the number of the place that its
    outputs were copied to. together: whether all calls were enqueued before the first reveal. ahead: how many were.
    """

    durations_ns: np.ndarray
    sums: np.ndarray
    keys: np.ndarray
    places: Mapping[int, int]
    together: bool
    ahead: int

    @property
    def waits(self) -> bool:
        """Whether the worker waits for its device in its calls, as ``.item()`` does. A full queue stops later calls."""
        return not self.together and self.ahead <= 1

    @property
    def mean_ms(self) -> float:
        """Mean time of a call, the first one included."""
        return float(self.durations_ns.mean()) / 1e6


class _Progress(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("next", "state", "start_ns", "together", "seen", "seen_ns")]


class QueueLibrary:
    """The compiled ``queue.c``."""

    def __init__(self, cache_dir: Path) -> None:
        path = build_library(Path(__file__).with_name("queue.c"), cache_dir)
        self.window = ctypes.CDLL(str(path)).kw_queue_window
        self.window.restype = ctypes.c_int


class Queue:
    """The referee's side of one worker's queue."""

    def __init__(self, library: QueueLibrary, name: str) -> None:
        """``name`` says in failures whose queue it is."""
        self._library = library
        self._name = name
        self._reveals = SharedMemory.create(wire.REVEAL_BYTES, "reveals")
        self._answers = SharedMemory.create(wire.ANSWER_BYTES, "answers")
        self._at = [
            ctypes.addressof(ctypes.c_char.from_buffer(memory.view)) for memory in (self._reveals, self._answers)
        ]
        self._next = wire.FIRST_CALL

    def fds(self) -> tuple[int, int]:
        """Descriptors of two pages: the referee writes reveals and reads none back; the worker writes answers."""
        return self._reveals.fd, self._answers.fd

    def close(self) -> None:
        """Unmap both pages."""
        self._reveals.close()
        self._answers.close()

    def first_call(self) -> int:
        """The number of the first call of the next window, which the worker needs before it enqueues."""
        return self._next

    def window(
        self,
        slots: np.ndarray,
        keys: np.ndarray,
        opened: Mapping[int, int],
        *,
        check_alive: Callable[[], None],
        call_timeout_s: float,
        ahead: bool = True,
        skip: bool = False,
    ) -> QueueWindow:
        """Reveal the calls of one window, which the worker enqueues meanwhile.

        Args:
            slots: (calls,) to reveal. keys: (calls,) uint64, what each slot is sealed with.
            opened: the place for the outputs of a call, by its index in ``slots``.
            check_alive: raises if the worker died or left the queue.
            ahead: wait until all calls are enqueued. False for a worker that is known to wait for its device.
            skip: reveal nothing: every call passes at once. This ends a window that was given up.

        Raises:
            WorkerFailed: the worker died, raised or hung.
        """
        calls, rng = len(slots), np.random.default_rng(secrets.randbits(128))
        orders = np.asarray(slots, dtype=np.uint32) | np.uint32(wire.SKIP << wire.OPERATION_SHIFT if skip else 0)
        opens = np.zeros(calls, dtype=np.uint32)
        for call, place in opened.items():
            opens[call] = place + 1
        pauses = rng.integers(*_PAUSE_NS, calls, dtype=np.int32)
        durations, sums = np.zeros(calls, dtype=np.int64), np.zeros(calls, dtype=np.uint64)
        given = np.ascontiguousarray(keys, dtype=np.uint64)
        progress = _Progress(together=-1 if ahead else 0)
        arguments = (
            *(ctypes.c_void_p(at) for at in self._at),
            ctypes.byref(progress),
            ctypes.c_uint32(self._next),
            ctypes.c_int64(calls),
            *(ctypes.c_void_p(array.ctypes.data) for array in (orders, given, opens, pauses, durations, sums)),
            ctypes.c_int64(_STALL_NS),
        )
        first = self._next
        self._next += calls
        patience, deadline, at = _FIRST_PATIENCE_NS, time.monotonic() + call_timeout_s, 0
        while self._library.window(*arguments, ctypes.c_int64(patience)) != _DONE:
            looked = time.monotonic()
            check_alive()
            deadline += time.monotonic() - looked  # it may have asked for a build
            if progress.next != at:
                at, deadline = progress.next, time.monotonic() + call_timeout_s
            if time.monotonic() > deadline:
                failure = Failure("timeout", "forward", f"a call took longer than {call_timeout_s:g} s")
                raise WorkerFailed(failure, self._name)
            patience = _PATIENCE_NS
        before = calls if progress.together else max(int(progress.seen) - first + 1, 0)
        return QueueWindow(durations, sums, given, dict(opened), bool(progress.together), before)


def fresh_keys(count: int) -> np.ndarray:
    """(count,) secret keys, uint64."""
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


def certified_speedup(reference_ms: float, candidate_ms: float, empty_ms: float) -> float:
    """The speedup that a candidate certainly has: the empty call's time is taken off the reference alone.

    A candidate may have fused unsealing and digest with its own work, so nothing can be taken off its time. All three
    are mean times of a call through the same door; ``empty_ms`` is measured by a worker of our own.
    """
    return max(reference_ms - empty_ms, 0.0) / candidate_ms
