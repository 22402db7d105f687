"""The referee's end of the keeper: starts it, asks it, ends it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernelwright.errors import MachineError
from kernelwright.evaluator.accuracy.arrays import ErrorSums, ResponseSums
from kernelwright.evaluator.driver.cuda import LIBRARY
from kernelwright.evaluator.wire import keeper as wire
from kernelwright.sandbox import PeerClosed, ProtocolError, product_memfd, recv_message, send_message

__all__ = ["OUT_OF_MEMORY", "Expected", "Keeper", "KeeperError", "Memory", "Placed"]

_OPEN_S, _ANSWER_S, _END_S = 60.0, 120.0, 2.0
_AT_ONCE = 256  # rows in a message
_LOG_BYTES = 4000
OUT_OF_MEMORY = 2  # a ``KeeperError``'s code


class KeeperError(MachineError):
    """The keeper refused or failed: the device, its driver or the referee is at fault, and no candidate."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message, hint="see nvidia-smi, and kernelwright doctor")
        self.code = code


class Memory(NamedTuple):
    """Memory that the keeper holds, by its number; ``size`` in bytes."""

    number: int
    size: int


class Placed(NamedTuple):
    """A tensor in a keeper's memory; ``offset`` in bytes, ``shape`` and ``stride`` in elements."""

    memory: Memory
    offset: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Their number."""
        return int(np.prod(self.shape, dtype=np.int64))

    def told(self) -> dict[str, Any]:
        """For a message."""
        return {**self._asdict(), "memory": self.memory.number}


class Expected(NamedTuple):
    """The truth about one float output, three dense arrays of float64 in C order, by their offsets in bytes.

    low: the reference's own output. exact: the float64 answer. scale: the error scale. largest: finite number of the
    output's dtype. unit: the largest scale. close: KernelBench's tolerance.
    """

    memory: Memory
    low: int
    exact: int
    scale: int
    largest: float
    unit: float
    close: float

    def told(self) -> dict[str, Any]:
        """For a message."""
        fields = self._asdict()
        return {**fields, "memory": self.memory.number, "most": fields.pop("largest")}


class Difference(NamedTuple):
    """How far two outputs are apart: norm and largest element of the difference; how many elements are not alike (one
    is not finite where the other is), and how many are not equal."""

    norm: float
    largest: float
    unlike: int
    different: int


class Keeper:
    """A running keeper. It ends with this process."""

    def __init__(
        self,
        library: str = LIBRARY,
        ordinal: int = 0,
        images: Sequence[bytes] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Start it and open the device.

        Args:
            library: the driver. images: of the modules of ``driver.kernels``, in order; empty for the shipped PTX.
            variables: of its environment, besides this process's own.

        Raises:
            KeeperError: the device cannot be opened.
        """
        self._sock, theirs = socket.socketpair()
        self._log = os.memfd_create("keeper-log")
        self._has_gone = False
        self._asking = threading.Lock()  # an answer belongs to the thread that has asked
        sent = [product_memfd(image) for image in images]
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "kernelwright.evaluator.device.keeper", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, **(variables or {})},
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=self._log,
                )
            send_message(self._sock, {"library": library, "ordinal": ordinal}, fds=sent)
            self._answer(_OPEN_S)
        except BaseException:
            self.close()
            raise
        finally:
            for fd in sent:
                os.close(fd)
        self.about = self._ask("describe")

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    @property
    def lives(self) -> bool:
        """Whether it runs and listens."""
        return self._log >= 0 and not self._has_gone and self._process.poll() is None

    def close(self) -> None:
        """End it. All memory that no worker maps is free then. Idempotent."""
        self._sock.close()
        process = getattr(self, "_process", None)
        if process is not None:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
        if self._log >= 0:
            os.close(self._log)
            self._log = -1

    # ------------------------------------------------------------------------------------------ memory

    def door(self) -> bytes:
        """Machine code of ``door.cu`` for this device; empty if its driver has to translate it for each worker."""
        fd = os.memfd_create("door")
        try:
            return os.pread(fd, self._ask("door", fds=[fd])["size"], 0)
        finally:
            os.close(fd)

    def share(self, size: int) -> tuple[Memory, int]:
        """Cleared memory that a worker can map, and its descriptor, which the caller closes."""
        reply, fds = self._ask_for_fds("share", size=size)
        return Memory(reply["memory"], reply["size"]), fds[0]

    def allocate(self, size: int) -> Memory:
        """Cleared memory that only the keeper sees."""
        return Memory(self._ask("allocate", size=size)["memory"], size)

    def release(self, *memories: Memory) -> None:
        """Free memory. Once the keeper has ended, all of its memory is free."""
        for memory in memories:
            try:
                self._ask("release", memory=memory.number)
            except KeeperError:
                if self.lives:
                    raise
                return

    def put(self, memory: Memory, data: np.ndarray, offset: int = 0) -> None:
        """Copy an array's bytes to the device."""
        fd = product_memfd(np.ascontiguousarray(data).tobytes())
        try:
            self._ask("put", fds=[fd], memory=memory.number, offset=offset, size=data.nbytes)
        finally:
            os.close(fd)

    def get(self, memory: Memory, size: int, offset: int = 0) -> bytes:
        """Copy bytes from the device."""
        fd = os.memfd_create("from-device")
        try:
            self._ask("get", fds=[fd], memory=memory.number, offset=offset, size=size)
            with os.fdopen(os.dup(fd), "rb") as stream:
                stream.seek(0)
                return stream.read(size)
        finally:
            os.close(fd)

    def copy(self, source: tuple[Memory, int], to: tuple[Memory, int], size: int) -> None:
        """Copy within the device; both places are memory and offset."""
        (first, at), (second, to_at) = source, to
        self._ask("copy", source=[first.number, at], to=[second.number, to_at], size=size)

    # ------------------------------------------------------------------------------------------ inputs

    def fill(self, pieces: Sequence[wire.Piece]) -> None:
        """Fill tensors with fresh data."""
        for first in range(0, len(pieces), _AT_ONCE):
            self._ask("fill", pieces=[list(piece) for piece in pieces[first : first + _AT_ONCE]])

    def seal(self, slots: Sequence[tuple[Memory, int, Memory, int, int]], size: int) -> None:
        """Seal slots of ``size`` bytes: plain memory and offset, sealed memory and offset, key."""
        rows = [[plain.number, at, sealed.number, to, key] for plain, at, sealed, to, key in slots]
        for first in range(0, len(rows), _AT_ONCE):
            self._ask("seal", slots=rows[first : first + _AT_ONCE], size=size)

    # ------------------------------------------------------------------------------------------ outputs

    def digest(self, outputs: Sequence[tuple[Memory, int, int]], key: int) -> int:
        """The digest of the outputs of one call: memory, offset, bytes of each."""
        rows = [[memory.number, offset, size] for memory, offset, size in outputs]
        return int(self._ask("digest", outputs=rows, key=key)["sum"])

    def scales(self, memory: Memory, offset: int, count: int) -> tuple[float, float]:
        """The norm and the largest of ``count`` error scales (float64, not negative)."""
        told = self._ask("scale", memory=memory.number, offset=offset, count=count)
        return float(told["norm"]), float(told["largest"])

    def errors(self, output: Placed, expected: Expected, *, peaks: bool = False) -> tuple[ErrorSums, float]:
        """The error sums of an output, and its average error in error scales (see ``arrays.noise_of``)."""
        told = self._ask("errors", output=output.told(), truth=expected.told(), count=output.elements, peaks=peaks)
        names = ("norm", "q99", "largest", "elements", "deciding", "unlike", "allclose")
        sums = ErrorSums(*(told[name] for name in names))
        if sums.unlike:
            inf = float("inf")
            sums = sums._replace(
                norm=inf, q99=inf, largest=inf, elements=output.elements, deciding=float(output.elements)
            )
        return sums, float(told["noise"])

    def response(
        self, outputs: tuple[Placed, Placed], expected: tuple[Expected, Expected], *, blocks: int = 8
    ) -> ResponseSums:
        """How an output responds to a change of its input; see ``arrays.response_sums``."""
        count = outputs[0].elements
        parts = max(1, min(blocks, count))
        told = self._ask(
            "response",
            outputs=[output.told() for output in outputs],
            truths=[truth.told() for truth in expected],
            count=count,
            parts=parts,
        )
        products, powers = told["products"], told["powers"]
        whole = _regression(sum(products), sum(powers))
        return ResponseSums(whole, tuple(_regression(*pair) for pair in zip(products, powers, strict=True)))

    def difference(self, ours: Placed, theirs: Placed) -> Difference:
        """How far two outputs are apart."""
        told = self._ask("difference", ours=ours.told(), theirs=theirs.told(), count=ours.elements)
        return Difference(told["norm"], told["largest"], told["unlike"], told["different"])

    # ------------------------------------------------------------------------------------------ helpers

    def _ask(self, op: str, *, fds: Sequence[int] = (), **fields: Any) -> dict[str, Any]:
        return self._ask_for_fds(op, fds=fds, **fields)[0]

    def _ask_for_fds(self, op: str, *, fds: Sequence[int] = (), **fields: Any) -> tuple[dict[str, Any], list[int]]:
        with self._asking:
            try:
                send_message(self._sock, {"op": op, **fields}, fds=fds)
            except PeerClosed:
                raise self._gone() from None
            return self._answer(_ANSWER_S)

    def _answer(self, timeout_s: float) -> tuple[dict[str, Any], list[int]]:
        try:
            reply, fds = recv_message(self._sock, timeout_s=timeout_s)
        except PeerClosed:
            raise self._gone() from None
        except ProtocolError as error:
            raise KeeperError(f"the keeper of the device does not answer: {error.message}") from error
        if reply.get("ok") is not True:
            raise KeeperError(f"the device: {reply.get('message', 'no reason given')}", int(reply.get("code", 0)))
        return reply, list(fds)

    def _gone(self) -> KeeperError:
        self._has_gone = True
        said = os.pread(self._log, _LOG_BYTES, 0).decode(errors="replace").strip().splitlines()
        return KeeperError(f"the keeper of the device has ended{': ' + said[-1] if said else ''}")


def _regression(product: float, power: float) -> tuple[float, float]:
    return (1.0 if power == 0.0 else product / power), power
