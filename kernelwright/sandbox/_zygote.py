"""The zygote: a trusted process that has imported torch, and forks itself for each warm worker.

A fork is ready in milliseconds; a fresh interpreter takes a second and a half. Forking is safe because the zygote has
one thread, never runs an OpenMP region (its children would hang in their first one), holds no secret, and was started
with the clean environment that its children show in /proc. It is process 1 of its own pid namespace, so all its
children end with it.

Requests come over the control socket: {"preload": module, "apart": bool} with three descriptors, the worker's control
socket and its standard output and error. If ``apart`` is true, a fork of the zygote imports the module, and from then
on forks all workers of that module. Other workers neither wait for the import nor have the module. A fourth descriptor,
if present, is the pidfd of a container's first process. The worker then enters that container, as an engine's ``exec``
would, and does not confine itself with namespaces. The worker receives its plan over its own control socket (see
``_entry``). When a worker ends, the zygote reports {"exit": code} there.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
from typing import Any, Final, NoReturn

from kernelwright.sandbox import _confine, _entry, _root, _system_calls, messages

_PRELOADED: Final = (
    *("ctypes", "json", "mmap", "struct", "numpy", "torch", "traceback"),
    "torch.utils.cpp_extension",  # every contestant replaces its load_inline; importing it takes 0.1 s
)
# Importing this asks the driver for devices. That starts threads, and CUDA then refuses to work in forks.
_ASKS_THE_DRIVER: Final = "torch.utils.cpp_extension"
_WORKER_NAMESPACES: Final = (
    _system_calls.CLONE_NEWNS | _system_calls.CLONE_NEWNET | _system_calls.CLONE_NEWIPC | _system_calls.CLONE_NEWUTS
)
_CONTAINER_NAMESPACES: Final = _WORKER_NAMESPACES | _system_calls.CLONE_NEWCGROUP
_INSIDE_UID: Final = 1000


def main() -> NoReturn:
    """``python -m kernelwright.sandbox._zygote CONTROL_FD``: isolate, import, report ready, serve until hang-up."""
    control = socket.socket(fileno=int(sys.argv[1]))
    config, _ = messages.recv_message(control, timeout_s=60.0, max_fds=0)
    try:
        if config["isolated"]:
            _enter_namespaces(control)
        wanted = [name for name in _PRELOADED if not (config["devices"] and name == _ASKS_THE_DRIVER)]
        loaded = [name for name in wanted if _preload(name)]
    except OSError as error:
        messages.send_message(control, {"error": str(error)})
        sys.exit(125)
    gc.collect()
    gc.freeze()  # otherwise a collection in a child would copy every page that it visits
    _give_back()
    messages.send_message(control, {"ready": True, "loaded": loaded, "threads": _threads()})
    _serve(control, isolated=config["isolated"])


def _give_back() -> None:
    """Return free memory to the kernel. A child then gets fresh pages instead of copies of this process's old ones."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _enter_namespaces(control: socket.socket) -> None:
    """Become process 1 of a pid namespace, within a user namespace if not root. Returns in the child only."""
    if os.geteuid() != 0:
        uid, gid = os.geteuid(), os.getegid()
        _system_calls.unshare(_system_calls.CLONE_NEWUSER)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{_INSIDE_UID} {uid} 1"),
            ("gid_map", f"{_INSIDE_UID} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    _system_calls.unshare(_system_calls.CLONE_NEWPID)
    pid = os.fork()
    if pid:
        control.close()
        _, status = os.waitpid(pid, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    _system_calls.prctl(_system_calls.PR_SET_PDEATHSIG, signal.SIGKILL)


def _serve(control: socket.socket, *, isolated: bool) -> NoReturn:
    """Fork on request and report exits, until the trusted side hangs up."""
    own_pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    children: dict[int, tuple[int, int]] = {}  # pidfd: (pid, worker's control socket)
    branches: dict[str, tuple[int, socket.socket]] = {}  # module: (pid, control socket) of its branch
    while True:
        poll = select.poll()
        for fd in (control.fileno(), *children):
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll():
            if fd in children:
                _report(fd, *children.pop(fd))
                continue
            try:
                request, fds = messages.recv_message(control, timeout_s=10.0)
            except messages.ProtocolError:
                os._exit(0)
            if request["apart"]:
                _pass_on(branches, control, request, fds, isolated=isolated)
                continue
            started = _fork(control, request, fds, own_pid_namespace, isolated=isolated)
            if started is not None:
                worker, pidfd, pid = started
                children[pidfd] = pid, worker


def _pass_on(
    branches: dict[str, tuple[int, socket.socket]],
    control: socket.socket,
    request: dict[str, Any],
    fds: tuple[int, ...],
    *,
    isolated: bool,
) -> None:
    """Pass a request to the branch that has its module. Starts the branch if it is missing or has died."""
    name = request["preload"]
    for _ in range(2):
        try:
            if name not in branches:
                branches[name] = _branch(control, isolated=isolated)
            messages.send_message(branches[name][1], {"preload": name, "apart": False}, fds)
            break
        except messages.ProtocolError:
            pid, channel = branches.pop(name)
            channel.close()
            os.waitpid(pid, 0)
        except OSError as error:
            _say_why_not(fds[0], error)
            break
    messages.close_fds(fds)


def _branch(control: socket.socket, *, isolated: bool) -> tuple[int, socket.socket]:
    """Fork a second zygote, which ends with this process. Returns its pid and the socket over which it serves."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    control.detach()
    ours.detach()
    for fd in sorted(int(name) for name in os.listdir("/proc/self/fd")):
        if fd > 2 and fd != theirs.fileno():
            messages.close_fds([fd])
    _system_calls.prctl(_system_calls.PR_SET_PDEATHSIG, signal.SIGKILL)
    _serve(theirs, isolated=isolated)


def _fork(
    control: socket.socket, request: dict[str, Any], fds: tuple[int, ...], own_pid_namespace: int, *, isolated: bool
) -> tuple[int, int, int] | None:
    """Fork one worker. Returns its control socket (the zygote's copy), pidfd and pid, or None after reporting why."""
    worker, stdout, stderr, *containers = fds
    try:
        if request["preload"]:
            _preload_safely(request["preload"])
        if containers:
            _system_calls.setns(containers[0], _system_calls.CLONE_NEWPID)
        elif isolated:
            _system_calls.unshare(_system_calls.CLONE_NEWPID)
        pid = os.fork()
    except OSError as error:
        _say_why_not(worker, error)
        messages.close_fds([worker])
        pid = -1
    if pid == 0:
        control.detach()
        _become_worker(worker, stdout, stderr, containers[0] if containers else None, isolated=isolated)
    if containers or isolated:
        _system_calls.setns(own_pid_namespace, _system_calls.CLONE_NEWPID)
    messages.close_fds([stdout, stderr, *containers])
    if pid < 0:
        return None
    return worker, os.pidfd_open(pid), pid


def _say_why_not(worker: int, error: OSError) -> None:
    channel = socket.socket(fileno=worker)
    with contextlib.suppress(messages.ProtocolError):
        messages.send_message(channel, {"error": f"the zygote cannot fork: {error}"}, timeout_s=0.0)
    channel.detach()


def _preload_safely(name: str) -> None:
    """Import a module of this package once. Raises OSError if that starts threads, as forks would then be unsafe."""
    if name not in sys.modules:
        _preload(name)
        if _threads() != 1:
            raise OSError(f"importing {name} starts threads")


def _become_worker(control_fd: int, stdout: int, stderr: int, container: int | None, *, isolated: bool) -> NoReturn:
    """In the child: drop the zygote's descriptors, enter the namespaces, and go on as every first program does."""
    with open(os.devnull) as null:
        os.dup2(null.fileno(), 0)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    for fd in sorted(int(name) for name in os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in (control_fd, container):
            messages.close_fds([fd])
    _system_calls.prctl(_system_calls.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    control = socket.socket(fileno=control_fd)
    try:
        plan, fds = _entry.receive_plan(control)
    except messages.ProtocolError:
        os._exit(125)
    given, files = (1 if plan["sock"] else 0), len(plan.get("root", {}).get("files", ()))
    groups, contents = fds[given : len(fds) - files], fds[len(fds) - files :]
    try:
        _confine.join_groups(groups)
        if container is not None:
            _system_calls.setns(container, _CONTAINER_NAMESPACES)
            os.close(container)
        elif isolated:
            _system_calls.unshare(_WORKER_NAMESPACES)
            _root.build_root(plan["root"], contents)
            socket.sethostname("sandbox")
    except OSError as error:
        _entry.fail(control, str(error))
    _entry.perform(control, plan, fds[0] if given else None, [])


def _report(pidfd: int, pid: int, worker: int) -> None:
    """Reap a child and report its exit code to its owner."""
    _, status = os.waitpid(pid, 0)
    os.close(pidfd)
    channel = socket.socket(fileno=worker)
    with channel, contextlib.suppress(messages.ProtocolError):
        messages.send_message(channel, {"exit": os.waitstatus_to_exitcode(status)}, timeout_s=0.0)


def _preload(name: str) -> bool:
    """Import a module and return whether that worked. An import that fails here fails again, visibly, in the worker."""
    try:
        importlib.import_module(name)
    except Exception:  # noqa: BLE001 - a module of ours may raise anything at import; the worker reports it
        return False
    return True


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


if __name__ == "__main__":
    main()
