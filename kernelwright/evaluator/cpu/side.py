"""One live worker with its door: what the referee does with a candidate, a twin, or a worker of its own while timing.

A side is frozen whenever it is not its turn, so that it can neither compute ahead nor disturb another one, nor watch
the referee prepare its data.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kernelwright.errors import SandboxError
from kernelwright.evaluator.accuracy.trials import Variant
from kernelwright.evaluator.cpu.pool import Pool
from kernelwright.evaluator.cpu.rest import Watch
from kernelwright.evaluator.cpu.state import Place, are_dense, may_write, places_from_claims, write_state
from kernelwright.evaluator.host.client import Client
from kernelwright.evaluator.host.door import Door, Window
from kernelwright.evaluator.wire import tensors as wire
from kernelwright.evaluator.wire.claims import Failure, WorkerFailed, readable
from kernelwright.sandbox import SharedMemory

SETUP_TIMEOUT_S = 60.0
_UNTIL_IT_COMES_S = 0.0002
_DYING_S = 0.25  # within which a killed worker is gone, large as it may be
_NAME_CHARS = 80  # of a name that a worker tells


class Reading(NamedTuple):
    """What a call of a trusted worker reads: inputs by their positions, in one stream or in four abreast."""

    positions: Sequence[int]
    abreast: bool


class Side:
    """A worker, its door, and the slots that it has mapped.

    Attributes:
        name: role, as timing samples name it.
        client: the worker's socket.
        door: where its calls are revealed.
        frozen: whether it is stopped at the moment.
    """

    def __init__(self, name: str, client: Client, door: Door, *, watched: bool = False) -> None:
        """``watched``: after each window, see whether it rests at the door (where it does not yield the core there)."""
        self.name = name
        self.client = client
        self.frozen = False
        rests = watched and not door.yielding
        self._watch = Watch(client.worker.pid, client) if rests else None
        self.door = door
        self._pool: Pool | None = None
        self._written: SharedMemory | None = None
        self._places: list[Place] | None = None
        self.renamed: list[tuple[str, str]] = []  # names of the reference's tensors and its own, found by order alone

    # ------------------------------------------------------------------------------------------ setting up

    def set_up(self, variant: Variant) -> None:
        """Construct the module of one variant and give it the first draw of the weights.

        Raises:
            WorkerFailed: its constructor raises, or its parameters do not correspond.
        """
        self._pool, self._places = None, None  # a call is bound to the module when its arguments are mapped
        self.client.request(
            "construct",
            timeout_s=SETUP_TIMEOUT_S,
            init=variant.init,
            variant=variant.constants,
            plan=variant.plan.to_json(),
        )
        if not variant.state:
            return
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
        self.renamed = _pairs(reply.get("renamed"))
        if not variant.plan.buffers:  # those are put back before each call, to what the worker believes
            needed = [spec.name in variant.required for spec in variant.state]
            self._places = places_from_claims(reply.get("places"), variant.state, needed)
            if not may_write(self.client.worker.pid):
                self._places = None
            elif self._places is None and self._watch is not None and are_dense(variant.state):
                message = "its parameters share memory or have gaps; keep them dense, as the reference does"
                raise WorkerFailed(Failure("fault", "weights", message), self.name)

    def enter(self, pool: Pool, *, only_reading: Reading | None = None) -> None:
        """Map the slots of ``pool``, unless they are mapped, and go to the door; it stays there running.

        ``only_reading``: what a call reads, and does nothing else (a trusted worker's floor).

        Raises:
            WorkerFailed: it did not.
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
        """Freeze it when it has come to the door and thaw it there; nothing was revealed yet.

        Raises:
            WorkerFailed: it dies, or does not come.
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
        """Have it map the slots of ``pool``.

        Raises:
            WorkerFailed: it did not.
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
        """Out of the door and back to the socket.

        Raises:
            WorkerFailed: it does not come.
        """
        self.thaw()
        self.door.leave()
        self.client.reply("enter", timeout_s=timeout_s)

    # ------------------------------------------------------------------------------------------ taking a turn

    def window(self, slots: np.ndarray, reads: Sequence[int] | np.ndarray, *, call_timeout_s: float) -> Window:
        """Thaw, run one window of calls, freeze again.

        Args:
            slots: (calls,) slots to reveal. reads: positions in ``slots`` after which the outputs are read.

        Raises:
            WorkerFailed: the worker died, raised, hung, claimed an output that is not there, or does not rest.
        """
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
        """Refuse a worker that does not rest, and not one that somebody kills: it stands anywhere while it dies.

        Raises:
            WorkerFailed: it does not rest, or died.
        """
        self._see_alive()
        if complaint := watch.complaint():
            raise WorkerFailed(Failure("fault", "door", complaint), self.name)

    def _see_alive(self) -> None:
        """Give a worker that is being killed the time to be gone.

        Raises:
            WorkerFailed: it is.
        """
        self.client.worker.wait(_DYING_S)
        self.client.check_alive("forward")

    def copy_written(self, slots: np.ndarray) -> None:
        """Give it the inputs of ``slots`` that calls write to, while it is frozen."""
        if self._written is not None and self._pool is not None:
            self._pool.copy_written(self._written, slots)

    @property
    def writable(self) -> bool:
        """Whether its weights can be written from outside."""
        return self._places is not None

    def put_weights(self, drawn: np.ndarray) -> None:
        """Write weights of any values, (state bytes,) uint8, while it is frozen: no code of its own runs.

        Raises:
            WorkerFailed: the worker died, or has no tensors where it says.
        """
        assert self._pool is not None
        assert self._places is not None
        self.freeze()
        try:
            write_state(self.client.worker.pid, self._places, self._pool.variant.state, drawn)
        except OSError:
            self._see_alive()
            failure = Failure("fault", "weights", "its parameters do not lie where it says")
            raise WorkerFailed(failure, self.name) from None

    def take_weights(self, draw: int, *, call_timeout_s: float) -> None:
        """Rewrite the weights, off the clock, so do it before the slots are filled; it is frozen afterwards.

        Where buffers are written by calls the worker does it itself, since it puts those back before each call.

        Raises:
            WorkerFailed: the worker died, raised or hung, or has no tensors where it says.
        """
        assert self._pool is not None
        if self.writable:
            self.put_weights(self._pool.variant.weights[draw])
            return
        self.thaw()
        try:
            order = np.array([wire.LEAVE - 1 - draw])
            self.door.window(self.client, order, [], [], call_timeout_s=call_timeout_s)
        finally:
            self.freeze()

    def freeze(self) -> None:
        """Stop all its tasks, if it lives.

        Raises:
            WorkerFailed: they do not stop (a system call that cannot be interrupted); it was killed.
        """
        if self.frozen or not self.client.worker.alive():
            return
        try:
            self.client.worker.freeze()
        except SandboxError:
            self.client.close()
            message = "its tasks could not be stopped within the time that takes everybody else microseconds"
            raise WorkerFailed(Failure("died", "forward", message), self.name) from None
        self.frozen = True

    def thaw(self) -> None:
        """Let it run on."""
        if self.frozen:
            self.client.worker.thaw()
            self.frozen = False

    def end(self) -> None:
        """Kill the worker and give back what it had."""
        self.client.close()
        self.door.close()
        self._drop_written()

    def _drop_written(self) -> None:
        if self._written is not None:
            self._written.close()
            self._written = None


def _pairs(claim: Any) -> list[tuple[str, str]]:
    """Pairs of names as a worker tells them, which may be anything."""
    pairs = claim if isinstance(claim, list) else []
    told = (pair for pair in pairs if isinstance(pair, list) and len(pair) == 2)
    return [(readable(one)[:_NAME_CHARS], readable(other)[:_NAME_CHARS]) for one, other in told]
