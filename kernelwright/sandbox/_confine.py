"""The steps by which a process confines itself, in order, before anything untrusted runs in it.

One-shot programs, cold workers, warm workers and the ``process`` rung take the same steps. Only the plan that the
trusted side sends differs. This module runs inside: it uses only the standard library and imports quickly.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kernelwright.sandbox import _landlock, _seccomp, _system_calls

_RLIMITS: Final = {
    "core": resource.RLIMIT_CORE,
    "cpu": resource.RLIMIT_CPU,
    "data": resource.RLIMIT_DATA,
    "fsize": resource.RLIMIT_FSIZE,
    "memlock": resource.RLIMIT_MEMLOCK,
    "msgqueue": resource.RLIMIT_MSGQUEUE,
    "nice": resource.RLIMIT_NICE,
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
    "rtprio": resource.RLIMIT_RTPRIO,
    "sigpending": resource.RLIMIT_SIGPENDING,
}


def join_groups(fds: Sequence[int]) -> None:
    """Move this process into the groups whose ``cgroup.procs`` are open as ``fds``, and close them."""
    for fd in fds:
        os.write(fd, b"0")
        os.close(fd)


def confine(plan: Mapping[str, Any]) -> list[str]:
    """Apply a plan to this process irrevocably. Returns the names of the layers that took effect.

    Keys (all optional): ``rlimits`` {name: value}, ``cpus`` [int], ``uid`` int, ``keep_read`` bool, ``confined`` bool,
    ``die_with_parent`` bool, ``landlock`` {"read": [path], "write": [path]}, ``filter`` level, ``cwd`` path.

    Raises:
        OSError: the kernel refused a step; the caller must not go on.
    """
    layers: list[str] = []
    for name, value in plan.get("rlimits", {}).items():
        _lower(_RLIMITS[name], value)
    if plan.get("cpus"):
        os.sched_setaffinity(0, plan["cpus"])
    if plan.get("confined", True):
        _drop_privileges(plan.get("uid"), keep_read=plan.get("keep_read", False))
        _system_calls.prctl(_system_calls.PR_SET_NO_NEW_PRIVS, 1)
    if plan.get("die_with_parent"):
        _system_calls.prctl(
            _system_calls.PR_SET_PDEATHSIG, signal.SIGKILL
        )  # here, because a change of user id clears it
    if plan.get("cwd"):
        os.chdir(plan["cwd"])
    if "landlock" in plan:
        version = _landlock.restrict(plan["landlock"]["read"], plan["landlock"]["write"])
        layers += [f"landlock:abi{version}"] if version else []
    if plan.get("filter"):
        _seccomp.install(plan["filter"])
        layers.append(f"seccomp:{plan['filter']}")
    return layers


def _lower(kind: int, value: int) -> None:
    """Set a hard and soft limit, but never above the current hard limit."""
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _drop_privileges(uid: int | None, *, keep_read: bool) -> None:
    """Become ``uid`` (if given) without capabilities. ``keep_read`` keeps one: to read past file modes."""
    keep = _system_calls.CAP_DAC_READ_SEARCH if keep_read else None
    _system_calls.drop_bounding(keep=keep)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        if keep_read:
            _system_calls.prctl(_system_calls.PR_SET_KEEPCAPS, 1)
        os.setresuid(uid, uid, uid)
    _system_calls.drop_capabilities(keep=keep)
    # Changed credentials make a process undumpable: its /proc/self would belong to root, and a referee run by an
    # ordinary user could not read outputs with process_vm_readv. No other user's process can reach into the sandbox.
    _system_calls.prctl(_system_calls.PR_SET_DUMPABLE, 1)
