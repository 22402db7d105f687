"""A worker that computes on a device: the same turns through the same door, with outputs that stay on the device.

A call acknowledges with a digest of all bytes of its outputs, keyed by the nonce that revealed the call. So it cannot
be computed before the last byte is there. Once the clock has stopped, outputs of calls that the worker cannot foresee
are copied to the referee, which computes their digests anew. Reading every output once is part of both sides' timed
work, and is never subtracted.

Such timings are not confirmed, since one hole is left: inputs reach the device before a window begins, and a device
cannot be frozen as a process can, so work might be done ahead of the clock.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernelwright.evaluator.accuracy.trials import Variant
from kernelwright.evaluator.cpu.pool import Pool
from kernelwright.evaluator.cpu.side import SETUP_TIMEOUT_S, Reading, Side
from kernelwright.evaluator.host.client import Client
from kernelwright.evaluator.host.door import Door, DoorLibrary, Window
from kernelwright.evaluator.wire import tensors as wire
from kernelwright.evaluator.wire.claims import Failure, OutputClaim, WorkerFailed, readable
from kernelwright.sandbox import SharedMemory

_COMPARED = ("candidate", "eager")
_GRAPHS = ("compile-max-autotune", "compile-reduce-overhead")
_REFRESH_TIMEOUT_S = 60.0
_MOST_DESCRIBED = 200  # outputs whose descriptions surely fit into one message
_MOST_DELIVERED = 1 << 30  # bytes of outputs at a time


class DeviceSide(Side):
    """A :class:`Side` on a device.

    All sides keep the outputs of a window's calls, since fresh memory for each call takes time. The exceptions are
    torch.compile's graphs: their outputs lie in the graph's own memory. Candidate and reference hand outputs over.
    """

    def __init__(self, name: str, client: Client, door: Door, library: DoorLibrary) -> None:
        super().__init__(name, client, door)
        self._library = library
        self._delivers = name in _COMPARED
        self._keeps = name not in _GRAPHS

    def enter(self, pool: Pool, *, only_reading: Reading | None = None) -> None:
        """See :meth:`Side.enter`."""
        assert only_reading is None
        if self._pool is not pool:
            self.map(pool)
        self.client.send("enter", yielding=self.door.yielding, keep=self._keeps)

    def window(self, slots: np.ndarray, reads: Sequence[int] | np.ndarray, *, call_timeout_s: float) -> Window:
        """See :meth:`Side.window`; the device gets fresh inputs first.

        Raises:
            WorkerFailed: as there; also if an output is not what was acknowledged.
        """
        assert self._pool is not None
        variant = self._pool.variant
        read = np.asarray(reads if self._delivers else (), dtype=np.int64)
        self.copy_written(slots)
        self.thaw()
        try:
            refresh = np.array([wire.REFRESH])
            self.door.window(self.client, refresh, [], [], call_timeout_s=max(call_timeout_s, _REFRESH_TIMEOUT_S))
            window = self.door.window(self.client, slots, read, [8 * wire.MAX_OUTPUTS], call_timeout_s=call_timeout_s)
            if len(read) == 0:
                return window
            self.leave(timeout_s=call_timeout_s)
            outputs: dict[int, tuple[OutputClaim, ...]] = {}
            at_once = max(_MOST_DESCRIBED // max(len(variant.outputs), 1), 1)
            for first in range(0, len(read), at_once):
                outputs |= self._delivered(variant, read[first : first + at_once], window)
            self.enter(self._pool)
            return window._replace(outputs=outputs)
        finally:
            self.freeze()

    def _delivered(self, variant: Variant, calls: np.ndarray, window: Window) -> dict[int, tuple[OutputClaim, ...]]:
        """The outputs of some calls, compared with the digests that acknowledged them.

        Raises:
            WorkerFailed: an output has changed since, or is malformed.
        """
        wanted = [int(call) for call in calls]
        reply = self.client.request("describe_kept", timeout_s=SETUP_TIMEOUT_S, calls=wanted)
        described = reply.get("outputs")
        if not isinstance(described, list) or len(described) != len(wanted):
            raise self._failure("protocol", "it hands over something else than its outputs")
        claims = [self._claims(items, variant.capacity()) for items in described]
        found: dict[int, tuple[OutputClaim, ...]] = {}
        while len(found) < len(wanted):
            group, size = 0, 0
            while len(found) + group < len(wanted):
                bytes_ = sum(claim.data.size for claim in claims[len(found) + group])
                if group and size + bytes_ > _MOST_DELIVERED:
                    break
                group, size = group + 1, size + bytes_
            at = slice(len(found), len(found) + group)
            self._fill(wanted[at], claims[at], size)
            found |= dict(zip(wanted[at], claims[at], strict=True))
        for call, outputs in found.items():
            self._compare_digests(outputs, window.outputs[call][0].data, int(window.nonces[call]))
        return found

    def _fill(self, calls: Sequence[int], claims: Sequence[tuple[OutputClaim, ...]], size: int) -> None:
        """Have some calls' outputs copied, and put their bytes, ``size`` in all, into ``claims``."""
        with SharedMemory.create(max(size, wire.ALIGNMENT), "outputs") as memory:
            limits = [[claim.data.size for claim in outputs] for outputs in claims]
            self.client.request(
                "deliver", timeout_s=SETUP_TIMEOUT_S, fds=[memory.fd], size=memory.size, calls=list(calls), bytes=limits
            )
            data, at = np.frombuffer(memory.view, dtype=np.uint8), 0
            for claim in (claim for outputs in claims for claim in outputs):
                claim.data[:] = data[at : at + claim.data.size]
                at += claim.data.size
            del data

    def _compare_digests(self, outputs: Sequence[OutputClaim], said: np.ndarray, nonce: int) -> None:
        acknowledged = said[: said.size // 8 * 8].view(np.uint64)
        for j, claim in enumerate(outputs):
            digest = self._digest(claim.data, wire.output_key(nonce, j))
            if j >= len(acknowledged) or digest != int(acknowledged[j]):
                message = "an output is not what it was when its call was acknowledged"
                raise self._failure("fault", message, phase="digest")

    def _claims(self, items: Any, capacity: Sequence[int]) -> tuple[OutputClaim, ...]:
        """The described outputs, with room for their bytes."""
        if not isinstance(items, list) or len(items) != len(capacity):
            count = len(items) if isinstance(items, list) else 0
            message = f"forward returned {count} tensors, {len(capacity)} expected"
            raise self._failure("fault", message, phase="shape")
        claims = []
        for item, limit in zip(items, capacity, strict=True):
            address, dtype, shape, stride = self._description(item)
            size = _span(shape, stride) * wire.ITEM_BYTES.get(dtype, 0)
            if size > limit:
                message = f"an output spans more memory than expected; shape {list(shape)}"
                raise self._failure("fault", message, phase="shape")
            known = dtype if dtype in wire.DTYPES else None
            claims.append(OutputClaim(address, known, shape, stride, np.empty(size, dtype=np.uint8)))
        return tuple(claims)

    def _description(self, item: Any) -> tuple[int, str, tuple[int, ...], tuple[int, ...]]:
        if isinstance(item, list) and len(item) == 4 and isinstance(item[1], str):
            address, dtype, shape, stride = item
            if _are_sizes(shape) and _are_sizes(stride) and len(shape) == len(stride) and type(address) is int:
                return address, readable(dtype)[:40], tuple(shape), tuple(stride)
        raise self._failure("protocol", "it describes its outputs in no known way")

    def _digest(self, data: np.ndarray, key: int) -> int:
        whole = np.ascontiguousarray(data)
        return int(self._library.digest(whole.ctypes.data, whole.size, ctypes.c_uint64(key)))

    def _failure(self, kind: Any, message: str, *, phase: str = "output") -> WorkerFailed:
        return WorkerFailed(Failure(kind, phase, message), self.name)


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
