"""A worker's side of the queue: it enqueues our kernels around each call of forward, in torch's own stream.

The candidate lives in the same process and can change all of this. The referee believes none of it; see ``door.cu``.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from ctypes import c_uint32, c_uint64
from typing import Any, NamedTuple

from kernelwright.evaluator.driver.cuda import DeviceMapping, Driver, Launch
from kernelwright.evaluator.wire import queue as wire

_STATE_BYTES = 256  # what the kernels of a call tell each other, and their counters
_SUM_AT, _DONE_AT, _OPENED_AT, _UNUSED_AT = 64, 128, 192, 248


class _Pieces(ctypes.Structure):
    _fields_ = [
        ("at", c_uint64 * wire.MOST_OUTPUTS),
        ("bytes", c_uint64 * wire.MOST_OUTPUTS),
        ("count", c_uint32),
        ("unused", c_uint32),
    ]


class Output(NamedTuple):
    """One output of a call: address, bytes that it spans, and its description for the referee."""

    address: int
    size: int
    described: list[Any]


class Queue:
    """The worker's side of ``queue.c``."""

    def __init__(self, driver: Driver, module: bytes, reveal_fd: int, answer_fd: int) -> None:
        """``module``: the image of ``door.cu`` for this device."""
        self._driver = driver
        self._reveals = mmap.mmap(reveal_fd, wire.REVEAL_BYTES, mmap.MAP_SHARED)
        self._answers = mmap.mmap(answer_fd, wire.ANSWER_BYTES, mmap.MAP_SHARED)
        reveals, answers = (ctypes.addressof(ctypes.c_char.from_buffer(p)) for p in (self._reveals, self._answers))
        self._reveals_on_device = driver.register(reveals, wire.REVEAL_BYTES)
        self._answers_on_device = driver.register(answers, wire.ANSWER_BYTES)
        self._entered = ctypes.c_uint32.from_address(answers + wire.ENTERED_AT)
        self._enqueued = ctypes.c_uint32.from_address(answers + wire.ENQUEUED_AT)
        code = driver.load(module)
        names = "kw_await", "kw_unseal", "kw_digest", "kw_gate", "kw_open"
        self._await, self._unseal, self._digest, self._gate, self._open = (code.function(name) for name in names)
        self._state = driver.allocate(_STATE_BYTES)
        driver.clear(self._state, _STATE_BYTES)
        self._one = Launch((1, 1, 1), 1)
        self._launches: dict[int, Launch] = {}
        self._load()

    def _load(self) -> None:
        """Launch every kernel once, to no effect: a first launch may wait until the device is idle, or load code.

        Pages are zero, so call 0 is revealed, with no bytes and no outputs.
        """
        current, none = c_uint64(self._state), c_uint64(0)
        self._await(self._one, c_uint64(self._reveals_on_device), c_uint32(0), current)
        self._unseal(self._one, current, none, none, none, none)
        self._finish(0, [], _pieces([]), 0, 0)
        self._driver.synchronize(0)

    def serve(
        self,
        forward: Callable[[], Sequence[Output]],
        *,
        first: int,
        calls: int,
        sealed: DeviceMapping,
        slot_bytes: int,
        place: int,
        opened: DeviceMapping,
        rooms: wire.Rooms,
    ) -> list[Sequence[Output]]:
        """Enqueue ``calls`` calls, numbered from ``first``. Returns their outputs.

        Args:
            forward: performs a call.
            sealed: slots of ``slot_bytes`` each. place: address of the plain inputs.
            opened: memory that opened outputs are copied to; ``rooms`` says where.
        """
        whole = self._shape(slot_bytes // 16)
        room = _pieces(list(zip(rooms.offsets, rooms.sizes, strict=True)))
        kept = []
        self._driver.clear(self._state + _UNUSED_AT, 4)  # the device turns to this process before the first reveal
        self._driver.synchronize(0)
        for number in range(first, first + calls):
            self._entered.value = number
            current = c_uint64(self._state)
            self._await(self._one, c_uint64(self._reveals_on_device), c_uint32(number), current)
            arguments = current, c_uint64(place), c_uint64(sealed.address), c_uint64(slot_bytes)
            self._unseal(whole, *arguments, c_uint64(slot_bytes))
            outputs = forward()
            kept.append(outputs)
            self._finish(number, outputs, room, opened.address, rooms.stride)
            self._enqueued.value = number
        return kept

    def _finish(self, number: int, outputs: Sequence[Output], room: _Pieces, opened: int, stride: int) -> None:
        """Enqueue what follows a call: digest, gate, copy."""
        pieces = _pieces([(output.address, output.size) for output in outputs])
        answer, call, current = c_uint64(self._answers_on_device), c_uint32(number), c_uint64(self._state)
        shape = self._shape(max((output.size for output in outputs), default=1) // 8)
        done = c_uint64(self._state + _DONE_AT)
        self._digest(shape, current, pieces, c_uint64(self._state + _SUM_AT), done, answer, call)
        self._gate(self._one, c_uint64(self._reveals_on_device + wire.GATE_AT), call, current)
        where = c_uint64(opened), c_uint64(stride)
        self._open(shape, current, pieces, *where, room, c_uint64(self._state + _OPENED_AT), answer, call)

    def _shape(self, items: int) -> Launch:
        if items not in self._launches:
            self._launches[items] = self._driver.launch_for(items)
        return self._launches[items]


def _pieces(pairs: Sequence[tuple[int, int]]) -> _Pieces:
    made = _Pieces(count=len(pairs))
    for j, (address, size) in enumerate(pairs):
        made.at[j], made.bytes[j] = address, size
    return made
