"""Who makes pages: this process, or a few of its own kind, so that reading what is kept waits for no page being made.

A page takes milliseconds of a core, and threads of one process would share one. The processes are forked from a clean
server (``multiprocessing``'s *forkserver*), read the store each for itself, and end with whoever asked for them.
"""

from __future__ import annotations

import asyncio
import gc
import gzip
import hashlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import Any, NamedTuple, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope

LEAST_ZIPPED = 800
MOST_MAKERS = 4
_LEVEL = 2  # of compression: a third of the time of the usual one, for a tenth more bytes
_ZIPPED = ("text/", "application/json", "image/svg")
_PRELOADED = ["kernelwright.leaderboard._app", "kernelwright.campaign", "kernelwright.leaderboard._makers"]
_PASSED_ON = (b"accept", b"hx-request")  # of a request's headers: no page depends on who reads it
_GARBAGE = 50_000  # objects made before garbage is looked for
_TRIES = 3  # of a page whose process was killed
_PAUSE_S = 0.2
_IN_THREADS = 2  # pages at once in this process: more would only take turns


class Made(NamedTuple):
    """A whole answer; ``zipped`` where it is worth it, ``tag`` names its content."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    zipped: bytes | None
    tag: str


class Maker(Protocol):
    """Makes answers to GET requests, ``at_once`` of them side by side."""

    at_once: int

    async def __call__(self, scope: Scope, receive: Receive) -> Made:
        """The answer."""


class OwnMaker:
    """Makes them by an application in this process."""

    at_once = _IN_THREADS

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive) -> Made:
        """See :class:`Maker`."""
        start: Message = {}
        parts: list[bytes] = []

        async def collect(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            elif message["type"] == "http.response.body":
                parts.append(message.get("body", b""))

        await self._app(scope, receive, collect)
        body = b"".join(parts)
        headers = [pair for pair in start["headers"] if pair[0].lower() != b"content-length"]
        kind = dict(headers).get(b"content-type", b"").decode("latin-1")
        zips = len(body) >= LEAST_ZIPPED and kind.startswith(_ZIPPED)
        zipped = gzip.compress(body, _LEVEL, mtime=0) if zips else None
        return Made(start["status"], headers, body, zipped, f'W/"{hashlib.sha256(body).hexdigest()[:24]}"')


class Makers:
    """Makes them in processes of its own. A context manager: within it they are there.

    Args:
        build: makes the application in each of them; it is pickled, and an exception of a page is, too.
        count: how many processes.
    """

    def __init__(self, build: Callable[[], ASGIApp], count: int) -> None:
        self.at_once = count + 1  # one waits at the door, so that nobody idles
        self._build = build
        self._count = count
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOADED)
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Makers:
        self._pool = self._started()
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _started(self) -> ProcessPoolExecutor:
        pool = ProcessPoolExecutor(self._count, mp_context=self._context, initializer=_begin, initargs=(self._build,))
        for _ in range(self._count):  # each is told to start when there is work and nobody is idle
            pool.submit(os.getpid)
        return pool

    async def __call__(self, scope: Scope, receive: Receive) -> Made:
        """See :class:`Maker`. Where the processes were killed, others take their place.

        Raises:
            BrokenProcessPool, OSError, EOFError: those were killed, too, or none can be started.
        """
        named = ("path", "raw_path", "query_string", "root_path", "scheme")
        asked = {name: scope[name] for name in named if name in scope}
        asked["headers"] = [(b"host", b"localhost"), *(pair for pair in scope["headers"] if pair[0] in _PASSED_ON)]
        for left in reversed(range(_TRIES)):
            pool = self._pool
            try:
                if pool is None:
                    pool = self._pool = self._started()
                found = await asyncio.get_running_loop().run_in_executor(pool, _make, asked)
                break
            except (BrokenProcessPool, OSError, EOFError):
                if self._pool is pool:
                    self._pool = None
                if not left:
                    raise
                await asyncio.sleep(_PAUSE_S)  # whoever was killed may not be known to be dead yet
        if isinstance(found, Exception):
            raise found
        return found


def count_makers() -> int:
    """How many processes are worth it here; none where there is one core."""
    cores = len(os.sched_getaffinity(0))
    return min(cores, MOST_MAKERS) if cores > 1 else 0


_maker: OwnMaker | None = None
_loop: asyncio.AbstractEventLoop | None = None


def _begin(build: Callable[[], ASGIApp]) -> None:
    """Start a maker's process: an application, and a loop of its own that goes on between pages."""
    global _maker, _loop
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever asked for it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _maker, _loop = OwnMaker(build()), asyncio.new_event_loop()
    gc.freeze()  # what is there stays; and a page's thousands of rows need no look at all of that
    gc.set_threshold(_GARBAGE)
    threading.Thread(target=_loop.run_until_complete, args=(asyncio.Event().wait(),), daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(0)


def _make(asked: dict[str, Any]) -> Made | Exception:
    """The page, or what went wrong with it: raised, it would look like a process that went wrong."""
    assert _maker is not None
    assert _loop is not None
    fixed = {"type": "http", "method": "GET", "client": ("127.0.0.1", 1), "server": ("localhost", 1)}
    scope = {**fixed, "asgi": {"version": "3.0"}, "http_version": "1.1", **asked}
    try:
        return asyncio.run_coroutine_threadsafe(_maker(scope, _nothing_more), _loop).result()
    except Exception as error:  # noqa: BLE001 - whatever a page raises is told where it was asked for
        traceback.print_exc()
        return error


async def _nothing_more() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}
