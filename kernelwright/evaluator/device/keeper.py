"""The keeper: the only process of the referee's that opens the device. It holds inputs and truths, and compares.

It runs our code alone, without torch, and talks to the referee over a socket. What it exports to a contestant is memory
of that contestant's own: sealed slots, places of inputs, room for opened outputs. Truths are never exported.

The referee gets numbers, never tensors.
"""

from __future__ import annotations

import ctypes
import math
import os
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from ctypes import c_double, c_int64, c_uint32, c_uint64
from typing import Any

import numpy as np

from kernelwright.evaluator.driver import kernels
from kernelwright.evaluator.driver.cuda import Attribute, DeviceMapping, Driver, DriverError, packed
from kernelwright.evaluator.wire import keeper as wire
from kernelwright.sandbox.messages import PeerClosed, ProtocolError, recv_message, send_message

__all__ = ["main"]

_NO_SHARING = (
    "its driver cannot share memory between processes by descriptors, which the referee needs; with device = none, "
    "kernels are checked here and not timed"
)
_PATIENCE_S = 24 * 3600.0
_SCRATCH_BYTES = 1 << 20
_ZEROS_AT = 64  # in scratch, where a difference is summed up
_AT_ONCE = 256 << 20
_BUCKETS = 1 << 16  # of |e| / s, by the upper bits of its float32 pattern
_BUCKET_SHIFT = 15
_BEYOND_ALL = 1e300  # stands for infinity, which a message lacks


class _Piece(ctypes.Structure):
    _fields_ = [
        *((name, c_uint64) for name in ("to", "count", "table", "key")),
        *((name, c_uint32) for name in ("kind", "item")),
        ("row", c_uint64),
        *((name, c_int64) for name in ("low", "high")),
        ("ends", c_double * 4),
    ]


class _Sealing(ctypes.Structure):
    _fields_ = [(name, c_uint64) for name in ("plain", "sealed", "key")]


class _View(ctypes.Structure):
    _fields_ = [
        ("at", c_uint64),
        *((name, c_uint32) for name in ("dtype", "dimensions")),
        *((name, c_int64 * wire.DIMENSIONS) for name in ("shape", "stride")),
    ]


class _Truth(ctypes.Structure):
    _fields_ = [
        *((name, c_uint64) for name in ("low", "exact", "scale")),
        *((name, c_double) for name in ("largest", "unit", "close")),
    ]


class _ErrorSums(ctypes.Structure):
    _fields_ = [
        *((name, c_double) for name in ("errors", "scales", "fourth", "noise_errors", "noise_scales")),
        *((name, c_uint64) for name in ("judged", "unlike", "not_close", "largest")),
    ]


class _Difference(ctypes.Structure):
    _fields_ = [("squares", c_double), *((name, c_uint64) for name in ("largest", "unlike", "different"))]


class _Current(ctypes.Structure):
    _fields_ = [("key", c_uint64), *((name, c_uint32) for name in ("slot", "operation", "open", "unused"))]


class _Pieces(ctypes.Structure):
    _fields_ = [
        *((name, c_uint64 * wire.MOST_OUTPUTS) for name in ("at", "bytes")),
        *((name, c_uint32) for name in ("count", "unused")),
    ]


