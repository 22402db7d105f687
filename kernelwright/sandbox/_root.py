"""Builds a sandbox's file system from inside, for workers forked from the zygote; bubblewrap does it for cold workers.

The root is a small tmpfs and read-only in the end. The host's tree is detached before anything untrusted runs. The
steps are those of ``pivot_root(2)`` and bubblewrap: the new root is mounted over /tmp, which the pivot uncovers again.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kernelwright.sandbox import _system_calls

_DEVICES: Final = ("null", "zero", "full", "random", "urandom")
_DEVICE_LINKS: Final = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
_HOST: Final = "/.host"
_PLAIN: Final = _system_calls.MS_NOSUID | _system_calls.MS_NODEV
_MAX_INODES: Final = 1 << 16


def build_root(plan: Mapping[str, Any], files: Sequence[int] = ()) -> None:
    """Replace the host's file system by a new one. Needs new mount and pid namespaces and CAP_SYS_ADMIN in them.

    Keys: ``binds`` [[host path, path]], ``links`` [[path, target]], ``directories`` [path], ``writable`` [path],
    ``tmpfs_bytes`` int, ``mounts`` [[host path, path, writable]], ``files`` [name under /in], ``devices`` [path]. The
    descriptors ``files`` hold the contents of the files; they are closed here.
    """
    _system_calls.mount("none", "/", None, _system_calls.MS_REC | _system_calls.MS_PRIVATE)
    _system_calls.mount("tmpfs", "/tmp", "tmpfs", _PLAIN, "size=1m,nr_inodes=8192,mode=755")
    os.mkdir(f"/tmp{_HOST}")
    _system_calls.pivot_root("/tmp", f"/tmp{_HOST}")
    os.chdir("/")
    os.umask(0o022)
    _make_devices(plan.get("devices", ()))
    os.mkdir("/proc")
    closed = (
        0 if plan.get("devices") else _system_calls.MS_RDONLY
    )  # CUDA's driver writes the names of its threads there
    _system_calls.mount("proc", "/proc", "proc", _PLAIN | _system_calls.MS_NOEXEC | closed)
    for path in plan["writable"]:
        os.makedirs(path, exist_ok=True)
        options = f"size={plan['tmpfs_bytes']},nr_inodes={_MAX_INODES},mode=1777"
        _system_calls.mount("tmpfs", path, "tmpfs", _PLAIN, options)
    for path in plan["directories"]:
        os.makedirs(path, exist_ok=True)
    for source, target in plan["binds"]:
        _bind(source, target)
    if files:
        _lay_files("/in", plan["files"], files)
    for source, target, writable in plan["mounts"]:
        _bind(source, target, writable=writable)
    for path, target in plan["links"]:
        os.symlink(target, path)
    _system_calls.unmount(_HOST)
    os.rmdir(_HOST)
    flags = _system_calls.MS_REMOUNT | _system_calls.MS_BIND | _system_calls.MS_RDONLY | _PLAIN
    _system_calls.mount("none", "/", None, flags)


def _make_devices(more: Sequence[str]) -> None:
    os.mkdir("/dev")
    for path in (*(f"/dev/{name}" for name in _DEVICES), *more):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o444))
        _system_calls.bind(f"{_HOST}{path}", path, devices=True)
    for name, target in _DEVICE_LINKS.items():
        os.symlink(target, f"/dev/{name}")


def _lay_files(directory: str, names: Sequence[str], contents: Sequence[int]) -> None:
    """Make a read-only file system with copies of the descriptors' contents. Closes the descriptors."""
    sizes = [os.fstat(fd).st_size for fd in contents]
    room = sum(size + 2 * mmap.PAGESIZE for size in sizes) + mmap.PAGESIZE
    os.makedirs(directory, exist_ok=True)
    _system_calls.mount("tmpfs", directory, "tmpfs", _PLAIN, f"size={room},nr_inodes={_MAX_INODES},mode=755")
    for name, fd, size in zip(names, contents, sizes, strict=True):
        path = f"{directory}/{name}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        out = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o444)
        done = 0
        while done < size:
            done += os.sendfile(out, fd, done, size - done)
        os.close(out)
        os.close(fd)
    _system_calls.mount("none", directory, None, _system_calls.MS_REMOUNT | _system_calls.MS_RDONLY | _PLAIN)


def _bind(source: str, target: str, *, writable: bool = False) -> None:
    source = _HOST + _inside_host(source)
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.exists(target):
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o444))
    _system_calls.bind(source, target, writable=writable)


def _inside_host(path: str) -> str:
    """Resolve links with the host's tree as the root. The kernel would follow absolute links out of ``/.host``."""
    done, todo, hops = "", [part for part in path.split("/") if part], 0
    while todo:
        part = todo.pop(0)
        if part == "..":
            done = os.path.dirname(done)
            continue
        step = f"{done}/{part}"
        if not os.path.islink(_HOST + step):
            done = step
            continue
        hops += 1
        if hops > 40:
            raise OSError(40, f"too many links in {path}")
        link = os.readlink(_HOST + step)
        todo = [piece for piece in link.split("/") if piece not in ("", ".")] + todo
        if link.startswith("/"):
            done = ""
    return done
