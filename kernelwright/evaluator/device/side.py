"""A worker that computes on a device: sealed inputs, calls that it has enqueued ahead, outputs that are opened on it.

The queue reveals each call with the key of its inputs, and takes its time until the digest of its outputs. Only then
are outputs of secret calls opened: copied, by a kernel of ours, to where the keeper judges them. See ``device.queue``.
"""

from __future__ import annotations

import contextlib
import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernelwright.evaluator.accuracy.trials import Variant
from kernelwright.evaluator.device.judging import DeviceClaim
from kernelwright.evaluator.device.keeper_client import Memory
from kernelwright.evaluator.device.pool import DevicePool
from kernelwright.evaluator.device.queue import Queue, QueueWindow, fresh_keys
from kernelwright.evaluator.device.station import Station
from kernelwright.evaluator.host.client import Client
from kernelwright.evaluator.host.door import Window
from kernelwright.evaluator.host.host import LOAD_TIMEOUT_S, Host, Program
from kernelwright.evaluator.host.seat import SETUP_TIMEOUT_S, Seat, WorkerSeat
from kernelwright.evaluator.wire import queue as wire_queue
from kernelwright.evaluator.wire import tensors as wire
from kernelwright.evaluator.wire.claims import Failure, OutputClaim, WorkerFailed, readable
from kernelwright.sandbox import product_memfd

_COMPARED = ("candidate", "eager")  # roles whose outputs are opened
_ROOMS, _FEWEST_ROOMS = 8, 2  # for outputs of opened calls, at first
_ROOM_BYTES = 1 << 30  # of all of them, if that is enough for the fewest
_ALIGNMENT = 16
_MOST_DESCRIBED = 200  # outputs whose descriptions surely fit into one message
_WAITS = 2  # windows in a row that were not enqueued ahead, after which none is waited for


class Shared(NamedTuple):
    """Memory of the keeper's with its descriptor."""

    memory: Memory
    fd: int


class Idle(NamedTuple):
    """What a worker of ours does in place of calls: it fills their outputs, or nothing. ahead: as calls usually are."""

    fills: bool
    ahead: bool


