"""The referee's end of one worker's socket: requests, builds, and the kinds of failures.

Everything that a worker says is a claim. Every failure raises one exception, :class:`WorkerFailed`. The caller turns it
into a status (a candidate's worker) or an error (the reference's).
"""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kernelwright import inline
from kernelwright.errors import MachineError
from kernelwright.evaluator.builds.builder import BuildOutcome
from kernelwright.evaluator.wire.claims import Failure, WorkerFailed, describe_exit, readable
from kernelwright.sandbox import (
    Exit,
    Limits,
    Mount,
    PeerClosed,
    PeerTimeout,
    ProtocolError,
    Sandbox,
    recv_message,
    send_message,
)

MAX_BUILDS = 16
MAX_BUILD_S = 180.0  # all builds of one worker together
MAX_BUILT_BYTES = 64 << 20  # all products of one worker together
MAX_SOURCE_BYTES = 4 << 20
_TAIL_BYTES = 2000
_WHOLE_MESSAGE_S = 1.0  # from its first byte to its last
_BUILD_LIMITS = (
    f"a candidate may have {MAX_BUILDS} sources built, one in each request, "
    f"in {MAX_BUILD_S:g} s and into {MAX_BUILT_BYTES >> 20} MB in all"
)


class Builder(Protocol):
    """Builds for a worker: the build service, or a stand-in that changes its products."""

    def build(self, message: Mapping[str, Any], source: str) -> BuildOutcome:
        """Build one request as it came over the socket."""


