"""Serve the leaderboard from this machine."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kernelwright.errors import MissingToolError, UsageError
from kernelwright.leaderboard._access import Access
from kernelwright.listening import address_of, is_loopback, listen
from kernelwright.submissions import Spool, Tokens

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import Message

_CONCURRENT = 512
_KEEP_ALIVE_S = 20
_FIRST_PAGES = ("/", "/problems", "/runs")


@dataclass(frozen=True)
class ServeOptions:
    """The options of :func:`serve`.

    Attributes:
        host: the address to listen on.
        port: 0 for any free port.
        public: allow other addresses than loopback. Reading then needs a token.
        names: accepted host names besides those of loopback.
        tokens_file: the file of the tokens. ``spool_dir``: folder of submissions; None to accept none.
        cache_dir: kernelwright's cache folder.
        processes: number of worker processes for pages; 0 for none, None for a number that suits this machine.
    """

    store: Path
    tokens_file: Path
    cache_dir: Path
    host: str = "127.0.0.1"
    port: int = 8765
    public: bool = False
    names: tuple[str, ...] = field(default=())
    spool_dir: Path | None = None
    processes: int | None = None


def access_of(options: ServeOptions) -> Access:
    """The requests that a server with these options accepts.

    Raises:
        UsageError: a public address without ``public``, or no token with a needed scope.
    """
    tokens = Tokens(options.tokens_file)
    loopback = is_loopback(options.host)
    if not loopback and not options.public:
        raise UsageError(
            f"{options.host} can be reached from other machines", hint="add --public, with tokens, or leave --host out"
        )
    moment = datetime.now(UTC)
    good = (token for token in tokens.tokens() if token.state_at(moment) == "active")
    scopes = {scope for token in good for scope in token.scopes}
    if options.public and "read" not in scopes:
        raise UsageError(
            "a public board needs a token for reading", hint="make one: kernelwright tokens create NAME --scope read"
        )
    if options.spool_dir is not None and "submit" not in scopes:
        raise UsageError(
            "there is no token for submitting, so no kernel could be submitted",
            hint="make one: kernelwright tokens create NAME --scope submit",
        )
    names = {"localhost", "127.0.0.1", "[::1]", *(name.lower() for name in options.names)}
    if options.host not in ("0.0.0.0", "::", ""):
        names.add(f"[{options.host}]".lower() if ":" in options.host else options.host.lower())
    elif options.public and not options.names:
        raise UsageError(
            "a public board needs its host name", hint="give --name board.example.org, or the machine's address"
        )
    return Access(hosts=frozenset(names), tokens=tokens, reading_needs_token=options.public)


def serve(options: ServeOptions, *, started: Callable[[str], None] = lambda address: None) -> None:
    """Serve until a signal ends it.

    Args:
        started: called with the address once the server listens.

    Raises:
        UsageError: see :func:`access_of`; or the port is taken.
        StoreError: there is no store.
        MissingToolError: the packages of a web server are not installed.
    """
    access = access_of(options)
    try:
        import uvicorn

        from kernelwright.leaderboard._app import create_app, create_page_app
        from kernelwright.leaderboard._makers import Makers, count_makers
    except ImportError as error:
        raise MissingToolError(
            f"the leaderboard needs the package {error.name}", hint="pip install 'kernelwright[web]'"
        ) from None
    spool = None if options.spool_dir is None else Spool(options.spool_dir)
    build = partial(create_page_app, options.store, accepts_submissions=spool is not None, cache_dir=options.cache_dir)
    count = count_makers() if options.processes is None else options.processes
    makers = Makers(build, count) if count else None
    server: uvicorn.Server | None = None
    app: FastAPI = create_app(
        options.store,
        access=access,
        spool=spool,
        cache_dir=options.cache_dir,
        ending=lambda: server is not None and server.should_exit,
        maker=makers,
    )
    with listen(options.host, options.port) as listener:
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            limit_concurrency=_CONCURRENT,
            timeout_keep_alive=_KEEP_ALIVE_S,
            server_header=False,
            date_header=True,
            proxy_headers=False,
            timeout_graceful_shutdown=2,
        )
        server = uvicorn.Server(config)
        with _ended_by_signals(), makers or nullcontext():
            if makers is None:
                app.state.site.prepare()
            _make_first_pages(app, min(access.hosts))
            started(f"{address_of(options.host, listener)}/")
            server.run(sockets=[listener])


def _make_first_pages(app: FastAPI, host: str) -> None:
    """Make the pages that most readers open first, so that no reader waits for the first loading."""

    async def ask(path: str) -> None:
        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            pass

        headers = [(b"host", host.encode()), (b"accept", b"text/html")]
        place = {"path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http"}
        peers = {"client": ("127.0.0.1", 1), "server": (host, 1)}
        version = {"asgi": {"version": "3.0"}, "http_version": "1.1"}
        await app({"type": "http", "method": "GET", "headers": headers, **place, **peers, **version}, receive, send)

    async def ask_all() -> None:  # errors of a page are reported when it is read
        await asyncio.gather(*map(ask, _FIRST_PAGES), return_exceptions=True)

    asyncio.run(ask_all())


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGINT and SIGTERM end the server without an error. uvicorn raises them again after its own end."""
    ours = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler) if ours else None
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, before)
