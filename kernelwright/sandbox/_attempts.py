"""The self-test's guest: tries to break out of the sandbox and reports what it reached. A success does no harm.

It runs inside, as the entry of a worker or as a file with its payload on standard input. Each attempt returns what it
reached; an empty string means that the sandbox held.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import json
import os
import socket
import stat
import sys
from collections.abc import Callable
from typing import Any

_CLONE_NEWUSER = 0x10000000
_PR_GET_NO_NEW_PRIVS = 39
_KERNEL_FILES = (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/vm/drop_caches",
    "/proc/sysrq-trigger",
    "/sys/fs/cgroup/cgroup.procs",
)


def attempt(payload: dict[str, Any]) -> dict[str, Any]:
    """Make every attempt. ``payload``: see ``_probe``. Returns {name: what was reached, or ""}."""
    attempts: dict[str, Callable[[dict[str, Any]], str]] = {
        "kernel settings": _kernel_settings,
        "environment": _environment,
        "secret file": _secret_file,
        "write outside": _write_outside,
        "network": _network,
        "other processes": _other_processes,
        "namespaces": _namespaces,
        "privileges": _privileges,
        "descriptors": _descriptors,
    }
    return {name: function(payload) for name, function in attempts.items()}


def _kernel_settings(_: dict[str, Any]) -> str:
    return ", ".join(path for path in _KERNEL_FILES if _opens(path, os.O_WRONLY))


def _environment(payload: dict[str, Any]) -> str:
    """Look for the secret that the canary process outside carries in its environment."""
    token = payload["token"].encode()
    for path in glob.glob("/proc/[0-9]*/environ"):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            if token in file.read():
                return path
    return ""


def _secret_file(payload: dict[str, Any]) -> str:
    """Look for the canary file at its own path and below every mount: the host's tree may be mounted anywhere."""
    paths = [mount + payload["secret"] for mount in _mounts()]
    return ", ".join(path for path in paths if _opens(path, os.O_RDONLY))


def _write_outside(payload: dict[str, Any]) -> str:
    """Try to write to system directories, and leave a mark in the host directories that the trusted side will check."""
    for directory in [mount + directory for mount in _mounts() for directory in payload["marked"]]:
        with contextlib.suppress(OSError):
            os.close(os.open(os.path.join(directory, payload["mark"]), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    for directory in payload["forbidden"]:
        path = os.path.join(directory, payload["mark"])
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            os.unlink(path)
            return str(directory)
    return ""


def _network(payload: dict[str, Any]) -> str:
    reached = []
    for family in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK):
        kind = socket.SOCK_RAW if family == socket.AF_NETLINK else socket.SOCK_STREAM
        with contextlib.suppress(OSError), socket.socket(family, kind):
            reached.append(f"a socket of family {family.name}")
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect("\0" + payload["listener"])
        reached.append("a unix socket outside")
    return ", ".join(reached)


def _other_processes(payload: dict[str, Any]) -> str:
    """Signal, read and trace the canary process."""
    canary = payload["canary"]
    libc = ctypes.CDLL(None, use_errno=True)
    reached = []
    with contextlib.suppress(OSError):
        os.kill(canary, 0)
        reached.append("signals")
    if libc.ptrace(16, canary, None, None) == 0:  # PTRACE_ATTACH
        libc.ptrace(17, canary, None, None)
        reached.append("ptrace")
    if _opens(f"/proc/{canary}/mem", os.O_RDWR):
        reached.append("memory")
    return ", ".join(reached)


def _namespaces(payload: dict[str, Any]) -> str:
    """Check that the namespaces the sandbox claims differ from the trusted side's, and that no new ones can be made."""
    reached = [
        f"shares {name}"
        for name, identity in payload["namespaces"].items()
        if _link(f"/proc/self/ns/{name}") == identity
    ]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWUSER) == 0 or ctypes.get_errno() == errno.EUSERS:
        reached.append("can make user namespaces")
    return ", ".join(reached)


def _privileges(payload: dict[str, Any]) -> str:
    status = dict(line.split(":\t", 1) for line in _read("/proc/self/status").splitlines() if ":\t" in line)
    reached = []
    if int(status["CapEff"], 16) & ~payload["capabilities"]:
        reached.append(f"capabilities {status['CapEff']}")
    if ctypes.CDLL(None).prctl(_PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1:
        reached.append("may gain privileges")
    if status["Seccomp"].strip() != "2":
        reached.append("no seccomp filter")
    if payload["root"] and os.getuid() == 0:
        reached.append("is root")
    return ", ".join(reached)


def _descriptors(payload: dict[str, Any]) -> str:
    """Check that only the standard streams and, in a worker, one socket are open."""
    sockets: list[str] = []
    others: list[str] = []
    for fd in sorted(int(name) for name in os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself is closed by now
            found = sockets if stat.S_ISSOCK(os.fstat(fd).st_mode) else others
            if fd > 2:
                found.append(_link(f"/proc/self/fd/{fd}"))
    return ", ".join([*others, *sockets[payload["sockets"] :]])


def _mounts() -> list[str]:
    """The visible mount points, without a trailing slash."""
    return sorted({line.split()[1].rstrip("/") for line in _read("/proc/self/mounts").splitlines()})


def _opens(path: str, flags: int) -> bool:
    try:
        os.close(os.open(path, flags))
    except OSError:
        return False
    return True


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


if __name__ == "__main__":
    json.dump(attempt(json.load(sys.stdin)), sys.stdout)