class Client:
    """One live worker and its socket."""

    def __init__(
        self,
        sandbox: Sandbox,
        entry: str,
        *,
        name: str,
        limits: Limits,
        cpus: Sequence[int] | None,
        builds: Builder | None = None,
        env: dict[str, str] | None = None,
        mounts: Sequence[Mount] = (),
        warm: bool = True,
        apart: bool = False,
    ) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.worker = sandbox.start_worker(
                entry,
                sock=theirs,
                name=name,
                limits=limits,
                cpus=cpus,
                env=env or {},
                mounts=mounts,
                warm=warm,
                apart=apart,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.sock = ours
        self.name = name
        self.outcomes: list[BuildOutcome] = []
        self.built: list[inline.BuildRequest] = []  # its successful builds, in order
        self.products: set[tuple[int, int]] = set()  # (st_dev, st_ino) of products that it was given
        self.door_files: frozenset[tuple[int, int]] = frozenset()
        self.door_data = b""
        self._builds = builds
        self._early: tuple[dict[str, Any], list[int]] | None = None  # a message that came while something was awaited
        self._closed = False

    def request(self, op: str, *, timeout_s: float, fds: Sequence[int] = (), **fields: Any) -> dict[str, Any]:
        """Send one request and wait for its reply, serving the worker's build requests meanwhile.

        Raises:
            WorkerFailed: unless the reply is well formed and positive.
        """
        self.send(op, fds=fds, **fields)
        return self.reply(op, timeout_s=timeout_s)

    def send(self, op: str, *, fds: Sequence[int] = (), **fields: Any) -> None:
        """Send one request without waiting."""
        try:
            send_message(self.sock, {"op": op, **fields}, fds=fds)
        except PeerClosed:
            raise WorkerFailed(self._death(op), self.name) from None
        except PeerTimeout:
            raise WorkerFailed(Failure("timeout", op, "it does not read its messages"), self.name) from None
        except ProtocolError as error:
            raise MachineError(f"a request to the worker does not fit its channel: {error.message}") from error

    def reply(self, op: str, *, timeout_s: float) -> dict[str, Any]:
        """The reply to the last request. Time spent on builds does not count towards ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while True:
            early, self._early = self._early, None
            message, fds = early or self._receive(op, max(deadline - time.monotonic(), 0.0))
            if message.get("op") == "build":
                started = time.monotonic()
                self._serve_build(message, fds)
                deadline += time.monotonic() - started
                continue
            for fd in fds:
                os.close(fd)
            if message.get("ok") is True:
                return message
            line = message.get("line")
            raise WorkerFailed(
                Failure(
                    "fault",
                    readable(message.get("phase", op))[:40],
                    readable(message.get("message", ""))[:_TAIL_BYTES].strip() or "it gave no reason",
                    line if type(line) is int else None,
                ),
                self.name,
            )

    def check_alive(self, op: str) -> None:
        """While waiting at the door: raise if the worker died, or sent a message instead of answering a call.

        A call may ask for a build, which is served.
        """
        if self.has_replied(op):
            self.reply(op, timeout_s=1.0)
            raise WorkerFailed(Failure("protocol", op, "it left the door without being told"), self.name)

    def has_replied(self, op: str) -> bool:
        """Whether the worker has replied, while it computes. What it asks to be built meanwhile is built.

        Raises:
            WorkerFailed: it died.
        """
        while self._early is None and self._has_message(op):
            message, fds = self._receive(op, _WHOLE_MESSAGE_S)
            if message.get("op") == "build":
                self._serve_build(message, fds)
            else:
                self._early = message, fds
        return self._early is not None

    def _has_message(self, op: str) -> bool:
        if not self.worker.alive():
            raise WorkerFailed(self._death(op), self.name)
        try:
            self.sock.setblocking(False)
            waiting = self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            raise WorkerFailed(self._death(op), self.name) from None
        finally:
            self.sock.setblocking(True)
        if not waiting:
            raise WorkerFailed(self._death(op), self.name)
        return True

    def close(self) -> Exit | None:
        """Kill the worker with everything in it."""
        if self._closed:
            return None
        self._closed = True
        for fd in self._early[1] if self._early else ():
            os.close(fd)
        self._early = None
        self.sock.close()
        return self.worker.kill()

    def tail(self) -> str:
        """The end of the worker's output: hostile text, for an artifact."""
        out, err = self.worker.output()
        return (err or out)[-_TAIL_BYTES:].decode(errors="replace")

    def _receive(self, op: str, timeout_s: float) -> tuple[dict[str, Any], list[int]]:
        try:
            message, fds = recv_message(self.sock, timeout_s=timeout_s, max_fds=1)
        except PeerTimeout:
            raise WorkerFailed(Failure("timeout", op, f"{op} took longer than its limit"), self.name) from None
        except PeerClosed:
            raise WorkerFailed(self._death(op), self.name) from None
        except ProtocolError as error:
            raise WorkerFailed(Failure("protocol", op, f"malformed message: {error.message}"), self.name) from None
        return message, list(fds)

    def _death(self, op: str) -> Failure:
        exit_ = self.worker.wait(2.0) or self.worker.kill()
        return Failure("died", op, describe_exit(exit_), None, exit_)

    def _read_source(self, fd: int) -> str:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_SOURCE_BYTES:
            message = f"a source to build is a memory file of at most {MAX_SOURCE_BYTES} bytes"
            raise WorkerFailed(Failure("protocol", "build", message), self.name)
        try:
            return os.pread(fd, status.st_size, 0).decode(errors="replace")
        except OSError:  # opened for writing only, or as a mere path
            raise WorkerFailed(Failure("protocol", "build", "a source to build cannot be read"), self.name) from None

    def _spent(self) -> bool:
        """Whether the worker has used up its builds."""
        return (
            len(self.outcomes) >= MAX_BUILDS
            or sum(outcome.seconds for outcome in self.outcomes) > MAX_BUILD_S
            or sum(len(outcome.product or b"") for outcome in self.outcomes) > MAX_BUILT_BYTES
        )

    def _serve_build(self, message: dict[str, Any], fds: Sequence[int]) -> None:
        try:
            if self._builds is None or len(fds) != 1 or self._spent():
                raise WorkerFailed(Failure("protocol", "build", _BUILD_LIMITS), self.name)
            source = self._read_source(fds[0])
            outcome = self._builds.build(message, source)
            self.outcomes.append(outcome)
            if outcome.product is not None:
                flags = tuple(message["flags"])
                self.built.append(inline.BuildRequest(message["language"], source, flags, str(message.get("name", ""))))
            product = outcome.product_fd()
            if product is not None:
                status = os.fstat(product)
                self.products.add((status.st_dev, status.st_ino))
            reply: dict[str, Any] = {"ok": product is not None, "log": outcome.log[:4000]}
        finally:
            for fd in fds:
                os.close(fd)
        try:
            send_message(self.sock, reply, fds=() if product is None else (product,))
        except (PeerClosed, PeerTimeout):
            raise WorkerFailed(self._death("build"), self.name) from None
        finally:
            if product is not None:
                os.close(product)
