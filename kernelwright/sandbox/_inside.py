"""Process 1 of a container: connects to the trusted side, starts one program, reaps children, reports the exit code.

The engine starts it as ``python _inside.py SOCKET``. It receives at most one message {"argv": [...], "env": {...},
"stay": bool} with four descriptors: the program's control socket (its descriptor 3) and its standard streams. When the
program ends, process 1 kills everything else in the container and sends {"exit": code}. If ``stay`` is true, the
container then stays, so that its control group can be read. Otherwise it ends, to make the program's end visible
outside. In a container that a warm worker enters, process 1 gets no message and only reaps. When the trusted side hangs
up, for whatever reason, the container ends.

The guest has the same user id, but it cannot signal process 1 (of its own namespace), look into it (not dumpable), or
write to the connection (not inherited).
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # started as a file, without PYTHONPATH
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import contextlib
import select
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from kernelwright.sandbox import _system_calls, messages

CONTROL_FD: Final = 3
_TIMEOUT_S: Final = 10.0


def main() -> NoReturn:
    """Entry point of the file."""
    _system_calls.prctl(_system_calls.PR_SET_DUMPABLE, 0)
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.connect(sys.argv[1])
    wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(link, select.POLLIN | select.POLLRDHUP)
    poll.register(wake_read, select.POLLIN)
    program, stays = 0, True
    while True:
        for fd, events in poll.poll():
            if fd == wake_read:
                os.read(wake_read, 4096)
                if program in (ended := _reap()):
                    _finish(link, ended[program], stays=stays)
            elif events & (select.POLLRDHUP | select.POLLHUP | select.POLLERR):
                os._exit(0)
            else:
                message, fds = messages.recv_message(link, timeout_s=_TIMEOUT_S)
                program, stays = _start(message, fds), message["stay"]


def _start(message: Mapping[str, Any], fds: Sequence[int]) -> int:
    """Fork the program. Returns its process id."""
    pid = os.fork()
    if pid == 0:
        _become(message["argv"], message["env"], fds)
    messages.close_fds(fds)
    return pid


def _become(argv: list[str], env: dict[str, str], fds: Sequence[int]) -> NoReturn:
    """In the child: keep only the standard streams and the control socket, and execute the program."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for source, target in zip(fds, (CONTROL_FD, 0, 1, 2), strict=True):
            os.dup2(source, target)
        os.execve(argv[0], argv, env)
    finally:
        os._exit(127)


def _reap() -> dict[int, int]:
    """Reap all children that have ended, adopted ones too. Returns {process id: exit code}."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = os.waitstatus_to_exitcode(status)
    return ended


def _finish(link: socket.socket, code: int, *, stays: bool) -> NoReturn:
    """Kill the program's leftovers and send its exit code. If the container stays, wait for the hang-up."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(messages.ProtocolError):
        messages.send_message(link, {"exit": code}, timeout_s=_TIMEOUT_S)
    if stays:
        poll = select.poll()
        poll.register(link, select.POLLRDHUP)
        poll.poll()
    os._exit(0)


if __name__ == "__main__":
    main()
