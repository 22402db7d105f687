"""Processes as /proc shows them: finds descendants, kills them, and stops them if there is no freezer."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from typing import Final

from kernelwright.errors import SandboxError

_WAIT_S: Final = 5.0


def tree(pid: int) -> list[int]:
    """A process and its descendants that have not been orphaned, parents first."""
    children = _children if os.path.exists("/proc/thread-self/children") else _children_by_search()
    found = [pid]
    for known in found:
        found.extend(children(known))
    return found


def owned_by(uid: int) -> list[int]:
    """All processes of a user id, without zombies."""
    return [pid for pid in _all() if _uid(pid) == uid and _state(f"/proc/{pid}/stat") not in "ZX"]


def kill_all(uid: int) -> None:
    """Kill all processes of a user id, even if they keep forking."""
    deadline = time.monotonic() + _WAIT_S
    while (pids := owned_by(uid)) and time.monotonic() < deadline:
        _signal(pids, signal.SIGSTOP)
        _signal(pids, signal.SIGKILL)


def kill_descendants() -> None:
    """Kill the descendants of this process. Each is stopped first, so that it cannot fork meanwhile."""
    seen: set[int] = set()
    while new := [member for member in tree(os.getpid())[1:] if member not in seen]:
        seen.update(new)
        _signal(new, signal.SIGSTOP)
    _signal(seen, signal.SIGKILL)


def threads_of(uid: int) -> int:
    """The number of threads that a user id runs now. RLIMIT_NPROC counts them all."""
    return sum(len(_thread_states(pid)) for pid in _all() if _uid(pid) == uid)


def stop(members: Callable[[], list[int]]) -> None:
    """Stop all processes that ``members`` lists, with SIGSTOP, and wait until every thread is stopped.

    A timer or a descriptor's owner setting could send SIGCONT to the program although its threads are stopped. The
    contestant filter refuses both.
    """
    deadline = time.monotonic() + _WAIT_S
    while True:
        seen = members()
        _signal(seen, signal.SIGSTOP)
        if all(state in "TtZX" for member in seen for state in _thread_states(member)) and seen == members():
            return
        if time.monotonic() > deadline:
            raise SandboxError("a worker's tasks did not stop within 5 s", hint="run the job again")


def resume(members: Iterable[int]) -> None:
    """Undo :func:`stop`."""
    _signal(members, signal.SIGCONT)


def _children(pid: int) -> list[int]:
    """The children of a process, as the kernel lists them by thread."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found.extend(int(child) for child in file.read().split())
    return found


def _children_by_search() -> Callable[[int], list[int]]:
    """A function like :func:`_children` for kernels without CONFIG_PROC_CHILDREN, from one scan of all processes."""
    children: dict[int, list[int]] = {}
    for pid in _all():
        with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/stat") as file:
            children.setdefault(int(file.read().rpartition(")")[2].split()[1]), []).append(pid)
    return lambda parent: children.get(parent, [])


def _all() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _uid(pid: int) -> int:
    """The real user id; -1 if the process is gone. (For undumpable processes /proc/PID itself belongs to root.)"""
    try:
        with open(f"/proc/{pid}/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("Uid:"))
    except (OSError, StopIteration):
        return -1


def _state(path: str) -> str:
    """A task's state letter; X if the task is gone."""
    try:
        with open(path) as file:
            return file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "X"


def _thread_states(pid: int) -> list[str]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return ["X"]
    return [_state(f"/proc/{pid}/task/{thread}/stat") for thread in threads]


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
