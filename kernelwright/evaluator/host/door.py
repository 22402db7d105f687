"""The outside clock: the referee reveals one call at a time to a worker and times its acknowledgement.

See ``door.c`` for the protocol. A window is a sequence of calls of one worker; all others are frozen meanwhile.
Outputs are read by the referee itself at secret calls, with the clock stopped.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kernelwright.evaluator.builds.referee_code import build_library
from kernelwright.evaluator.host.client import Client
from kernelwright.evaluator.wire import tensors as wire
from kernelwright.evaluator.wire.claims import Failure, OutputClaim, WorkerFailed
from kernelwright.sandbox import SharedMemory, product_memfd

_DONE, _PENDING, _READ_FAILED, _BAD_CLAIM = range(4)
_FIRST_PATIENCE_NS = 2_000_000
_PATIENCE_NS = 20_000_000
_MOST_KEPT_BYTES = 512 << 20  # of memory to read into that closed doors leave to the next ones


class _Progress(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("next", "revealed", "start_ns", "reads")]


class Window(NamedTuple):
    """The result of one window: nanoseconds of each call and each read, and the outputs of the calls that were read.

    ``nonces``: (calls,) uint64, the nonce that revealed each call.

    The outputs' data is overwritten by the next window of the same door. It outlives the door.
    """

    durations_ns: np.ndarray
    outputs: dict[int, tuple[OutputClaim, ...]]
    reads_ns: np.ndarray
    nonces: np.ndarray

    @property
    def mean_ms(self) -> float:
        """Mean latency of a call: the sum over all calls of the window, the first one included, by their number."""
        return float(self.durations_ns.sum()) / len(self.durations_ns) / 1e6


class _Room(NamedTuple):
    """Memory that the library works on during one window: calls in rows, or outputs that are read."""

    nonces: np.ndarray  # (calls,) uint64
    split: np.ndarray  # (calls,): where in an output its read begins
    buffer: np.ndarray  # (reads, bytes of all outputs) uint8
    limits: np.ndarray  # (outputs,) bytes
    tables: np.ndarray  # (reads, outputs, words): how the worker describes them
    durations_ns: np.ndarray  # (calls,)
    reads_ns: np.ndarray  # (reads,)


class ReadMemory:
    """Memory that outputs are read into, all of it touched. Closed doors leave theirs to the next ones.

    Touching fresh memory takes longer than a window of calls does: tens of milliseconds for a few large outputs.
    """

    def __init__(self) -> None:
        self._spare: list[np.ndarray] = []
        self._lock = threading.Lock()

    def take(self, size: int) -> np.ndarray:
        """At least ``size`` bytes; every page was written before."""
        with self._lock:
            fitting = [place for place, spare in enumerate(self._spare) if spare.size >= size]
            if fitting:
                return self._spare.pop(min(fitting, key=lambda place: self._spare[place].size))
        made = np.empty(size, dtype=np.uint8)
        made[:] = 0
        return made

    def give_back(self, memory: list[np.ndarray]) -> None:
        """Keep the memory in a list of one for later, unless an array still looks at it or too much is kept already."""
        if sys.getrefcount(memory[0]) > _REFERENCES_OF_A_LIST:
            return
        with self._lock:
            if memory[0].size + sum(spare.size for spare in self._spare) <= _MOST_KEPT_BYTES:
                self._spare.append(memory[0])


_ALONE = [np.zeros(1, dtype=np.uint8)]
_REFERENCES_OF_A_LIST = sys.getrefcount(_ALONE[0])  # to what nothing but a list holds


class DoorLibrary:
    """The compiled ``door.c``: for the referee by ctypes, for workers as a sealed memory file.

    Attributes:
        memory: what its doors read outputs into.
    """

    def __init__(self, cache_dir: Path) -> None:
        self.memory = ReadMemory()
        self.yielding = len(os.sched_getaffinity(0)) < 2  # asked before this thread is pinned
        path = build_library(Path(__file__).with_name("door.c"), cache_dir)
        self.data = path.read_bytes()
        self.window = ctypes.CDLL(str(path)).kw_window
        self.window.restype = ctypes.c_int
        self.leave = ctypes.CDLL(str(path)).kw_leave
        self.leave.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
        self.leave.restype = None

    def memfd(self) -> int:
        """A sealed memory file of the library; the caller closes it."""
        return product_memfd(self.data)


class Door:
    """The referee's side of one worker's door."""

    def __init__(self, library: DoorLibrary) -> None:
        self._library = library
        self._reveal = SharedMemory.create(wire.REVEAL_BYTES, "reveal")
        self._answer = SharedMemory.create(wire.ANSWER_BYTES, "answer")
        self._reveal.seal()
        self._buffer = np.zeros(0, dtype=np.uint8)
        self._yielding = int(library.yielding)
        self._reveal_at = ctypes.addressof(ctypes.c_char.from_buffer(self._reveal.view))
        self._answer_at = ctypes.addressof(ctypes.c_char.from_buffer(self._answer.view))

    @property
    def yielding(self) -> bool:
        """True if referee and worker share one core and must yield it to each other."""
        return bool(self._yielding)

    def fds(self) -> tuple[int, int]:
        """Reveal page (the worker can only read it) and answer page."""
        return self._reveal.fd, self._answer.fd

    def close(self) -> None:
        """Unmap and close both pages."""
        self._reveal.close()
        self._answer.close()
        self._leave_memory()

    def leave(self) -> None:
        """Tell the worker to go back to its socket."""
        self._library.leave(self._reveal_at, _nonces(1)[0])

    def window(
        self,
        client: Client,
        slots: Sequence[int] | np.ndarray,
        reads: Sequence[int] | np.ndarray,
        capacity: Sequence[int],
        *,
        call_timeout_s: float,
        meanwhile: Meanwhile | None = None,
        begin: Callable[[], None] = lambda: None,
        finish: Callable[[], None] = lambda: None,
    ) -> Window:
        """Run one window over ``slots``, and read the outputs of the calls in ``reads`` (positions).

        Args:
            capacity: bytes that each output may span, in order.
            meanwhile: called in this thread while it waits; the times of such windows mean nothing.
            begin, finish: called right before the first reveal and right after the last acknowledgement. A worker is
                thawed no earlier and frozen no later than that, since no clock runs outside of these two.

        Raises:
            WorkerFailed: the worker died, raised, hung, or claimed an output that is not there.
        """
        order = np.ascontiguousarray(slots, dtype=np.int64)
        read_after = np.zeros(len(slots), dtype=np.uint8)
        read_after[np.asarray(reads, dtype=np.int64)] = 1
        room, progress = self._room(order, read_after, capacity), _Progress()
        go_on = self._bound(client, order, read_after, room, progress, meanwhile)
        begin()
        self._wait(client, go_on, room, progress, call_timeout_s)
        finish()
        positions = np.flatnonzero(read_after)
        outputs_read = {int(p): _claims(room.tables[r], room.buffer[r], capacity) for r, p in enumerate(positions)}
        return Window(room.durations_ns, outputs_read, room.reads_ns[: len(positions)], room.nonces)

    def _room(self, order: np.ndarray, read_after: np.ndarray, capacity: Sequence[int]) -> _Room:
        """Memory for the results of a window over the slots ``order``, and for the library's arguments."""
        buffer = self._touched(max(int(read_after.sum()), 1), max(int(sum(capacity)), 1))
        return _Room(
            nonces=_nonces(len(order)),
            split=np.random.default_rng().random(len(order)),
            buffer=buffer,
            limits=np.asarray(capacity, dtype=np.int64),
            tables=np.zeros((len(buffer), wire.MAX_OUTPUTS, wire.ROW_WORDS), dtype=np.int64),
            durations_ns=np.zeros(len(order), dtype=np.int64),
            reads_ns=np.zeros(len(buffer), dtype=np.int64),
        )

    def _bound(
        self,
        client: Client,
        order: np.ndarray,
        read_after: np.ndarray,
        room: _Room,
        progress: _Progress,
        meanwhile: Meanwhile | None,
    ) -> Callable[[int], int]:
        """The library's window as a function of its patience in ns. The arrays must outlive it."""
        function, argument = meanwhile or (None, None)
        arguments = (
            ctypes.c_void_p(self._reveal_at),
            ctypes.c_void_p(self._answer_at),
            ctypes.byref(progress),
            ctypes.c_int(client.worker.pid),
            *_pointers(order, room.nonces),
            ctypes.c_int64(len(order)),
            *_pointers(read_after, room.split, room.buffer),
            ctypes.c_int64(int(room.limits.sum())),
            *_pointers(room.limits),
            ctypes.c_int64(len(room.limits)),
            *_pointers(room.tables, room.durations_ns, room.reads_ns),
        )
        waiting = ctypes.c_int(self._yielding), ctypes.c_void_p(function), ctypes.c_void_p(argument)
        return lambda patience_ns: int(self._library.window(*arguments, ctypes.c_int64(patience_ns), *waiting))

    def _wait(
        self, client: Client, go_on: Callable[[int], int], room: _Room, progress: _Progress, call_timeout_s: float
    ) -> None:
        """Reveal all slots and wait for each acknowledgement.

        Raises:
            WorkerFailed: as :meth:`window`.
        """
        patience, deadline, at = _FIRST_PATIENCE_NS, time.monotonic() + call_timeout_s, 0
        while (code := go_on(patience)) != _DONE:
            looked = time.monotonic()
            client.check_alive("forward")  # no output of a dead worker can be read
            deadline += time.monotonic() - looked  # it may have asked for a build
            if code != _PENDING:
                claimed = self._claimed_outputs()
                raise WorkerFailed(
                    _bad_output(code, room.tables[progress.reads], len(room.limits), claimed), client.name
                )
            if progress.next != at:
                at, deadline = progress.next, time.monotonic() + call_timeout_s
            if time.monotonic() > deadline:
                failure = Failure("timeout", "forward", f"a call took longer than {call_timeout_s:g} s")
                raise WorkerFailed(failure, client.name)
            patience = _PATIENCE_NS

    def _touched(self, rows: int, width: int) -> np.ndarray:
        """Memory to read into. Every page was written before, since a slow read would give a worker time."""
        if self._buffer.size < rows * width:
            self._leave_memory()
            self._buffer = self._library.memory.take(rows * width)
        return self._buffer[: rows * width].reshape(rows, width)

    def _leave_memory(self) -> None:
        memory, self._buffer = [self._buffer], np.zeros(0, dtype=np.uint8)
        self._library.memory.give_back(memory)

    def _claimed_outputs(self) -> int:
        return int.from_bytes(self._answer.view[64:72], "little", signed=True)