class Keeper:
    """Answers the referee's requests about one device. Memory is named by numbers; see ``wire.keeper``."""

    def __init__(self, library: str, ordinal: int, load: Callable[[str], bytes]) -> None:
        """``load`` gives the image of a module of ours.

        Raises:
            DriverError: the device cannot be opened.
        """
        self._driver = driver = Driver(library, ordinal)
        if not driver.granularity or not driver.attribute(Attribute.MEMORY_BY_DESCRIPTOR):
            raise DriverError("opening the device", 0, _NO_SHARING)
        door, keeper = (driver.load(load(name)) for name in kernels.MODULES)
        self._digest = door.function("kw_digest")
        names = "kw_fill", "kw_seal", "kw_errors", "kw_response", "kw_difference"
        self._fill, self._seal, self._errors, self._response, self._difference = map(keeper.function, names)
        self._scratch = driver.allocate(_SCRATCH_BYTES)
        self._buckets = driver.allocate(4 * _BUCKETS)
        self._memory: dict[int, DeviceMapping | _Private] = {}
        self._next = 1

    # ------------------------------------------------------------------------------------------ the device

    def do_describe(self, fds: Sequence[int]) -> dict[str, Any]:
        """What the device is and can do."""
        driver = self._driver
        free, total = driver.memory()
        return {
            "name": driver.name(),
            "driver": driver.version(),
            "free": free,
            "total": total,
            "attributes": {which.name: driver.attribute(which) for which in Attribute},
        }

    def do_door(self, fds: Sequence[int]) -> dict[str, Any]:
        """Write the machine code of ``door.cu`` for this device into a memory file, so that workers need not translate.

        ``size``: 0 if the driver cannot do that.
        """
        try:
            code = self._driver.assembled(kernels.ptx("door"))
        except DriverError:
            code = b""
        os.pwrite(fds[0], code, 0)
        return {"size": len(code)}

    # ------------------------------------------------------------------------------------------ memory

    def do_share(self, fds: Sequence[int], size: int) -> dict[str, Any]:
        """Memory that a worker can map, cleared; its descriptor goes with the reply."""
        made = self._driver.create(size)
        self._driver.clear(made.address, made.size)
        return {"memory": self._keep(made), "size": made.size, "fd": made.export()}

    def do_allocate(self, fds: Sequence[int], size: int) -> dict[str, Any]:
        """Memory of the keeper's own, cleared."""
        made = _Private(self._driver, size)
        self._driver.clear(made.address, made.size)
        return {"memory": self._keep(made)}

    def do_release(self, fds: Sequence[int], memory: int) -> None:
        """Free memory. Workers that still map it keep it."""
        self._memory.pop(memory).close()

    def do_put(self, fds: Sequence[int], memory: int, offset: int, size: int) -> None:
        """Copy from a memory file of the referee's."""
        to = self._address(memory, offset, size)
        for at in range(0, size, _AT_ONCE):  # a read stops at 2 GB
            self._driver.put(to + at, os.pread(fds[0], min(_AT_ONCE, size - at), at))

    def do_get(self, fds: Sequence[int], memory: int, offset: int, size: int) -> None:
        """Copy into a memory file of the referee's."""
        start = self._address(memory, offset, size)
        for at in range(0, size, _AT_ONCE):
            os.pwrite(fds[0], self._driver.get(start + at, min(_AT_ONCE, size - at)), at)

    def do_copy(self, fds: Sequence[int], source: Sequence[int], to: Sequence[int], size: int) -> None:
        """Copy from memory to memory, both given as (number, offset)."""
        (to_memory, to_at), (memory, at) = to, source
        self._driver.copy(self._address(to_memory, to_at, size), self._address(memory, at, size), size)

    # ------------------------------------------------------------------------------------------ inputs

    def do_fill(self, fds: Sequence[int], pieces: Sequence[Sequence[Any]]) -> None:
        """Fill tensors with fresh data; ``pieces`` are rows of ``wire.keeper.Piece``."""
        rows, most = [], 0
        for memory, offset, count, table, table_at, key, kind, item, row, low, high, ends in pieces:
            to = self._address(memory, offset, count * item)
            entries = self._address(table, table_at, 4 * wire.TABLE_ENTRIES) if table else 0
            most = max(most, count)
            cycle = max(high, 1) if kind == wire.Fill.ENDS else high
            rows.append((to, count, entries, key, kind, item, max(row, 1), low, cycle, tuple(ends)))
        for first in range(0, len(rows), _SCRATCH_BYTES // ctypes.sizeof(_Piece)):
            group = rows[first : first + _SCRATCH_BYTES // ctypes.sizeof(_Piece)]
            self._driver.put(self._scratch, packed(_Piece, group))
            launch = self._driver.launch_for(-(-most // 4), groups=len(group))
            self._fill(launch, c_uint64(self._scratch), c_uint32(len(group)))
            self._driver.synchronize()

    def do_seal(self, fds: Sequence[int], slots: Sequence[Sequence[int]], size: int) -> None:
        """Seal slots of ``size`` bytes each: rows of plain memory, its offset, sealed memory, its offset, and key."""
        rows = [
            (self._address(plain, plain_at, size), self._address(sealed, sealed_at, size), key)
            for plain, plain_at, sealed, sealed_at, key in slots
        ]
        self._driver.put(self._scratch, packed(_Sealing, rows))
        launch = self._driver.launch_for(size // 16, groups=len(rows))
        self._seal(launch, c_uint64(self._scratch), c_uint32(len(rows)), c_uint64(size))
        self._driver.synchronize()

    # ------------------------------------------------------------------------------------------ outputs

    def do_digest(self, fds: Sequence[int], outputs: Sequence[Sequence[int]], key: int) -> dict[str, Any]:
        """The digest of outputs, each given as memory, offset and bytes; see ``door.cu``."""
        pieces = _Pieces(count=len(outputs))
        for j, (memory, offset, size) in enumerate(outputs):
            pieces.at[j], pieces.bytes[j] = self._address(memory, offset, size), size
        answer, sum_at, done_at = (self._scratch + at for at in (64, 192, 256))
        self._driver.clear(self._scratch, 512)
        self._driver.put(self._scratch, bytes(_Current(key=key)))
        launch = self._driver.launch_for(max((size for _, _, size in outputs), default=1) // 8)
        given = c_uint64(self._scratch), pieces, c_uint64(sum_at), c_uint64(done_at), c_uint64(answer), c_uint32(1)
        self._digest(launch, *given)
        return {"sum": int.from_bytes(self._driver.get(answer, 8), "little")}

    def do_scale(self, fds: Sequence[int], memory: int, offset: int, count: int) -> dict[str, Any]:
        """The largest of ``count`` scales (float64, not negative), and their norm."""
        scales = {"memory": memory, "offset": offset, "dtype": "float64", "shape": [count], "stride": [1]}
        nothing = _View(at=self._scratch + _ZEROS_AT, dtype=wire.DTYPES.index("float64"), dimensions=1)
        nothing.shape[0] = count  # of stride 0: one zero for all
        found = self._difference_of(self._view(scales, count), nothing, count)
        return {"largest": _told(_double(found.largest)), "norm": _told(found.squares**0.5)}

    def do_errors(
        self, fds: Sequence[int], output: dict[str, Any], truth: dict[str, Any], count: int, peaks: bool
    ) -> dict[str, Any]:
        """The error sums of one float output of ``count`` elements; see :class:`accuracy.arrays.ErrorSums`."""
        sums, found = _ErrorSums(), self._scratch
        self._driver.clear(found, ctypes.sizeof(sums))
        self._driver.clear(self._buckets, 4 * _BUCKETS)
        launch = self._driver.launch_for(count)
        given = self._view(output, count), self._truth(truth, count), c_uint64(count), c_uint64(found)
        self._errors(launch, *given, c_uint64(self._buckets))
        sums = _ErrorSums.from_buffer_copy(self._driver.get(found, ctypes.sizeof(sums)))
        buckets = np.frombuffer(self._driver.get(self._buckets, 4 * _BUCKETS), dtype=np.uint32)
        deciding = sums.scales**2 / sums.fourth if peaks and sums.fourth else float(sums.judged)
        return {
            "norm": _root_of_ratio(sums.errors, sums.scales),
            "q99": _told(_quantile(buckets, 0.99)),
            "largest": _told(_double(sums.largest)),
            "elements": sums.judged,
            "deciding": deciding,
            "unlike": bool(sums.unlike),
            "allclose": not sums.not_close,
            "noise": _root_of_ratio(sums.noise_errors, sums.noise_scales),
        }

    def do_response(
        self,
        fds: Sequence[int],
        outputs: Sequence[dict[str, Any]],
        truths: Sequence[dict[str, Any]],
        count: int,
        parts: int,
    ) -> dict[str, Any]:
        """Products and powers of the precision probe by part of the output; see ``accuracy.arrays.ResponseSums``."""
        size, products = 8 * parts, self._scratch
        self._driver.clear(products, 2 * size)
        launch = self._driver.launch_for(-(-count // parts), groups=parts)
        launch = launch._replace(blocks=(launch.blocks[0], parts, 1))
        views, expected = (self._view(o, count) for o in outputs), (self._truth(t, count) for t in truths)
        given = *views, *expected, c_uint64(count), c_uint32(parts), c_uint64(products), c_uint64(products + size)
        self._response(launch, *given)
        found = np.frombuffer(self._driver.get(products, 2 * size), dtype=np.float64)
        return {"products": found[:parts].tolist(), "powers": found[parts:].tolist()}

    def do_difference(
        self, fds: Sequence[int], ours: dict[str, Any], theirs: dict[str, Any], count: int
    ) -> dict[str, Any]:
        """How far two outputs are apart: norm and maximum of the difference, elements unlike and not equal."""
        sums = self._difference_of(self._view(ours, count), self._view(theirs, count), count)
        told = {"unlike": sums.unlike, "different": sums.different}
        return {"norm": _told(sums.squares**0.5), "largest": _told(_double(sums.largest)), **told}

    # ------------------------------------------------------------------------------------------ helpers

    def _keep(self, made: DeviceMapping | _Private) -> int:
        number, self._next = self._next, self._next + 1
        self._memory[number] = made
        return number

    def _address(self, memory: int, offset: int, size: int) -> int:
        """The address of ``size`` bytes in memory of a number.

        Raises:
            ValueError: they do not lie in it.
        """
        held = self._memory[memory]
        if offset < 0 or size < 0 or offset + size > held.size:
            raise ValueError(f"{size} bytes from {offset} on do not lie in {held.size} bytes")
        return held.address + offset

    def _view(self, given: dict[str, Any], count: int) -> _View:
        """A tensor of ``count`` elements: memory, offset, dtype, shape and stride.

        Raises:
            ValueError: it has another number of elements, or does not lie in its memory.
        """
        if math.prod(given["shape"]) != count:
            raise ValueError(f"{given['shape']} are not {count} elements")
        if min([*given["shape"], *given["stride"]], default=0) < 0:
            raise ValueError("sizes and strides must not be negative")
        shape, stride = wire.merged(given["shape"], given["stride"])
        item = wire.ITEM_BYTES[given["dtype"]]
        span = (1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))) * item if all(shape) else 0
        view = _View(at=self._address(given["memory"], given["offset"], span), dimensions=len(shape))
        view.dtype = wire.DTYPES.index(given["dtype"])
        for d, (size, step) in enumerate(zip(shape, stride, strict=True)):
            view.shape[d], view.stride[d] = size, step
        return view

    def _truth(self, given: dict[str, Any], count: int) -> _Truth:
        low, exact, scale = (
            self._address(given["memory"], given[part], 8 * count) for part in ("low", "exact", "scale")
        )
        return _Truth(low, exact, scale, given["most"], given["unit"] or 1.0, given["close"])

    def _difference_of(self, ours: _View, theirs: _View, count: int) -> _Difference:
        found, size = self._scratch, ctypes.sizeof(_Difference)
        self._driver.clear(found, 2 * _ZEROS_AT)
        self._difference(self._driver.launch_for(count), ours, theirs, c_uint64(count), c_uint64(found))
        return _Difference.from_buffer_copy(self._driver.get(found, size))


class _Private:
    """Memory that no other process sees."""

    def __init__(self, driver: Driver, size: int) -> None:
        self._driver = driver
        self.size = size
        self.address = driver.allocate(max(size, 1))

    def close(self) -> None:
        """Free it."""
        self._driver.free(self.address)


def _double(bits: int) -> float:
    return float(np.uint64(bits).view(np.float64))


def _told(value: float) -> float:
    """A number that a message can hold; NaN counts as infinite."""
    return value if value <= _BEYOND_ALL else _BEYOND_ALL


def _root_of_ratio(errors: float, scales: float) -> float:
    """The norm of errors over that of scales; 0 if no element has an error."""
    return 0.0 if errors == 0.0 else _told((errors / scales) ** 0.5 if scales else _BEYOND_ALL)


def _quantile(buckets: np.ndarray, share: float) -> float:
    """The upper end of the bucket that holds the element of a rank; off by at most 0.4%, and never too small."""
    total = int(buckets.sum())
    if total == 0:
        return 0.0
    bucket = int(np.searchsorted(np.cumsum(buckets), int(share * (total - 1)) + 1))
    return 0.0 if bucket == 0 else float(np.uint32((bucket + 1 << _BUCKET_SHIFT) - 1).view(np.float32))


def main(sock: socket.socket) -> None:
    """Serve the referee until it hangs up. The first message says which driver, device and images to use."""
    opening, fds = recv_message(sock, timeout_s=_PATIENCE_S)
    images = {name: os.pread(fd, os.fstat(fd).st_size, 0) for name, fd in zip(kernels.MODULES, fds, strict=False)}
    try:
        keeper = Keeper(opening["library"], opening["ordinal"], lambda name: images.get(name) or kernels.ptx(name))
    except DriverError as error:
        send_message(sock, {"ok": False, "message": error.message, "code": error.code})
        return
    send_message(sock, {"ok": True})
    while True:
        try:
            request, fds = recv_message(sock, timeout_s=_PATIENCE_S)
        except PeerClosed:
            return
        operation = request.pop("op")
        try:
            reply = getattr(keeper, f"do_{operation}")(fds=fds, **request) or {}
            sent = [reply.pop("fd")] if "fd" in reply else []
            send_message(sock, {"ok": True, **reply}, fds=sent)
            for fd in sent:
                os.close(fd)
        except (DriverError, KeyError, ProtocolError, ValueError) as error:
            traceback.print_exc()
            send_message(sock, {"ok": False, "message": str(error), "code": getattr(error, "code", 0)})
        for fd in fds:
            os.close(fd)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