class QueuedSide(Seat):
    """Something that serves a queue, and the memory that it shares with the keeper.

    ``_rooms`` are the places for outputs of opened calls.
    """

    def __init__(self, name: str, client: Client, station: Station) -> None:
        super().__init__(name, client)
        self._station = station
        self._keeper = station.keeper
        self.queue = Queue(station.queues, name)
        self._pool: DevicePool | None = None
        self._held: list[Memory] = []  # sealed inputs, opened outputs, and what a subclass adds
        self._rooms = 0
        self._layout = wire_queue.Rooms((), (), 0)

    def enter(self, pool: DevicePool) -> None:
        """See :meth:`Seat.enter`."""
        if self._pool is not pool:
            each = max(_placed(pool.variant.capacity()).stride, 1)
            self._map(pool, max(_FEWEST_ROOMS, min(_ROOMS, _ROOM_BYTES // each)) if self.name in _COMPARED else 0)

    def leave(self, *, timeout_s: float) -> None:
        """See :meth:`Seat.leave`. Between windows it waits at its socket."""
        self.thaw()

    def _map(self, pool: DevicePool, rooms: int) -> None:
        """Share memory for calls on ``pool``, with room for the outputs of ``rooms`` calls."""
        self.thaw()
        self._release()
        self._layout, self._rooms = _placed(pool.variant.capacity()), rooms
        calls = min(pool.slots, wire_queue.MOST_CALLS)
        with contextlib.ExitStack() as closing:
            shared = []
            for size in (pool.stride * calls, self._layout.stride * rooms, *self._more(pool)):
                memory, fd = self._keeper.share(max(size, _ALIGNMENT))
                closing.callback(os.close, fd)
                self._held.append(memory)
                shared.append(Shared(memory, fd))
            self._take(pool, calls, rooms, shared)
        self._pool = pool

    def _more(self, pool: DevicePool) -> Sequence[int]:
        """Bytes of further memories that are shared."""
        return ()

    @abstractmethod
    def _take(self, pool: DevicePool, calls: int, rooms: int, shared: Sequence[Shared]) -> None:
        """Hand over sealed inputs of ``calls`` calls, room for opened outputs, and further memories."""

    def window(self, slots: np.ndarray, reads: Sequence[int] | np.ndarray, *, call_timeout_s: float) -> Window:
        """See :meth:`Seat.window`; also raises if an output is not what its digest says."""
        pool = self._pool
        assert pool is not None
        opened = [int(call) for call in reads] if self.name in _COMPARED else []
        self.thaw()
        try:
            if len(opened) > self._rooms:
                self._map(pool, len(opened))
            keys = fresh_keys(len(slots))
            pool.seal(slots, keys, self._held[0])
            found = self._served(pool.variant, keys, opened, call_timeout_s)
            outputs = self._opened(pool.variant, found)
        finally:
            self.freeze()
        return Window(found.durations_ns, outputs, np.zeros(0), found.keys)

    @abstractmethod
    def _served(self, variant: Variant, keys: np.ndarray, opened: Sequence[int], call_timeout_s: float) -> QueueWindow:
        """Have a window's calls enqueued, and reveal them."""

    @abstractmethod
    def _described(self, calls: Sequence[int]) -> Any:
        """Address, dtype, shape and stride of each output of some calls of the last window; a claim."""

    def _opened(self, variant: Variant, window: QueueWindow) -> dict[int, tuple[OutputClaim, ...]]:
        """The outputs of opened calls, compared with the digests that acknowledged them.

        Raises:
            WorkerFailed: an output has changed since, or is malformed.
        """
        calls, found = list(window.places), {}
        at_once = max(_MOST_DESCRIBED // max(len(variant.outputs), 1), 1)
        for first in range(0, len(calls), at_once):
            part = calls[first : first + at_once]
            described = self._described(part)
            if not isinstance(described, list) or len(described) != len(part):
                raise self._failure("protocol", "it hands over something else than its outputs")
            for call, items in zip(part, described, strict=True):
                found[call] = self._claims(items, variant, window.places[call])
        for call, outputs in found.items():
            rows = [(claim.memory, claim.offset, claim.size) for claim in outputs]
            if self._keeper.digest(rows, int(window.keys[call])) != int(window.sums[call]):
                raise self._failure("fault", "an output is not what it was when its call was acknowledged", "digest")
        return dict(found)

    def _claims(self, items: Any, variant: Variant, room: int) -> tuple[DeviceClaim, ...]:
        """The described outputs of one call, where they were opened."""
        capacity = variant.capacity()
        if not isinstance(items, list) or len(items) != len(capacity):
            count = len(items) if isinstance(items, list) else 0
            raise self._failure("fault", f"forward returned {count} tensors, {len(capacity)} expected", "shape")
        claims = []
        for item, limit, offset in zip(items, capacity, self._layout.offsets, strict=True):
            address, dtype, shape, stride = self._description(item)
            size = _span(shape, stride) * wire.ITEM_BYTES.get(dtype, 0)
            if size > limit:
                message = f"an output spans more memory than expected; shape {list(shape)}"
                raise self._failure("fault", message, "shape")
            known = dtype if dtype in wire.DTYPES else None
            at = room * self._layout.stride + offset
            claims.append(DeviceClaim(self._keeper, self._held[1], at, size, (address, known, shape, stride)))
        return tuple(claims)

    def _description(self, item: Any) -> tuple[int, str, tuple[int, ...], tuple[int, ...]]:
        if isinstance(item, list) and len(item) == 4 and isinstance(item[1], str):
            address, dtype, shape, stride = item
            if _are_sizes(shape) and _are_sizes(stride) and len(shape) == len(stride) and type(address) is int:
                return address, readable(dtype)[:40], tuple(shape), tuple(stride)
        raise self._failure("protocol", "it describes its outputs in no known way")

    def end(self) -> None:
        """Kill the worker and free its memory."""
        super().end()
        self.queue.close()
        self._release()

    def _release(self) -> None:
        held, self._held, self._pool = self._held, [], None
        self._keeper.release(*held)

    def _failure(self, kind: Any, message: str, phase: str = "output") -> WorkerFailed:
        return WorkerFailed(Failure(kind, phase, message), self.name)


class DeviceSide(QueuedSide, WorkerSeat):
    """A worker on a device.

    All calls find their inputs in one place, and each output is freed before the next call, which gets its memory. So
    all sides find in the caches what they would find in a loop, and what a replay finds.

    Attributes:
        program: that it has loaded.
        keeps_outputs: whether it keeps the outputs of a window's calls until the window ends.
    """

    def __init__(self, name: str, client: Client, station: Station) -> None:
        super().__init__(name, client, station)
        self.program: Program | None = None
        self.keeps_outputs = False
        self._weights: Memory | None = None
        self._waited = 0
        self._idle: Idle | None = None

    # ------------------------------------------------------------------------------------------ setting up

    def load(self, host: Host, program: Program) -> None:
        """See :meth:`WorkerSeat.load`."""
        self._load(host, program, ())

    def _load(self, host: Host, program: Program, before: Sequence[int], **more: Any) -> dict[str, Any]:
        """Load a program; ``before``: descriptors that come before the program's compiled code."""
        self.program = program
        sent = [product_memfd(program.source.encode()), product_memfd(self._station.door)]
        compiled = [product_memfd(program.compiled)] if program.compiled else []
        try:
            return self.client.request(
                "load_on_device",
                timeout_s=LOAD_TIMEOUT_S,
                fds=[*sent, *self.queue.fds(), *before, *compiled],
                role=program.role,
                mode=program.mode,
                threads=program.threads or host.settings.threads,
                library=self._station.device.library,
                device=self._station.device.torch_name,
                checked_by=program.checked_by,
                ghost=program.ghost,
                tf32=program.tf32,
                **more,
            )
        finally:
            for fd in (*sent, *compiled):
                os.close(fd)

    def _forget(self) -> None:
        self._pool = None

    def _hand_weights(self, variant: Variant) -> Mapping[str, Any]:
        self._drop_weights()
        stride = variant.state_bytes
        self._weights, fd = self._keeper.share(stride * len(variant.weights))
        try:
            for draw, drawn in enumerate(variant.weights):
                self._keeper.put(self._weights, drawn, draw * stride)
            return self.client.request(
                "weights",
                timeout_s=SETUP_TIMEOUT_S,
                fds=[fd],
                stride=stride,
                count=len(variant.weights),
                state=[wire.spec_to_json(s) for s in variant.state],
                required=list(variant.required),
            )
        finally:
            os.close(fd)

    def _drop_weights(self) -> None:
        if self._weights is not None:
            self._keeper.release(self._weights)
            self._weights = None

    def idle(self, how: Idle) -> None:
        """From now on calls compute nothing: the cost of the queue itself. Trusted workers only."""
        self._idle = how
        self._waited = 0 if how.ahead else _WAITS

    def fill_ms(self, variant: Variant) -> float | None:
        """What filling the outputs of a call takes by itself, by a graph; None on a stand-in. Trusted workers only."""
        outputs = [wire.spec_to_json(spec) for spec in variant.outputs]
        self.thaw()
        try:
            found = self.client.request("time_fill", timeout_s=SETUP_TIMEOUT_S, outputs=outputs).get("ms")
        finally:
            self.freeze()
        return found if isinstance(found, float) else None

    def _more(self, pool: DevicePool) -> Sequence[int]:
        return (pool.stride,)

    def _take(self, pool: DevicePool, calls: int, rooms: int, shared: Sequence[Shared]) -> None:
        self.client.request(
            "places",
            timeout_s=SETUP_TIMEOUT_S,
            fds=[each.fd for each in shared],
            calls=calls,
            stride=pool.stride,
            inputs=pool.variant.inputs_json(),
            rooms=[list(self._layout.offsets), list(self._layout.sizes), self._layout.stride],
            opened=rooms,
        )
        if self._idle is None:
            self._waited = 0  # what waited at its start may not wait any more

    @property
    def may_launch(self) -> bool:
        """Whether it may have kernels of its own that a recording knows: its code was built here, or says Triton."""
        assert self.program is not None
        return bool(self.client.outcomes) or "triton" in self.program.source

    # ------------------------------------------------------------------------------------------ taking a turn

    @property
    def synchronising(self) -> bool:
        """Whether it waits for its device in its calls, so that they cannot be enqueued ahead."""
        return self._waited >= _WAITS

    def _served(self, variant: Variant, keys: np.ndarray, opened: Sequence[int], call_timeout_s: float) -> QueueWindow:
        asked: dict[str, Any] = {"first": self.queue.first_call(), "calls": len(keys)}
        if self._idle is not None:
            operation = "serve_nothing"
            asked |= {"outputs": [wire.spec_to_json(spec) for spec in variant.outputs], "fill": self._idle.fills}
            asked |= {"wait": not self._idle.ahead}
        else:
            operation = "serve"
            asked |= {"keep": self.keeps_outputs}
        replied = False

        def check_alive() -> None:
            nonlocal replied
            if not replied and self.client.has_replied("forward"):
                self.client.reply("forward", timeout_s=call_timeout_s)  # raises what went wrong
                replied = True

        self.client.send(operation, **asked)
        window = self.queue.window(
            np.arange(len(keys)),
            keys,
            {call: room for room, call in enumerate(opened)},
            check_alive=check_alive,
            call_timeout_s=call_timeout_s,
            ahead=not self.synchronising,
        )
        if not replied:
            self.client.reply("forward", timeout_s=call_timeout_s)
        if not self.synchronising:
            self._waited = self._waited + 1 if window.waits else 0
        return window

    def _described(self, calls: Sequence[int]) -> Any:
        return self.client.request("describe", timeout_s=SETUP_TIMEOUT_S, calls=list(calls)).get("outputs")

    def take_weights(self, draw: int, *, call_timeout_s: float) -> None:
        """See :meth:`Seat.take_weights`. The worker copies them itself."""
        self.thaw()
        try:
            self.client.request("take_weights", timeout_s=max(call_timeout_s, SETUP_TIMEOUT_S), draw=draw)
        finally:
            self.freeze()

    def show(self, slot: int) -> None:
        """Put the plain inputs of a slot into the first place, for calls that are looked at and not timed."""
        assert self._pool is not None
        self._keeper.copy(self._pool.at(slot), (self._held[2], 0), self._pool.stride)

    def end(self) -> None:
        """See :meth:`QueuedSide.end`."""
        super().end()
        self._drop_weights()


def _placed(sizes: Sequence[int]) -> wire_queue.Rooms:
    """One room for outputs of some sizes."""
    offsets, at = [], 0
    for size in sizes:
        offsets.append(at)
        at += -(-size // _ALIGNMENT) * _ALIGNMENT
    return wire_queue.Rooms(offsets, list(sizes), max(at, _ALIGNMENT))


def _are_sizes(values: Any) -> bool:
    return (
        isinstance(values, list)
        and len(values) <= wire.MAX_DIMENSIONS
        and all(type(value) is int and 0 <= value < 1 << 40 for value in values)
    )


def _span(shape: Sequence[int], stride: Sequence[int]) -> int:
    """The number of elements of memory from a tensor's first to its last one."""
    if any(size == 0 for size in shape):
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