def _bad_output(code: int, table: np.ndarray, outputs: int, claimed: int) -> Failure:
    if code == _READ_FAILED:
        return Failure("fault", "output", "an output's memory cannot be read")
    if claimed != outputs:
        return Failure("fault", "shape", f"forward returned {claimed} tensors, {outputs} expected")
    shapes = [
        tuple(int(s) for s in row[4 : 4 + min(max(int(row[3]), 0), wire.MAX_DIMENSIONS)]) for row in table[:outputs]
    ]
    return Failure("fault", "shape", f"an output spans more memory than expected; shapes {shapes}")


def _claims(table: np.ndarray, data: np.ndarray, capacity: Sequence[int]) -> tuple[OutputClaim, ...]:
    claims, at = [], 0
    for row, limit in zip(table, capacity, strict=False):
        dimensions = min(max(int(row[3]), 0), wire.MAX_DIMENSIONS)
        shape = tuple(int(v) for v in row[4 : 4 + dimensions])
        stride = tuple(int(v) for v in row[4 + wire.MAX_DIMENSIONS : 4 + wire.MAX_DIMENSIONS + dimensions])
        code = int(row[2])
        dtype = wire.DTYPES[code] if 0 <= code < len(wire.DTYPES) else None
        claims.append(OutputClaim(int(row[0]), dtype, shape, stride, data[at : at + int(row[1])]))
        at += limit
    return tuple(claims)


def _pointers(*arrays: np.ndarray) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(array.ctypes.data) for array in arrays]


def _nonces(count: int) -> np.ndarray:
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64) | np.uint64(1)


class Meanwhile(NamedTuple):
    """A C function with its only argument. A thread that waits for a worker calls it again and again."""

    function: int
    argument: int
