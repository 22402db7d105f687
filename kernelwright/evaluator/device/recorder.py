"""Records a candidate's call in a worker of its own, and replays it: the seat of clock R.

The recording worker gets all of its memory from one arena, which the keeper holds. It is gone when the replay begins.
Weights are written into the arena by the keeper, so no code of the candidate's runs from then on.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kernelwright.errors import MachineError
from kernelwright.evaluator.accuracy.trials import Variant
from kernelwright.evaluator.device.keeper_client import Memory
from kernelwright.evaluator.device.pool import DevicePool
from kernelwright.evaluator.device.queue import QueueWindow
from kernelwright.evaluator.device.replay import (
    AddressTaken,
    CannotReplay,
    LaunchStep,
    Plan,
    PlanOutput,
    Replay,
    ReplayMemory,
    parse_plan,
)
from kernelwright.evaluator.device.side import DeviceSide, QueuedSide, Shared
from kernelwright.evaluator.device.station import Station
from kernelwright.evaluator.host.client import Client
from kernelwright.evaluator.host.host import Host, Program
from kernelwright.evaluator.host.seat import SETUP_TIMEOUT_S
from kernelwright.evaluator.timing.state import Place, places_from_claims, values_of
from kernelwright.evaluator.wire.claims import WorkerFailed
from kernelwright.sandbox import product_memfd

__all__ = ["Recorder", "ReplaySide", "idle_replay"]

_LEAST_ARENA, _LEAST_GPU_ARENA = 256 << 20, 1 << 30  # Triton's autotuner alone takes 256 MB
_MOST_PLAN, _MOST_CODE = 16 << 20, 256 << 20  # bytes; a module of torch's has 22 MB
_STARTS = 3  # of a process, which may have put something else at the recorded addresses
_OUTPUTS_ALIGNED = 512
_ADDRESSES = range(1 << 40, 1 << 48)  # where processes of 64 bits map memory of a device
_IDLE_BASE = 0x610000000000  # where the memory of a replay of nothing lies
_TIMES = 4  # the bytes of inputs, weights and outputs that a candidate may take in all


class Recorder(DeviceSide):
    """A worker of a candidate whose call is recorded."""

    def __init__(self, name: str, client: Client, station: Station) -> None:
        super().__init__(name, client, station)
        self._arena: Memory | None = None
        self._arena_fd = -1
        self._base = 0
        self._places: list[Place] | None = None

    def record(
        self, host: Host, program: Program, variant: Variant, pool: DevicePool, *, everything: bool
    ) -> ReplaySide:
        """Record a call and end the worker. Returns a seat that replays it.

        Args:
            everything: with what libraries launch, as CUPTI tells it; else with what the candidate launches itself.

        Raises:
            NotAllRecorded: a part of its work was not recorded.
            CannotReplay: it cannot be replayed; the message says why.
        """
        try:
            claim, claimed = self._recorded(host, program, variant, pool, everything=everything)
        except WorkerFailed as failed:
            raise CannotReplay(f"its call cannot be recorded: {failed.failure.message}") from None
        images = [outcome.product for outcome in self.client.outcomes if outcome.product is not None]
        images += claimed
        assert self._arena is not None
        plan = parse_plan(claim, images, range(self._base, self._base + self._arena.size), everything=everything)
        if variant.state and self._places is None:
            raise CannotReplay(
                "its parameters share memory, have gaps or are written, or lie outside of its own memory"
            )
        arena, fd, self._arena, self._arena_fd = self._arena, self._arena_fd, None, -1
        memory = ReplayMemory(fd, arena.size, self._base)
        return ReplaySide(self.name, self.client, self._station, plan, images, arena, memory, self._places or [])

    def _recorded(
        self, host: Host, program: Program, variant: Variant, pool: DevicePool, *, everything: bool
    ) -> tuple[Any, list[bytes]]:
        """The plan, and machine code that was not built here: claims."""
        outputs = sum(spec.span_bytes for spec in variant.outputs)
        least = _LEAST_GPU_ARENA if self._station.device.is_gpu else _LEAST_ARENA
        size = least + _TIMES * (variant.slot_bytes + variant.state_bytes + outputs)
        self._arena, self._arena_fd = self._keeper.share(size)
        library = product_memfd(self._station.arena_library)
        try:
            reply = self._load(host, program, [library, self._arena_fd], arena=self._arena.size, everything=everything)
        finally:
            os.close(library)
        base = reply.get("arena")
        self._base = base if type(base) is int and 0 <= base < 1 << 57 else 0
        self.set_up(variant)
        found = self.client.request(
            "place", timeout_s=SETUP_TIMEOUT_S, stride=pool.stride, inputs=variant.inputs_json()
        ).get("place")
        if type(found) is not int or not 0 <= found - self._base <= self._arena.size - pool.stride:
            raise CannotReplay("its inputs lie outside of its own memory")
        self._keeper.copy(pool.at(0), (self._arena, found - self._base), pool.stride)
        reply = self.client.request("record", timeout_s=SETUP_TIMEOUT_S)
        plan, *images = self._parts(reply.get("sizes"))
        try:
            return json.loads(plan), images
        except (ValueError, RecursionError):
            raise CannotReplay("its plan is malformed") from None

    def _parts(self, claimed: Any) -> list[bytes]:
        """What it has recorded: the plan, then images."""
        sizes = claimed if isinstance(claimed, list) else []
        sensible = bool(sizes) and all(type(size) is int and size > 0 for size in sizes)
        if not sensible or sizes[0] > _MOST_PLAN or sum(sizes) > _MOST_CODE:
            raise CannotReplay("its plan and its machine code have no sensible size")
        fd = os.memfd_create("recorded")
        try:
            self.client.request("recorded", timeout_s=SETUP_TIMEOUT_S, fds=[fd], size=sum(sizes))
            whole, at, parts = os.pread(fd, sum(sizes), 0), 0, []
        finally:
            os.close(fd)
        for size in sizes:
            parts.append(whole[at : at + size])
            at += size
        return parts

    def _hand_weights(self, variant: Variant) -> Mapping[str, Any]:
        reply = super()._hand_weights(variant)
        assert self._arena is not None
        needed = [spec.name in variant.required for spec in variant.state]
        found = places_from_claims(reply.get("places"), variant.state, needed)
        ours = range(self._base, self._base + self._arena.size)
        inside = found is not None and all(
            place.address in ours and place.address + place.spec.span_bytes <= ours.stop for place in found
        )
        self._places = found if inside and not variant.plan.buffers else None
        return reply

    def end(self) -> None:
        """See :meth:`QueuedSide.end`."""
        super().end()
        if self._arena is not None:
            self._keeper.release(self._arena)
            self._arena = None
        if self._arena_fd >= 0:
            os.close(self._arena_fd)
            self._arena_fd = -1


class ReplaySide(QueuedSide):
    """A recorded call in a process of ours."""

    def __init__(
        self,
        name: str,
        client: Client,
        station: Station,
        plan: Plan,
        images: Sequence[bytes],
        arena: Memory,
        memory: ReplayMemory,
        places: Sequence[Place],
    ) -> None:
        """``client``: of the worker that recorded it, which is ended. ``memory``: the arena's descriptor, owned."""
        super().__init__(name, client, station)
        client.close()
        self.plan = plan
        self._images = images
        self._arena = arena
        self._memory = memory
        self._places = places
        self._replay: Replay | None = None
        self._has_run = False

    def strangers(self) -> int:
        """How many words of its launches' parameters look like addresses that lie outside of its memory."""
        base = self._memory.address or 0
        words = [
            struct.unpack_from("<Q", bytes.fromhex(step.parameters), at)[0]
            for step in self.plan.steps
            if isinstance(step, LaunchStep)
            for start, size in step.fields
            for at in range(start, start + size - 7, 8)
        ]
        return sum(word in _ADDRESSES and not base <= word <= base + self._memory.size for word in words)

    def freeze(self) -> None:
        """Nothing: it waits for the next window, and none of the candidate's code is on a processor."""

    def thaw(self) -> None:
        """Nothing, see :meth:`freeze`."""

    def _take(self, pool: DevicePool, calls: int, rooms: int, shared: Sequence[Shared]) -> None:
        self._end_replay()
        for left in reversed(range(_STARTS)):
            try:
                self._replay = self._started(pool, shared)
                self._has_run = True
                return
            except CannotReplay as error:
                if left and isinstance(error, AddressTaken):
                    continue
                if self._has_run:
                    raise MachineError(f"a replay that ran before does not start any more: {error}") from None
                raise

    def _started(self, pool: DevicePool, shared: Sequence[Shared]) -> Replay:
        """A replay in a new process.

        Raises:
            CannotReplay: it does not start.
        """
        sealed, opened = shared
        return Replay(
            self._station.replayer,
            self._station.device.library,
            self.plan,
            door=self._station.door,
            images=self._images,
            pages=self.queue.fds(),
            arena=self._memory,
            sealed=ReplayMemory(sealed.fd, sealed.memory.size),
            opened=ReplayMemory(opened.fd, opened.memory.size),
            slot_bytes=pool.stride,
            rooms=self._layout,
            cpus=self._station.worker_cpus,
            name=self.name,
            env=self._station.device.variables(),  # and none of ours, which may hold keys
        )

    def _served(self, variant: Variant, keys: np.ndarray, opened: Sequence[int], call_timeout_s: float) -> QueueWindow:
        assert self._replay is not None
        self._replay.enqueue(self.queue.first_call(), len(keys))
        window = self.queue.window(
            np.arange(len(keys)),
            keys,
            {call: room for room, call in enumerate(opened)},
            check_alive=self._replay.check_alive,
            call_timeout_s=call_timeout_s,
        )
        self._replay.finish()
        return window

    def _described(self, calls: Sequence[int]) -> Any:
        return [self.plan.described for _ in calls]

    def take_weights(self, draw: int, *, call_timeout_s: float) -> None:
        """See :meth:`Seat.take_weights`; the keeper writes them."""
        assert self._pool is not None
        self._put_weights(self._pool.variant.weights[draw])

    @property
    def writer(self) -> Callable[[np.ndarray], None]:
        """See :attr:`Seat.writer`."""
        return self._put_weights

    def _put_weights(self, drawn: np.ndarray) -> None:
        assert self._pool is not None
        assert self._memory.address is not None
        by_name = {spec.name: spec for spec in self._pool.variant.state}
        for address, theirs in self._places:
            data = np.frombuffer(values_of(drawn, by_name[theirs.name], theirs), dtype=np.uint8)
            self._keeper.put(self._arena, data, address - self._memory.address)

    def end(self) -> None:
        """See :meth:`QueuedSide.end`."""
        self._end_replay()
        super().end()
        self._keeper.release(self._arena)
        if self._memory.fd >= 0:
            os.close(self._memory.fd)
            self._memory = self._memory._replace(fd=-1)

    def _end_replay(self) -> None:
        if self._replay is not None:
            self._replay.end()
            self._replay = None


def idle_replay(client: Client, station: Station, variant: Variant) -> ReplaySide:
    """A replay of a call that computes nothing, with outputs as large as a call's. ``client``: of any worker."""
    places, at = [], variant.slot_bytes
    for spec in variant.outputs:
        at = -(-at // _OUTPUTS_ALIGNED) * _OUTPUTS_ALIGNED
        places.append(PlanOutput(at=_IDLE_BASE + at, size=spec.span_bytes))
        at += spec.span_bytes
    plan = Plan(steps=[], place=_IDLE_BASE, outputs=places)
    arena, fd = station.keeper.share(at)
    return ReplaySide("empty", client, station, plan, [], arena, ReplayMemory(fd, arena.size, _IDLE_BASE), [])
