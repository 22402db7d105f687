"""Length-prefixed JSON over a stream socket: the only language between the referee and its workers.

A message is a 4-byte big-endian length and that many bytes of UTF-8 JSON holding one object. File descriptors may come
with it (``SCM_RIGHTS``). Received data is untrusted: malformed, truncated, oversized or deeply nested messages raise
:class:`ProtocolError`, and nothing is ever unpickled. Both sides use this module, so it has no heavy imports.
"""

from __future__ import annotations

import array
import contextlib
import json
import math
import os
import select
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kernelwright.errors import KernelwrightError

MAX_MESSAGE_BYTES: Final = 64 << 10
MAX_DEPTH: Final = 16
MAX_FDS: Final = 16
_HEADER: Final = struct.Struct("!I")
_CREDENTIALS: Final = struct.Struct("iII")  # struct ucred: pid, uid, gid
_SCM_CREDENTIALS: Final = 2  # not named by the socket module
_MAX_CONTAINERS: Final = 1 << 20  # a megabyte of "[[],[],..." costs fifty times its size in memory
_MAX_ITEMS: Final = 1 << 22


class ProtocolError(KernelwrightError):
    """A message is invalid or cannot be sent."""


class PeerClosed(ProtocolError):
    """The peer closed the connection or died."""


class PeerTimeout(ProtocolError):
    """The peer did not answer, or did not receive its message, before the deadline."""


class Received(NamedTuple):
    """A message, the descriptors that came with it, and the sender's process id if the socket asks for it."""

    message: dict[str, Any]
    fds: tuple[int, ...]
    pid: int | None


