"""A worker that computes on a device: sealed inputs, calls that it has enqueued ahead, outputs that are opened on it.

The queue reveals each call with the key of its inputs, and takes its time until the digest of its outputs. Only then
are outputs of secret calls opened: copied, by a kernel of ours, to where the keeper judges them. See ``device.queue``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kernelwright.errors import MachineError
from kernelwright.evaluator.accuracy.trials import Variant
from kernelwright.evaluator.device.claims import DeviceClaim
from kernelwright.evaluator.device.keeper_client import Memory
from kernelwright.evaluator.device.pool import DevicePool
from kernelwright.evaluator.device.queue import Queue, QueueWindow, fresh_keys
from kernelwright.evaluator.device.station import Station
from kernelwright.evaluator.host.client import Client
from kernelwright.evaluator.host.door import Window
from kernelwright.evaluator.host.host import LOAD_TIMEOUT_S, Host, Program
from kernelwright.evaluator.host.seat import SETUP_TIMEOUT_S, Seat
from kernelwright.evaluator.wire import tensors as wire
from kernelwright.evaluator.wire.claims import Failure, OutputClaim, WorkerFailed, readable
from kernelwright.evaluator.wire.queue import MOST_CALLS
from kernelwright.sandbox import product_memfd

_COMPARED = ("candidate", "eager")  # roles whose outputs are opened
_GRAPHS = ("compile-max-autotune", "compile-reduce-overhead")  # their outputs lie in the graph's own memory
_PLACES = 2  # for plain inputs, taken in turn
_ROOMS = 8  # for outputs of opened calls, at first
_ALIGNMENT = 16
_MOST_DESCRIBED = 200  # outputs whose descriptions surely fit into one message
_WAITS = 2  # windows in a row that were not enqueued ahead, after which none is waited for


class DeviceSide(Seat):
    """A worker on a device, its queue, and the memory that it shares with the keeper.

    Candidate and reference keep the outputs of a window's calls, so fresh memory counts for both. torch.compile's
    graphs keep one: theirs lie in the same memory each time.
    """

    def __init__(self, name: str, client: Client, station: Station) -> None:
        super().__init__(name, client)
        self._station = station
        self._keeper = station.keeper
        self.queue = Queue(station.queues, name)
        self._pool: DevicePool | None = None
        self._held: list[Memory] = []  # sealed inputs, places of plain ones, opened outputs
        self._weights: Memory | None = None
        self._rooms = 0
        self._room_offsets: list[int] = []
        self._room_stride = 0
        self._waited = 0
        self._idles = False

    # ------------------------------------------------------------------------------------------ setting up

    def load(self, host: Host, program: Program) -> None:
        """See :meth:`Seat.load`."""
        sent = [product_memfd(program.source.encode()), product_memfd(self._station.door)]
        more = [product_memfd(program.compiled)] if program.compiled else []
        try:
            self.client.request(
                "load_on_device",
                timeout_s=LOAD_TIMEOUT_S,
                fds=[*sent, *self.queue.fds(), *more],
                role=program.role,
                mode=program.mode,
                threads=program.threads or host.settings.threads,
                library=self._station.device.library,
                device=self._station.device.torch_name,
                checked_by=program.checked_by,
                ghost=program.ghost,
                tf32=program.tf32,
            )
        finally:
            for fd in (*sent, *more):
                os.close(fd)

    def _forget(self) -> None:
        self._pool = None

    def _hand_weights(self, variant: Variant) -> Mapping[str, Any]:
        stride = variant.state_bytes
        if self._weights is not None:
            self._keeper.release(self._weights)
        with self._shared(stride * len(variant.weights)) as (memory, fd):
            self._weights = memory
            for draw, drawn in enumerate(variant.weights):
                self._keeper.put(memory, drawn, draw * stride)
            return self.client.request(
                "weights",
                timeout_s=SETUP_TIMEOUT_S,
                fds=[fd],
                stride=stride,
                count=len(variant.weights),
                state=[wire.spec_to_json(s) for s in variant.state],
                required=list(variant.required),
            )

    def idle(self) -> None:
        """From now on calls compute nothing: the cost of the queue itself. Trusted workers only."""
        self._idles = True

    def enter(self, pool: DevicePool) -> None:
        """See :meth:`Seat.enter`."""
        if self._pool is not pool:
            self._map(pool, _ROOMS)

    def _map(self, pool: DevicePool, rooms: int) -> None:
        """Share memory for calls on ``pool`` with the worker, with room for the outputs of ``rooms`` calls."""
        self._release()
        sizes = pool.variant.capacity()
        places, self._room_stride = _placed(sizes)
        self._room_offsets, self._rooms = places, rooms
        calls = min(pool.slots, MOST_CALLS)
        with contextlib.ExitStack() as closing:
            wanted = pool.stride * calls, pool.stride * _PLACES, self._room_stride * rooms
            shared = [closing.enter_context(self._shared(size)) for size in wanted]
            self._held = [memory for memory, _ in shared]
            self.client.request(
                "places",
                timeout_s=SETUP_TIMEOUT_S,
                fds=[fd for _, fd in shared],
                calls=calls,
                stride=pool.stride,
                places=_PLACES,
                inputs=pool.variant.inputs_json(),
                rooms=[places, sizes, self._room_stride],
                opened=rooms,
            )
        self._pool = pool

    @contextlib.contextmanager
    def _shared(self, size: int) -> Iterator[tuple[Memory, int]]:
        """Memory that the worker can map, with a descriptor that is closed afterwards."""
        memory, fd = self._keeper.share(max(size, _ALIGNMENT))
        try:
            yield memory, fd
        finally:
            os.close(fd)

    def leave(self, *, timeout_s: float) -> None:
        """See :meth:`Seat.leave`. It waits at its socket between windows."""
        self.thaw()

    # ------------------------------------------------------------------------------------------ taking a turn

    @property
    def synchronising(self) -> bool:
        """Whether it waits for its device in its calls, so that they cannot be enqueued ahead."""
        return self._waited >= _WAITS

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

    def _served(self, variant: Variant, keys: np.ndarray, opened: Sequence[int], call_timeout_s: float) -> QueueWindow:
        """Have the worker enqueue a window's calls, and reveal them."""
        asked: dict[str, Any] = {"first": self.queue.first_call(), "calls": len(keys)}
        if self._idles:
            operation = "serve_nothing"
            asked |= {"outputs": [wire.spec_to_json(spec) for spec in variant.outputs]}
        else:
            operation = "serve"
            asked |= {"keep": self.name not in _GRAPHS}
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
        self._waited = 0 if window.together else self._waited + 1
        return window

    def _opened(self, variant: Variant, window: QueueWindow) -> dict[int, tuple[OutputClaim, ...]]:
        """The outputs of opened calls, compared with the digests that acknowledged them.

        Raises:
            WorkerFailed: an output has changed since, or is malformed.
        """
        calls, found = list(window.places), {}
        at_once = max(_MOST_DESCRIBED // max(len(variant.outputs), 1), 1)
        for first in range(0, len(calls), at_once):
            part = calls[first : first + at_once]
            described = self.client.request("describe", timeout_s=SETUP_TIMEOUT_S, calls=part).get("outputs")
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
        for item, limit, offset in zip(items, capacity, self._room_offsets, strict=True):
            address, dtype, shape, stride = self._description(item)
            size = _span(shape, stride) * wire.ITEM_BYTES.get(dtype, 0)
            if size > limit:
                message = f"an output spans more memory than expected; shape {list(shape)}"
                raise self._failure("fault", message, "shape")
            known = dtype if dtype in wire.DTYPES else None
            at = room * self._room_stride + offset
            claims.append(DeviceClaim(self._keeper, self._held[2], at, size, (address, known, shape, stride)))
        return tuple(claims)

    def _description(self, item: Any) -> tuple[int, str, tuple[int, ...], tuple[int, ...]]:
        if isinstance(item, list) and len(item) == 4 and isinstance(item[1], str):
            address, dtype, shape, stride = item
            if _are_sizes(shape) and _are_sizes(stride) and len(shape) == len(stride) and type(address) is int:
                return address, readable(dtype)[:40], tuple(shape), tuple(stride)
        raise self._failure("protocol", "it describes its outputs in no known way")

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
        self._keeper.copy(self._pool.at(slot), (self._held[1], 0), self._pool.stride)

    def end(self) -> None:
        """Kill the worker and free its memory."""
        super().end()
        self.queue.close()
        self._release()
        if self._weights is not None:
            with contextlib.suppress(MachineError):
                self._keeper.release(self._weights)
            self._weights = None

    def _release(self) -> None:
        held, self._held, self._pool = self._held, [], None
        with contextlib.suppress(MachineError):  # where the keeper has ended, its memory is free
            for memory in held:
                self._keeper.release(memory)

    def _failure(self, kind: Any, message: str, phase: str = "output") -> WorkerFailed:
        return WorkerFailed(Failure(kind, phase, message), self.name)


def _placed(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Offsets of outputs of some sizes in one room, and the room's bytes."""
    offsets, at = [], 0
    for size in sizes:
        offsets.append(at)
        at += -(-size // _ALIGNMENT) * _ALIGNMENT
    return offsets, max(at, _ALIGNMENT)


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
