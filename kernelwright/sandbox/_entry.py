"""The first program inside a sandbox: receives its plan, confines itself, reports that, and only then runs the guest.

Bubblewrap, the ``process`` rung or process 1 of a container starts it as ``python _entry.py CONTROL_FD``. A fork of the
zygote calls its functions. The messages on the control socket are, in this order: plan in; ``ready`` (or ``error``)
out; ``go`` in. The control socket is closed before the guest runs.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # started as a file, without PYTHONPATH if it only execs a program
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import contextlib
import importlib
import select
import socket
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from kernelwright.sandbox import _confine, _system_calls, _tasks, messages

MAX_PLAN_BYTES = 1 << 20
_HANDSHAKE_S = 60.0
_TRACEBACK_CHARS = 8192


def receive_plan(control: socket.socket) -> tuple[dict[str, Any], tuple[int, ...]]:
    """The plan and its descriptors: first the guest's socket if it has one, then those of the groups."""
    return messages.recv_message(control, timeout_s=_HANDSHAKE_S, max_bytes=MAX_PLAN_BYTES)


def perform(control: socket.socket, plan: Mapping[str, Any], sock_fd: int | None, layers: list[str]) -> NoReturn:
    """Confine this process, shake hands, run the guest, and end."""
    try:
        layers = layers + _confine.confine(plan)
    except (OSError, ValueError, NotImplementedError) as error:
        fail(control, f"{type(error).__name__}: {error}")
    messages.send_message(control, {"ready": True, "layers": layers})
    messages.recv_message(control, timeout_s=_HANDSHAKE_S, max_fds=0)
    control.close()
    os.environ.clear()
    os.environ.update(plan["env"])
    if "tempfile" in sys.modules:  # a zygote may have asked for its folder, before TMPDIR was this one
        vars(sys.modules["tempfile"])["tempdir"] = None
    if plan["kind"] == "exec":
        _execute(plan["argv"])
    assert sock_fd is not None
    _call(plan, socket.socket(fileno=sock_fd))


def fail(control: socket.socket, reason: str) -> NoReturn:
    """Tell the trusted side that the sandbox could not be set up, and end before any guest runs."""
    messages.send_message(control, {"error": reason[:2000]})
    os._exit(125)


def resolve(entry: str) -> Callable[..., Any]:
    """The function that "package.module:function" names."""
    module, _, name = entry.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def _execute(argv: list[str]) -> NoReturn:
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(127)


def _call(plan: Mapping[str, Any], sock: socket.socket) -> NoReturn:
    """Run the entry as ``function(sock)``, or answer one payload with it. End without ``atexit`` handlers."""
    status = 0
    try:
        if plan["kind"] == "call":
            _answer(plan["entry"], sock, plan["max_reply_bytes"])
        else:
            resolve(plan["entry"])(sock)
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # noqa: BLE001 - the boundary of the process: the traceback goes to stderr
        traceback.print_exc()
        status = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            status = status or 1
    os._exit(status & 0xFF)


def _answer(entry: str, sock: socket.socket, max_reply_bytes: int) -> None:
    """Receive a payload, call the entry, send {"result": ..} or {"exception": .., "message": .., "traceback": ..}."""
    payload, _ = messages.recv_message(sock, timeout_s=None, max_bytes=1 << 30, max_depth=64, max_fds=0)
    try:
        reply = {"result": resolve(entry)(payload)}
    except Exception as error:  # noqa: BLE001 - the boundary of the process: the traceback goes to the caller
        text = traceback.format_exc()[-_TRACEBACK_CHARS:]
        reply = {"exception": type(error).__name__, "message": str(error)[:2000], "traceback": text}
    try:
        messages.send_message(sock, reply, timeout_s=3600.0, max_bytes=max_reply_bytes)
    except messages.PeerClosed:
        raise
    except messages.ProtocolError as error:
        messages.send_message(sock, {"exception": "", "message": error.message})


def main() -> NoReturn:
    """Entry point of the file."""
    control = socket.socket(fileno=int(sys.argv[1]))
    plan, fds = receive_plan(control)
    count = 1 if plan["sock"] else 0
    try:
        _confine.join_groups(fds[count:])
    except OSError as error:
        fail(control, f"cannot join the control group: {error}")
    keep = {0, 1, 2, control.fileno(), *fds[:count]}
    for fd in sorted(int(name) for name in os.listdir("/proc/self/fd")):
        if fd not in keep:
            messages.close_fds([fd])
    if plan.get("reaper"):
        _fork_under_reaper(control, fds[:count])
    if plan["preload"]:
        _preload(plan["preload"])
    perform(control, plan, fds[0] if count else None, [])


def _preload(module: str) -> None:
    """Import torch and a module of this package before the filter is installed, as the zygote does.

    MKL counts the cores by pinning itself to each of them. If sched_setaffinity were already refused, a cold worker
    would run on one thread, but a warm one on several.
    """
    for name in ("numpy", "torch", module):
        with contextlib.suppress(ImportError):  # fails again, visibly, once the guest runs
            importlib.import_module(name)


def _fork_under_reaper(control: socket.socket, guest_fds: tuple[int, ...]) -> None:
    """Continue in a child. When it or the trusted side ends, the parent kills all descendants, also adopted ones.

    Without a pid namespace nothing else would kill them: a daemon leaves its process group and its parent.
    """
    _system_calls.prctl(_system_calls.PR_SET_CHILD_SUBREAPER, 1)
    child = os.fork()
    if child == 0:
        return
    messages.close_fds([1, 2, *guest_fds])
    poll = select.poll()
    poll.register(control, select.POLLRDHUP)  # the trusted side hung up
    poll.register(os.pidfd_open(child), select.POLLIN)
    poll.poll()
    _, status = os.waitpid(child, os.WNOHANG)
    code = os.waitstatus_to_exitcode(status)
    while True:
        _tasks.kill_descendants()
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
