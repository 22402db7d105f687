"""System calls that Python does not offer, through ctypes. Linux on x86_64 and aarch64."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from typing import Any, Final

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWCGROUP: Final = 0x02000000
CLONE_NEWUTS: Final = 0x04000000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000

MS_RDONLY: Final = 1
MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_NOEXEC: Final = 8
MS_REMOUNT: Final = 32
MS_BIND: Final = 4096
MS_REC: Final = 16384
MS_PRIVATE: Final = 1 << 18
MNT_DETACH: Final = 2

PR_SET_PDEATHSIG: Final = 1
PR_SET_DUMPABLE: Final = 4
PR_SET_KEEPCAPS: Final = 8
PR_SET_SECCOMP: Final = 22
PR_CAPBSET_DROP: Final = 24
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38
PR_CAP_AMBIENT: Final = 47
CAP_DAC_READ_SEARCH: Final = 2
CAP_SYS_ADMIN: Final = 21
_CAPABILITY_VERSION_3: Final = 0x20080522
_AT_FDCWD: Final = -100
_AT_RECURSIVE: Final = 0x8000
_ATTR_RDONLY: Final = 1
_ATTR_NOSUID: Final = 2
_ATTR_NODEV: Final = 4

_PIVOT_ROOT: Final = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR: Final = 442

libc: Final = ctypes.CDLL(None, use_errno=True)


def machine() -> str:
    """The architecture as the kernel names it."""
    return platform.machine()


def check(result: int, what: str) -> int:
    """Return ``result``, or raise the C library's errno as an OSError that names the call."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def syscall(number: int, *arguments: Any, what: str = "") -> int:
    """Make a raw system call. Integers are passed as 64 bits."""
    values = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return check(libc.syscall(ctypes.c_long(number), *values), what or f"syscall {number}")


def prctl(option: int, *arguments: int) -> None:
    """``prctl(2)``; missing arguments are 0."""
    values = [ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:4]]
    check(libc.prctl(option, *values), f"prctl {option}")


def unshare(flags: int) -> None:
    """``unshare(2)``."""
    check(libc.unshare(flags), f"unshare {flags:#x}")


def setns(fd: int, flags: int) -> None:
    """``setns(2)``."""
    check(libc.setns(fd, flags), "setns")


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """``mount(2)``."""
    result = libc.mount(
        source.encode(), target.encode(), kind.encode() if kind else None, ctypes.c_ulong(flags), options.encode()
    )
    check(result, f"mount {kind or source} on {target}")


def bind(source: str, target: str, *, writable: bool = False, devices: bool = False) -> None:
    """Bind-mount a tree and its submounts: no setuid; read-only unless ``writable``; no devices unless ``devices``."""
    mount(source, target, None, MS_BIND | MS_REC)
    attributes = _ATTR_NOSUID | (0 if writable else _ATTR_RDONLY) | (0 if devices else _ATTR_NODEV)
    request = ctypes.create_string_buffer(struct.pack("QQQQ", attributes, 0, 0, 0), 32)
    syscall(_MOUNT_SETATTR, _AT_FDCWD, target.encode(), _AT_RECURSIVE, request, 32, what=f"mount_setattr {target}")


def unmount(target: str) -> None:
    """Detach a mount and everything below it."""
    check(libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    """``pivot_root(2)``."""
    syscall(_PIVOT_ROOT[machine()], new.encode(), old.encode(), what="pivot_root")


def drop_bounding(*, keep: int | None = None) -> None:
    """Drop every capability but ``keep`` from the bounding set, if this process still may."""
    for capability in range(64):
        if capability != keep and libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            return  # EINVAL: past the last one. EPERM: no CAP_SETPCAP, then no_new_privs makes the set irrelevant


def drop_capabilities(*, keep: int | None = None) -> None:
    """Drop all capabilities except ``keep``, which then also survives ``execve``."""
    libc.prctl(PR_CAP_AMBIENT, 4, 0, 0, 0)  # PR_CAP_AMBIENT_CLEAR_ALL; unknown to kernels before 4.3
    low = 0 if keep is None else 1 << keep
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    data = struct.pack("6I", low, low, low, 0, 0, 0)
    check(libc.capset(header, data), "capset")
    if keep is not None:
        prctl(PR_CAP_AMBIENT, 2, keep)  # PR_CAP_AMBIENT_RAISE
