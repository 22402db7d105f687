"""One live worker with its door: a candidate, a twin, or a worker of the referee's own.

A side is frozen whenever it is not its turn. So it can neither compute ahead, nor disturb another side, nor watch the
referee prepare its data.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kernelwright.errors import SandboxError
from kernelwright.evaluator.accuracy.trials import Variant
from kernelwright.evaluator.cpu.pool import Pool
from kernelwright.evaluator.cpu.rest_watch import Watch
from kernelwright.evaluator.cpu.state import Place, are_dense, may_write, places_from_claims, write_state
from kernelwright.evaluator.host.client import Client
from kernelwright.evaluator.host.door import Door, Window
from kernelwright.evaluator.wire import tensors as wire
from kernelwright.evaluator.wire.claims import Failure, WorkerFailed, readable
from kernelwright.sandbox import SharedMemory

SETUP_TIMEOUT_S = 60.0
_UNTIL_IT_COMES_S = 0.0002
_DYING_S = 0.25  # a killed worker is gone within this time, however large it is
_NAME_CHARS = 80  # of a name that a worker tells


class Reading(NamedTuple):
    """The inputs that a call of a trusted worker reads, by position, in one stream or in four abreast."""

    positions: Sequence[int]
    abreast: bool


class Side:
    """A worker, its door, and the slots that it has mapped.

    Attributes:
        name: role, as timing samples name it.
        client: the worker's socket.
        door: reveals its calls.
        frozen: whether it is stopped at the moment.
    """

    def __init__(self, name: str, client: Client, door: Door, *, watched: bool = False) -> None:
        """``watched``: after each window, see whether it rests at the door, unless the door yields the core."""
        self.name = name
        self.client = client
        self.frozen = False
        rests = watched and not door.yielding
        self._watch = Watch(client.worker.pid, client) if rests else None
        self.door = door
        self._pool: Pool | None = None
        self._written: SharedMemory | None = None
        self._places: list[Place] | None = None
        self.renamed: list[tuple[str, str]] = []  # reference's and own tensor names, matched by order

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
        if not variant.plan.buffers:  # else the worker itself puts them back before each call
            needed = [spec.name in variant.required for spec in variant.state]
            self._places = places_from_claims(reply.get("places"), variant.state, needed)
            if not may_write(self.client.worker.pid):
                self._places = None
            elif self._places is None and self._watch is not None and are_dense(variant.state):
                message = "its parameters share memory or have gaps; keep them dense, as the reference does"
                raise WorkerFailed(Failure("fault", "weights", message), self.name)

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
        """Call the worker from the door back to its socket.

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
        """Fail a worker that does not rest. A worker that is being killed may stop anywhere, so it is waited for first.

        Raises:
            WorkerFailed: it does not rest, or died.
        """
        self._see_alive()
        if complaint := watch.complaint():
            raise WorkerFailed(Failure("fault", "door", complaint), self.name)

    def _see_alive(self) -> None:
        """Give a worker that is being killed the time to end.

        Raises:
            WorkerFailed: it has ended.
        """
        self.client.worker.wait(_DYING_S)
        self.client.check_alive("forward")

    def copy_written(self, slots: np.ndarray) -> None:
        """Give the frozen worker its own copy of those inputs in ``slots`` that calls write to."""
        if self._written is not None and self._pool is not None:
            self._pool.copy_written(self._written, slots)

    @property
    def writable(self) -> bool:
        """Whether its weights can be written from outside."""
        return self._places is not None

    def put_weights(self, drawn: np.ndarray) -> None:
        """Write any weights, (state bytes,) uint8, into the frozen worker: none of its code runs.

        Raises:
            WorkerFailed: the worker died, or its tensors are not where it says.
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
        """Rewrite the weights, off the clock and thus before the slots are filled. The worker is frozen afterwards.

        If calls write buffers, the worker does this itself, since it puts buffers back before each call.

        Raises:
            WorkerFailed: the worker died, raised or hung, or its tensors are not where it says.
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
        """Stop all tasks of the worker, if it lives.

        Raises:
            WorkerFailed: they do not stop (a system call that cannot be interrupted). The worker was killed.
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
        """Let the worker run on."""
        if self.frozen:
            self.client.worker.thaw()
            self.frozen = False

    def end(self) -> None:
        """Kill the worker, close its door and free its memory."""
        self.client.close()
        self.door.close()
        self._drop_written()

    def _drop_written(self) -> None:
        if self._written is not None:
            self._written.close()
            self._written = None


def _pairs(claim: Any) -> list[tuple[str, str]]:
    """Pairs of names out of a worker's claim, which may be anything."""
    pairs = claim if isinstance(claim, list) else []
    told = (pair for pair in pairs if isinstance(pair, list) and len(pair) == 2)
    return [(readable(one)[:_NAME_CHARS], readable(other)[:_NAME_CHARS]) for one, other in told]
