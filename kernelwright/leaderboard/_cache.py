"""A cache of whole answers, valid as long as the store does not change.

SQLite counts the commits of other connections (``PRAGMA data_version``). While that number is the same, so is every
page. A store in use changes all the time; its pages may be up to ``STALE_S`` old, and so may the page of the runs that
are being driven. A request for a page that is being made waits for that page.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from kernelwright.leaderboard._makers import Made, Maker, OwnMaker

STALE_S = 2.0
MOST_BYTES = 64_000_000
_LIVE = "/runs/live"  # what changes while the store does not
_NEVER = ("/submissions", "/submit", "/login", "/static/", "/healthz", "/docs/", "/openapi.json")


class Version:
    """Tells whether a store changed. It has its own connection, which never waits."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._opened = 0
        self._lock = threading.Lock()

    def __call__(self) -> Hashable:
        """A value that changes after every commit, and if another file replaces the store.

        Raises:
            OSError, sqlite3.Error: there is no store, or it cannot be read now.
        """
        with self._lock:
            status = os.stat(self._path)
            if self._connection is None or self._file != (status.st_dev, status.st_ino):
                self.close()
                uri = f"{self._path.as_uri()}?mode=ro"
                self._connection = sqlite3.connect(uri, uri=True, timeout=0.0, check_same_thread=False)
                self._file, self._opened = (status.st_dev, status.st_ino), self._opened + 1
            return self._opened, self._connection.execute("PRAGMA data_version").fetchone()[0]

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Kept(NamedTuple):
    version: Hashable
    made_s: float
    made: Made


_Key = tuple[str, bytes, bool]


class _Making(NamedTuple):
    version: Hashable
    began_s: float
    kept: asyncio.Future[_Kept | None]  # None after an error


class Cache:
    """Caches whole answers to GET requests by address, compressed once. Simultaneous requests share one answer.

    Args:
        maker: makes the answers; by default ``app`` itself.
    """

    def __init__(
        self,
        app: ASGIApp,
        version: Callable[[], Hashable],
        *,
        maker: Maker | None = None,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._app = app
        self._version = version
        self._maker = maker or OwnMaker(app)
        self._most_bytes = most_bytes
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self._making: dict[_Key, _Making] = {}
        self._turns = asyncio.Semaphore(self._maker.at_once)
        self._bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or scope["method"] != "GET" or path.startswith(_NEVER) or path.endswith("/events"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        key = (path, scope["query_string"], headers.get("hx-request") == "true")
        kept: _Kept | None = None
        while kept is None:
            try:
                version, now_s = self._version(), time.monotonic()
                version = object() if path.startswith(_LIVE) else version
            except (OSError, sqlite3.Error):  # the application reports what is wrong with the store
                await self._app(scope, receive, send)
                return
            found, making = self._kept.get(key), self._making.get(key)
            if found is not None and (found.version == version or now_s - found.made_s <= STALE_S):
                self._kept.move_to_end(key)
                kept = found
            elif making is not None and (making.version == version or now_s - making.began_s <= STALE_S):
                kept = await asyncio.shield(making.kept)
            else:
                kept = await self._made_for_all(key, scope, receive, version, now_s)
        await self._answer(kept.made, headers)(scope, receive, send)

    async def _made_for_all(self, key: _Key, scope: Scope, receive: Receive, version: Hashable, now_s: float) -> _Kept:
        making = _Making(version, now_s, asyncio.get_running_loop().create_future())
        self._making[key] = making
        kept: _Kept | None = None
        try:
            async with self._turns:
                kept = _Kept(version, now_s, await self._maker(scope, receive))
            self._keep(key, kept)
            return kept
        finally:
            if self._making.get(key) is making:
                del self._making[key]
            making.kept.set_result(kept)

    def _keep(self, key: _Key, kept: _Kept) -> None:
        if kept.made.status != 200:
            return
        old = self._kept.pop(key, None)
        self._bytes -= _size(old) if old is not None else 0
        self._kept[key] = kept
        self._bytes += _size(kept)
        while self._bytes > self._most_bytes and self._kept:
            _, gone = self._kept.popitem(last=False)
            self._bytes -= _size(gone)

    @staticmethod
    def _answer(made: Made, headers: Headers) -> Response:
        more = [*made.headers, (b"vary", b"Accept-Encoding, HX-Request"), (b"etag", made.tag.encode())]
        if made.status == 200 and headers.get("if-none-match") == made.tag:
            answer = Response(status_code=304)
            answer.raw_headers = [(b"etag", made.tag.encode()), (b"vary", b"Accept-Encoding, HX-Request")]
            return answer
        body = made.body
        if made.zipped is not None and "gzip" in headers.get("accept-encoding", ""):
            body = made.zipped
            more.append((b"content-encoding", b"gzip"))
        answer = Response(body, status_code=made.status)
        answer.raw_headers = [*more, (b"content-length", str(len(body)).encode())]
        return answer


def _size(kept: _Kept) -> int:
    return len(kept.made.body) + len(kept.made.zipped or b"") + 500
