"""Connections to a vendor. Requests in flight can be ended, and replies have a time limit."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import httpx2

# A model may think for minutes without sending data, and routers and firewalls drop connections that stay silent.
KEEPALIVE_S = 60


class Connections:
    """An HTTP client for both SDKs, safe to use from several threads. ``close`` ends requests in flight.

    Closing a socket does not wake a thread that reads from it, and a model may be silent for the whole time limit. So
    this class remembers the sockets and shuts them down.
    """

    def __init__(self, timeout_s: float, connect_timeout_s: float) -> None:
        self.client = httpx2.Client(
            timeout=httpx2.Timeout(timeout_s, connect=connect_timeout_s),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=64),
            follow_redirects=True,
            event_hooks={"request": [self._watch]},
        )
        self.closed = False
        self._streams: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Shut every connection. Reads and writes in flight fail at once."""
        with self._lock:
            self.closed = True
            streams = list(self._streams)
        for stream in streams:
            _shut(stream)
        self.client.close()

    def _watch(self, request: httpx2.Request) -> None:
        request.extensions["trace"] = self._connected

    def _connected(self, step: str, particulars: Mapping[str, Any]) -> None:
        if not step.endswith(("connect_tcp.complete", "start_tls.complete")):
            return
        stream = particulars["return_value"]
        with contextlib.suppress(OSError):
            stream.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            stream.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
        with self._lock:
            self._streams.add(stream)
            late = self.closed
        if late:
            _shut(stream)


def _shut(stream: Any) -> None:
    with contextlib.suppress(OSError):  # it was closed before
        stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


def end_by(response: httpx2.Response, deadline: float) -> None:
    """Make a body that is still arriving at ``deadline`` (``time.monotonic``) end with a timeout.

    The client's own timeout limits only silence, and servers send comments to keep a connection alive.
    """
    assert isinstance(response.stream, httpx2.SyncByteStream)
    response.stream = _Bounded(response.stream, deadline)


class _Bounded(httpx2.SyncByteStream):
    def __init__(self, stream: httpx2.SyncByteStream, deadline: float) -> None:
        self._stream = stream
        self._deadline = deadline

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._stream:
            if time.monotonic() > self._deadline:
                raise httpx2.ReadTimeout("the reply had not ended in time")
            yield piece

    def close(self) -> None:
        self._stream.close()
