"""Make pages in this process or in a few worker processes. With workers, cached pages need not wait for new ones.

A page takes milliseconds of a core, and the threads of one process would share one core. The workers are forked from a
clean server (``multiprocessing``'s *forkserver*). Each reads the store itself, and ends with its parent process.
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
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any, NamedTuple, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope

LEAST_ZIPPED = 800
MOST_MAKERS = 4
_LEVEL = 2  # of compression: takes a third of the default's time and gives a tenth more bytes
_ZIPPED = ("text/", "application/json", "image/svg")
_PRELOADED = ["kernelwright.leaderboard._app", "kernelwright.campaign", "kernelwright.leaderboard._makers"]
_PASSED_ON = (b"accept", b"hx-request")  # request headers; no page depends on its reader
_GARBAGE = 50_000  # new objects before a garbage collection
_TRIES = 3  # for a page whose process was killed
_PAUSE_S = 0.2
_IN_THREADS = 2  # pages at once in this process: more would only take turns


class Made(NamedTuple):
    """A whole answer. ``zipped`` is set if compression pays; ``tag`` is a hash of its content."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    zipped: bytes | None
    tag: str


class Maker(Protocol):
    """Makes answers to GET requests, up to ``at_once`` at the same time."""

    at_once: int

    async def __call__(self, scope: Scope, receive: Receive) -> Made:
        """The answer."""


class OwnMaker:
    """Makes answers with an application in this process."""

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
    """Makes answers in worker processes. A context manager, which starts and ends them.

    Args:
        build: makes the application in each worker. It is pickled, and so are exceptions of pages.
        count: number of workers.
    """

    def __init__(self, build: Callable[[], ASGIApp], count: int) -> None:
        self.at_once = count + 1  # one more is queued, so that no worker idles
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
        with _safe_path():
            for _ in range(self._count):  # the pool starts a worker when there is work and none is idle
                pool.submit(os.getpid)
        return pool

    async def __call__(self, scope: Scope, receive: Receive) -> Made:
        """See :class:`Maker`. Killed workers are replaced.

        Raises:
            BrokenProcessPool, OSError, EOFError: the replacements were killed, too, or none can be started.
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
                await asyncio.sleep(_PAUSE_S)  # the system may not have noticed the death yet
        if isinstance(found, Exception):
            raise found
        return found


@contextmanager
def _safe_path() -> Iterator[None]:
    """A Python that starts meanwhile does not import from the working folder, which may have a "kernelwright"."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = before or "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]


def count_makers() -> int:
    """The number of workers that pays on this machine; 0 with a single core."""
    cores = len(os.sched_getaffinity(0))
    return min(cores, MOST_MAKERS) if cores > 1 else 0


_maker: OwnMaker | None = None
_loop: asyncio.AbstractEventLoop | None = None


def _begin(build: Callable[[], ASGIApp]) -> None:
    """Initialise a worker: build the application, and start an event loop that keeps running between pages."""
    global _maker, _loop
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _maker, _loop = OwnMaker(build()), asyncio.new_event_loop()
    gc.freeze()  # objects made so far stay; collections after a page's many rows skip them
    gc.set_threshold(_GARBAGE)
    threading.Thread(target=_loop.run_until_complete, args=(asyncio.Event().wait(),), daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(0)


def _make(asked: dict[str, Any]) -> Made | Exception:
    """The page, or its exception. A raised exception would look like a failed process."""
    assert _maker is not None
    assert _loop is not None
    fixed = {"type": "http", "method": "GET", "client": ("127.0.0.1", 1), "server": ("localhost", 1)}
    scope = {**fixed, "asgi": {"version": "3.0"}, "http_version": "1.1", **asked}
    try:
        return asyncio.run_coroutine_threadsafe(_maker(scope, _nothing_more), _loop).result()
    except Exception as error:  # noqa: BLE001 - the caller raises it again
        traceback.print_exc()
        return error


async def _nothing_more() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}
