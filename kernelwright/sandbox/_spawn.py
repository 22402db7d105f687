"""Starts processes from one thread that lives as long as this process.

``bwrap --die-with-parent`` relies on the kernel's parent-death signal, which fires when the *thread* that forked ends.
A worker started from a caller's short-lived thread would die with that thread.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple

Process = subprocess.Popen[bytes]


class Command(NamedTuple):
    """A process to start. It inherits ``fds`` under the same numbers, and the given standard streams."""

    argv: Sequence[str]
    env: Mapping[str, str]
    stdin: int
    stdout: int
    stderr: int
    fds: Sequence[int]
    cwd: str = "/"


_requests: queue.SimpleQueue[tuple[Command, Future[Process]]] = queue.SimpleQueue()
_started_in = 0
_lock = threading.Lock()


def spawn(command: Command, answer: Future[Process] | None = None) -> Process:
    """Start a process. Raises OSError if its program cannot be run.

    The caller may be interrupted after the process has started, but before this returns. A caller that passes its own
    ``answer`` can then still end the process, with :func:`end`.
    """
    global _requests, _started_in
    with _lock:
        if _started_in != os.getpid():  # the first call, or the first after a fork
            _requests, _started_in = queue.SimpleQueue(), os.getpid()
            threading.Thread(target=_serve, args=(_requests,), name="sandbox-spawn", daemon=True).start()
    answer = answer or Future()
    _requests.put((command, answer))
    return answer.result()


def end(answer: Future[Process]) -> None:
    """Kill and reap a process that has been requested. If its start has not begun, cancel it."""
    if answer.cancel():
        return
    with contextlib.suppress(OSError):
        process = answer.result()
        process.kill()
        process.wait()


def _serve(requests: queue.SimpleQueue[tuple[Command, Future[Process]]]) -> None:
    while True:
        command, answer = requests.get()
        if not answer.set_running_or_notify_cancel():
            continue
        try:
            process = subprocess.Popen(
                list(command.argv),
                env=dict(command.env),
                stdin=command.stdin,
                stdout=command.stdout,
                stderr=command.stderr,
                pass_fds=tuple(command.fds),
                cwd=command.cwd,
                start_new_session=True,
            )
        except OSError as error:
            answer.set_exception(error)
        else:
            answer.set_result(process)