def send_message(
    sock: socket.socket,
    obj: Mapping[str, Any],
    fds: Sequence[int] = (),
    *,
    timeout_s: float = 30.0,
    max_bytes: int = MAX_MESSAGE_BYTES,
) -> None:
    """Send one JSON object and, with its first byte, duplicates of ``fds``.

    Raises:
        ProtocolError: ``obj`` is not plain JSON (NaN included) or larger than ``max_bytes``.
        PeerTimeout: the peer did not drain its socket within ``timeout_s`` seconds.
        PeerClosed: the peer is gone.
    """
    try:
        body = json.dumps(obj, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"not expressible as JSON: {error}") from error
    if len(body) > max_bytes:
        raise ProtocolError(f"message of {len(body)} bytes exceeds the limit of {max_bytes}", size_bytes=len(body))
    deadline = time.monotonic() + timeout_s
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    pending = memoryview(_HEADER.pack(len(body)) + body)
    while pending:
        try:
            sent = sock.sendmsg([pending], rights, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            _await(sock, select.POLLOUT, deadline)
            continue
        except OSError as error:
            raise PeerClosed(f"the peer is gone: {error}") from error
        pending, rights = pending[sent:], []


def recv_message(
    sock: socket.socket,
    *,
    timeout_s: float | None,
    max_bytes: int = MAX_MESSAGE_BYTES,
    max_depth: int = MAX_DEPTH,
    max_fds: int = MAX_FDS,
) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Receive one message: its object, and new descriptors (close-on-exec) that the caller must close.

    A trusted receiver that expects no descriptors passes ``max_fds=0``. If descriptors come anyway, they are closed and
    the message is refused. ``timeout_s`` bounds the whole message, so that a slow sender gains no time. None waits
    forever.

    Raises:
        PeerTimeout, PeerClosed, ProtocolError: see these classes. None of them leaks a descriptor.
    """
    received = receive(sock, timeout_s=timeout_s, max_bytes=max_bytes, max_depth=max_depth, max_fds=max_fds)
    return received.message, received.fds


def receive(
    sock: socket.socket,
    *,
    timeout_s: float | None,
    max_bytes: int = MAX_MESSAGE_BYTES,
    max_depth: int = MAX_DEPTH,
    max_fds: int = MAX_FDS,
) -> Received:
    """Receive a message like :func:`recv_message`, with the sender's process id if the socket has ``SO_PASSCRED``."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    fds: list[int] = []
    try:
        header, pid = _receive_header(sock, deadline, fds)
        if len(fds) > max_fds:
            raise ProtocolError(f"{len(fds)} descriptors came with a message that may bring {max_fds}")
        (size,) = _HEADER.unpack(header)
        if size > max_bytes:
            raise ProtocolError(f"message of {size} bytes exceeds the limit of {max_bytes}", size_bytes=size)
        message = parse_object(_receive_exactly(sock, size, deadline), max_depth=max_depth)
    except BaseException:
        close_fds(fds)
        raise
    return Received(message, tuple(fds), pid)


def parse_object(body: bytes | bytearray, *, max_depth: int = MAX_DEPTH) -> dict[str, Any]:
    """Parse hostile JSON that must be one object: no duplicate keys, no NaN, bounded depth and number of items.

    Raises:
        ProtocolError: it is not such an object.
    """
    if body.count(b"[") + body.count(b"{") > _MAX_CONTAINERS or body.count(b",") > _MAX_ITEMS:
        raise ProtocolError("message holds too many items")
    try:
        value = json.loads(
            body, object_pairs_hook=_object_without_duplicates, parse_constant=_refuse_constant, parse_float=_finite
        )
    except RecursionError as error:
        raise ProtocolError("message is nested too deeply") from error
    except ValueError as error:
        raise ProtocolError(f"malformed message: {error}") from error
    if not isinstance(value, dict):
        raise ProtocolError(f"message is a {type(value).__name__}, not an object")
    _check_depth(value, max_depth)
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def close_fds(fds: Sequence[int]) -> None:
    """Close descriptors; some may be closed already."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def _receive_header(sock: socket.socket, deadline: float | None, fds: list[int]) -> tuple[bytes, int | None]:
    """Receive the 4 bytes of length and the sender's process id. Appends the descriptors that came along to ``fds``."""
    room = socket.CMSG_SPACE(253 * 4) + socket.CMSG_SPACE(_CREDENTIALS.size)  # 253 is the kernel's SCM_MAX_FD
    header, pid = b"", None
    while len(header) < _HEADER.size:
        try:
            data, ancillary, flags, _ = sock.recvmsg(
                _HEADER.size - len(header), room, socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
            )
        except (BlockingIOError, InterruptedError):
            _await(sock, select.POLLIN, deadline)
            continue
        except OSError as error:
            raise PeerClosed(f"the peer is gone: {error}") from error
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                received = array.array("i")
                received.frombytes(payload[: len(payload) - len(payload) % received.itemsize])
                fds.extend(received)
            elif (level, kind) == (socket.SOL_SOCKET, _SCM_CREDENTIALS):
                pid = _CREDENTIALS.unpack(payload[: _CREDENTIALS.size])[0]
        if flags & socket.MSG_CTRUNC:
            raise ProtocolError("the descriptors of a message were cut off")
        if not data:
            raise PeerClosed("the peer closed the connection" + (" within a message" if header else ""))
        header += data
    return header, pid


def _receive_exactly(sock: socket.socket, size: int, deadline: float | None) -> bytearray:
    body = bytearray()
    while len(body) < size:
        try:
            data = sock.recv(min(size - len(body), 1 << 20), socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            _await(sock, select.POLLIN, deadline)
            continue
        except OSError as error:
            raise PeerClosed(f"the peer is gone: {error}") from error
        if not data:
            raise PeerClosed(f"the peer closed the connection after {len(body)} of {size} bytes")
        body += data
    return body


def _await(sock: socket.socket, event: int, deadline: float | None) -> None:
    """Wait until the socket is ready or hung up. Raises :class:`PeerTimeout` at the deadline."""
    left_ms = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1e3
    poll = select.poll()
    poll.register(sock, event)
    if not poll.poll(left_ms):
        raise PeerTimeout("no answer from the peer before the deadline")


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("duplicate key in an object")
    return result


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _check_depth(value: Any, max_depth: int) -> None:
    level = [value]
    for _ in range(max_depth):
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
        if not level:
            return
    raise ProtocolError(f"message is nested deeper than {max_depth} levels")
