"""A worker of this CPU with its door."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernelwright.evaluator.accuracy.trials import Variant
from kernelwright.evaluator.cpu.pool import Pool
from kernelwright.evaluator.cpu.rest_watch import Watch
from kernelwright.evaluator.host.client import Client
from kernelwright.evaluator.host.door import Door, Window
from kernelwright.evaluator.host.host import Host, Program
from kernelwright.evaluator.host.seat import SETUP_TIMEOUT_S, WorkerSeat
from kernelwright.evaluator.timing.state import Place, are_dense, may_write, places_from_claims, write_state
from kernelwright.evaluator.wire import tensors as wire
from kernelwright.evaluator.wire.claims import Failure, WorkerFailed
from kernelwright.sandbox import SharedMemory

_UNTIL_IT_COMES_S = 0.0002


class Reading(NamedTuple):
    """The inputs that a call of a trusted worker reads, by position, in one stream or in four abreast."""

    positions: Sequence[int]
    abreast: bool


class Side(WorkerSeat):
    """A worker, its door, and the slots that it has mapped.

    Attributes:
        door: reveals its calls.
    """

    def __init__(self, name: str, client: Client, door: Door, *, watched: bool = False) -> None:
        """``watched``: after each window, see whether it rests at the door, unless the door yields the core."""
        super().__init__(name, client)
        rests = watched and not door.yielding
        self._watch = Watch(client.worker.pid, client) if rests else None
        self.door = door
        self._pool: Pool | None = None
        self._written: SharedMemory | None = None
        self._places: list[Place] | None = None

    # ------------------------------------------------------------------------------------------ setting up

    def load(self, host: Host, program: Program) -> None:
        """See :meth:`WorkerSeat.load`."""
        host.load(self.client, self.door, program)

    def _forget(self) -> None:
        self._pool, self._places = None, None  # a call is bound to the module when its arguments are mapped

    def _hand_weights(self, variant: Variant) -> Mapping[str, Any]:
        stride = variant.state_bytes
        with SharedMemory.create(stride * len(variant.weights), "weights") as memory:
            arena = np.frombuffer(memory.view, dtype=np.uint8).reshape(-1, stride)
            for row, drawn in zip(arena, variant.weights, strict=True):
                row[:] = drawn
            memory.seal()
            reply = self.client.request(
                "weights",
                timeout_s=SETUP_TIMEOUT_S,
                fds=[memory.fd],
                stride=stride,
                count=len(variant.weights),
                state=[wire.spec_to_json(s) for s in variant.state],
                required=list(variant.required),
            )
        if not variant.plan.buffers:  # else the worker itself puts them back before each call
            needed = [spec.name in variant.required for spec in variant.state]
            self._places = places_from_claims(reply.get("places"), variant.state, needed)
            if not may_write(self.client.worker.pid):
                self._places = None
            elif self._places is None and self._watch is not None and are_dense(variant.state):
                message = "its parameters share memory or have gaps; keep them dense, as the reference does"
                raise WorkerFailed(Failure("fault", "weights", message), self.name)
        return reply

    def enter(self, pool: Pool, *, only_reading: Reading | None = None) -> None:
        """Map the slots of ``pool``, unless they are mapped, and send the worker to the door. It keeps running there.

        ``only_reading``: the inputs that calls read without doing anything else (a trusted worker's floor).

        Raises:
            WorkerFailed: it fails to map them or to come.
        """
        if self._pool is not pool or only_reading is not None:
            self.map(pool)
        if only_reading is not None:
            self.client.request(
                "floor", timeout_s=SETUP_TIMEOUT_S, positions=list(only_reading.positions), abreast=only_reading.abreast
            )
        self.client.send("enter", yielding=self.door.yielding)
        if self._watch is not None:
            self._see_arrive(self._watch)

    def _see_arrive(self, watch: Watch) -> None:
        """Wait until the worker has come to the door, before anything is revealed. Each look freezes and thaws it.

        Raises:
            WorkerFailed: it dies, or does not come in time.
        """
        deadline = time.monotonic() + SETUP_TIMEOUT_S
        watch.forget()
        while True:
            self.freeze()
            arrived = watch.arrived()
            self.thaw()
            self.client.check_alive("forward")
            if arrived:
                return
            if time.monotonic() > deadline:
                raise WorkerFailed(Failure("timeout", "forward", "it does not come to the door"), self.name)
            time.sleep(_UNTIL_IT_COMES_S)

    def map(self, pool: Pool) -> None:
        """Have the worker map the slots of ``pool``.

        Raises:
            WorkerFailed: it fails to.
        """
        fds, written_stride = [pool.memory.fd], pool.variant.written_bytes
        self._drop_written()
        if written_stride:
            self._written = SharedMemory.create(written_stride * pool.slots, "written")
            fds.append(self._written.fd)
        self.client.request(
            "slots",
            timeout_s=SETUP_TIMEOUT_S,
            fds=fds,
            size=pool.memory.size,
            count=pool.slots,
            stride=pool.stride,
            inputs=pool.variant.arguments_json(),
            written_stride=written_stride,
        )
        self._pool = pool

    def leave(self, *, timeout_s: float) -> None:
        """Call the worker from the door back to its socket; see :meth:`Seat.leave`."""
        self.thaw()
        self.door.leave()
        self.client.reply("enter", timeout_s=timeout_s)

    # ------------------------------------------------------------------------------------------ taking a turn

    def window(self, slots: np.ndarray, reads: Sequence[int] | np.ndarray, *, call_timeout_s: float) -> Window:
        """See :meth:`Seat.window`."""
        assert self._pool is not None
        self.copy_written(slots)
        capacity = self._pool.variant.capacity()
        try:
            window = self.door.window(
                self.client,
                slots,
                reads,
                capacity,
                call_timeout_s=call_timeout_s,
                begin=self.thaw,
                finish=self.freeze,
            )
        finally:
            self.freeze()
        if self._watch is not None and self._watch.complaint():
            self._object(self._watch)
        return window

    def _object(self, watch: Watch) -> None:
        """Fail a worker that does not rest. A worker that is being killed may stop anywhere, so it is waited for first.

        Raises:
            WorkerFailed: it does not rest, or died.
        """
        self.see_alive()
        if complaint := watch.complaint():
            raise WorkerFailed(Failure("fault", "door", complaint), self.name)

    def copy_written(self, slots: np.ndarray) -> None:
        """Give the frozen worker its own copy of those inputs in ``slots`` that calls write to."""
        if self._written is not None and self._pool is not None:
            self._pool.copy_written(self._written, slots)

    @property
    def writer(self) -> Callable[[np.ndarray], None] | None:
        """See :attr:`Seat.writer`; none of the worker's code runs."""
        return None if self._places is None else self._put_weights

    def _put_weights(self, drawn: np.ndarray) -> None:
        assert self._pool is not None
        assert self._places is not None
        self.freeze()
        try:
            write_state(self.client.worker.pid, self._places, self._pool.variant.state, drawn)
        except OSError:
            self.see_alive()
            failure = Failure("fault", "weights", "its parameters do not lie where it says")
            raise WorkerFailed(failure, self.name) from None

    def take_weights(self, draw: int, *, call_timeout_s: float) -> None:
        """Rewrite the weights, off the clock and thus before the slots are filled. The worker is frozen afterwards.

        If calls write buffers, the worker does this itself, since it puts buffers back before each call.

        Raises:
            WorkerFailed: the worker died, raised or hung, or its tensors are not where it says.
        """
        assert self._pool is not None
        if (write := self.writer) is not None:
            write(self._pool.variant.weights[draw])
            return
        self.thaw()
        try:
            order = np.array([wire.LEAVE - 1 - draw])
            self.door.window(self.client, order, [], [], call_timeout_s=call_timeout_s)
        finally:
            self.freeze()

    def end(self) -> None:
        """Kill the worker, close its door and free its memory."""
        super().end()
        self.door.close()
        self._drop_written()

    def _drop_written(self) -> None:
        if self._written is not None:
            self._written.close()
            self._written = None
