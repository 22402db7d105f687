"""Serves rewards from this machine: the referee runs in the main thread, the web server in another.

The main thread judges because signals interrupt only it. Also, a sandbox's processes die with the thread that started
them, and the main thread outlives all others.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from kernelwright.config import Settings
from kernelwright.errors import MissingToolError, UsageError
from kernelwright.listening import address_of, is_loopback, listen
from kernelwright.pool import open_local_referee
from kernelwright.rl._local import LocalScorer
from kernelwright.rl._service import Service, refusal
from kernelwright.rl._wire import TOKEN_PATTERN
from kernelwright.store import Store

if TYPE_CHECKING:
    import uvicorn

    from kernelwright.pool import OpenReferee

DEFAULT_PORT: Final = 8775
_LOOK_S: Final = 0.5
_CONCURRENT: Final = 512
_MOST_TOKENS: Final = 64
_HOLDER: Final = re.compile(r"[A-Za-z0-9._-]{1,40}")


class _Interrupted(BaseException):
    """The current judgement must stop at once."""


@dataclass(frozen=True)
class RewardOptions:
    """Options of the reward server.

    Attributes:
        reward: the formula's name.
        host: address to listen on; any other than loopback needs ``token_file``.
        port: port to listen on; 0 for any free one.
        problems: problems that clients may ask for; empty for all of the suites.
        queue: most waiting jobs.
        sessions: sessions of the referee that are kept open.
        token_file: file with one token a line, each after the name of its holder if there are several.
        run_id: run to continue, with its verdicts; None for a new one.
    """

    reward: str = "kernelwright"
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    problems: tuple[str, ...] = ()
    queue: int = 64
    sessions: int = 4
    token_file: Path | None = None
    run_id: str | None = None


def serve_rewards(
    settings: Settings,
    options: RewardOptions,
    *,
    started: Callable[[str], None] = lambda address: None,
    open_referee: OpenReferee = open_local_referee,
) -> None:
    """Serve until SIGINT or SIGTERM. The job judged at that moment is dropped, and its client asks for it again.

    Call this in the main thread of a process that does nothing else.

    Args:
        started: called with the address once the server listens on it.

    Raises:
        UsageError: the address is not loopback and there is no token; the token file cannot be used; a problem, the
            reward or the run is unknown; or the port is taken.
        StoreError: the store cannot be opened.
        MissingToolError: the packages of a web server are not installed.
    """
    tokens = {} if options.token_file is None else read_tokens(options.token_file)
    if not (is_loopback(options.host) or tokens):
        raise UsageError(
            f"{options.host} can be reached from other machines", hint="add --token-file FILE, or leave --host out"
        )
    service = Service(settings, problems=options.problems, capacity=options.queue)
    with Store.open(settings.store) as store, listen(options.host, options.port) as listener:
        scorer = LocalScorer(
            settings,
            store,
            reward=options.reward,
            run_id=options.run_id,
            sessions=options.sessions,
            open_referee=open_referee,
        )
        server = _web_server(service, tokens)
        web = threading.Thread(target=_run_web, args=(server, listener, settings.threads), name="web", daemon=True)
        ending = _Ending()
        try:
            web.start()
            started(address_of(options.host, listener))
            with scorer:
                ending.work(service, scorer)
        finally:
            service.jobs.close(refusal(503, "the server was stopped", "ask again once it is back"))
            server.should_exit = True
            web.join(timeout=5.0)


class _Ending:
    """Ends the work on SIGINT or SIGTERM, even in the middle of a judgement, but never interrupts the cleanup."""

    def __init__(self) -> None:
        self._ended = False
        self._in_hand = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)

    def work(self, service: Service, scorer: LocalScorer) -> None:
        """Judge jobs until a signal comes.

        The queue is polled, because a signal that comes just before a wait begins is handled only after that wait.
        """
        try:
            while not self._ended:
                self._in_hand = True
                service.work_once(scorer, _LOOK_S)
                self._in_hand = False
        except _Interrupted:
            pass
        finally:
            self._in_hand = False

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._ended = True
        if self._in_hand:
            self._in_hand = False
            raise _Interrupted


def read_tokens(path: Path) -> dict[str, str]:
    """Tokens by the names of their holders, from a file with ``NAME TOKEN``, or a token alone, on each line.

    Raises:
        UsageError: the file cannot be read, has no tokens or too many, a malformed one, or two of one name. No message
            repeats its content.
    """
    advice = "one token a line, of 16 characters or more: python -c 'import secrets; print(secrets.token_urlsafe())'"
    try:
        lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"the token file {path} cannot be read", hint=advice) from None
    tokens: dict[str, str] = {}
    for number, words in enumerate(lines, 1):
        name, token = words if len(words) == 2 else (f"token{number}", words[0])
        if len(words) > 2 or not (_HOLDER.fullmatch(name) and re.fullmatch(TOKEN_PATTERN, token)) or name in tokens:
            raise UsageError(f"line {number} of the token file {path} cannot be used", hint=advice)
        tokens[name] = token
    if not 0 < len(tokens) <= _MOST_TOKENS:
        raise UsageError(f"the token file {path} holds {len(tokens) or 'no'} tokens", hint=advice)
    return tokens


def _web_server(service: Service, tokens: dict[str, str]) -> uvicorn.Server:
    try:
        import uvicorn

        from kernelwright.rl._web import Access, create_app
    except ImportError as error:
        raise MissingToolError(
            f"the reward server needs the package {error.name}", hint="pip install 'kernelwright[web]'"
        ) from None
    config = uvicorn.Config(
        create_app(service, Access(tokens)),
        log_level="warning",
        access_log=False,
        limit_concurrency=_CONCURRENT,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(config)


def _run_web(server: uvicorn.Server, listener: socket.socket, threads: int) -> None:
    """Serve on all cores but the last ones, on which the referee times. Signals are left to the main thread."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) > threads:
        os.sched_setaffinity(0, cpus[:-threads])  # for this thread, and for those that it starts
    server.run(sockets=[listener])
