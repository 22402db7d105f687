"""Control groups, versions 1 and 2 and the hybrid of both: limits, the freezer, and killing without leftovers.

A sandbox's group lies below this process's own (version 1) or beside it (version 2, where only leaves hold processes).
So limits that already bind this process also bind its sandboxes. A group's name contains its owner's process id and
start time. Each new owner removes the groups of dead owners.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kernelwright.errors import SandboxError
from kernelwright.sandbox._types import Limits

_PREFIX: Final = "kernelwright"
_SPARE_PIDS: Final = 4
_WAIT_S: Final = 5.0
_numbers: Final = itertools.count(1)  # shared by all sandboxes of this process, as the names are


class CgroupMount(NamedTuple):
    """One mounted hierarchy: its mount point, its controllers (none for version 2), and the path of its root."""

    path: str
    controllers: frozenset[str]
    root: str


@dataclass
class Group:
    """One sandbox's group: a directory in each usable hierarchy."""

    v2: str | None
    v1: dict[str, str]
    v2_controllers: frozenset[str]
    _fds: dict[str, int] = field(default_factory=dict)
    # The owner may freeze the group while another thread ends the worker. Without the lock, the number of a descriptor
    # closed there could already belong to another file.
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _closed: bool = False

    @property
    def directories(self) -> list[str]:
        """All its directories, without duplicates."""
        return list(dict.fromkeys([*([self.v2] if self.v2 else []), *self.v1.values()]))

    @property
    def limits_memory(self) -> bool:
        """Whether the kernel enforces the memory limit."""
        return "memory" in self.v1 or "memory" in self.v2_controllers

    @property
    def can_freeze(self) -> bool:
        """Whether there is a freezer."""
        return self.v2 is not None or "freezer" in self.v1

    def open_procs(self) -> list[int]:
        """New descriptors. A process joins the group by writing "0" to each of them. The caller closes them."""
        return [os.open(f"{d}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for d in self.directories]

    def freeze(self) -> None:
        """Stop all tasks and wait for the kernel's confirmation. Raises :class:`SandboxError` if none comes."""
        with self._lock:
            if self._closed:
                return
            if self.v2 is not None:
                self._write("cgroup.freeze", self.v2, b"1")
                self._await_state("cgroup.events", self.v2, b"frozen 1")
            else:
                self._write("freezer.state", self.v1["freezer"], b"FROZEN")
                self._await_state("freezer.state", self.v1["freezer"], b"FROZEN")

    def thaw(self) -> None:
        """Let all tasks run."""
        with self._lock:
            if self._closed:
                return
            if self.v2 is not None:
                self._write("cgroup.freeze", self.v2, b"0")
            elif "freezer" in self.v1:
                self._write("freezer.state", self.v1["freezer"], b"THAWED")

    def pids(self) -> list[int]:
        """Process ids in the group, as this process sees them."""
        for directory in self.directories:
            with contextlib.suppress(OSError):
                return [int(pid) for pid in _read(f"{directory}/cgroup.procs").split()]
        return []

    def kill(self) -> None:
        """End every task of the group and wait until it is empty."""
        deadline = time.monotonic() + _WAIT_S
        while self._signal_all() and time.monotonic() < deadline:
            time.sleep(0.0005)

    def out_of_memory(self) -> bool:
        """Whether the kernel killed one of its tasks for using too much memory."""
        if "memory" in self.v1:
            text = _read(f"{self.v1['memory']}/memory.oom_control")
        elif "memory" in self.v2_controllers:
            text = _read(f"{self.v2}/memory.events")
        else:
            return False
        return any(line.startswith("oom_kill ") and not line.endswith(" 0") for line in text.splitlines())

    def close(self) -> None:
        """Kill the remaining tasks and remove the directories."""
        self.kill()
        with self._lock:
            self._closed = True
            for fd in self._fds.values():
                os.close(fd)
            self._fds.clear()
        _remove(self.directories)

    def _signal_all(self) -> bool:
        """Send SIGKILL to all tasks; returns False if the group is empty."""
        pids = self.pids()
        if not pids:
            return False
        try:
            if self.v2 is None:
                raise FileNotFoundError
            _write(f"{self.v2}/cgroup.kill", "1")
        except OSError:  # version 1, or a kernel before 5.14
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            self.thaw()  # frozen tasks of version 1 do not die before they are thawed
        return True

    def _fd(self, name: str, directory: str, flags: int) -> int:
        if name not in self._fds:
            self._fds[name] = os.open(f"{directory}/{name}", flags | os.O_CLOEXEC)
        return self._fds[name]

    def _write(self, name: str, directory: str, value: bytes) -> None:
        os.pwrite(self._fd(name, directory, os.O_RDWR), value, 0)

    def _await_state(self, name: str, directory: str, wanted: bytes) -> None:
        fd = self._fd(name, directory, os.O_RDONLY)
        deadline = time.monotonic() + _WAIT_S
        while wanted not in os.pread(fd, 256, 0).splitlines():
            if time.monotonic() > deadline:
                raise SandboxError("the freezer did not confirm within 5 s", hint="run the job again")


def existing_groups(pid: int, name: str) -> tuple[str | None, dict[str, str]]:
    """The directories of a process's groups whose path contains ``name``: version 2's, and version 1's by controller.

    Hierarchies in which the process shares a group with others are left out.
    """
    paths = _paths_of(pid)
    v2: str | None = None
    v1: dict[str, str] = {}
    for mount in _mounts():
        for controller in mount.controllers or {""}:
            path = paths.get(controller, "/")
            directory = _below(mount, path) if name in path else None
            if directory is None or not os.path.isdir(directory):
                continue
            if controller:
                v1[controller] = directory
            else:
                v2 = directory
    return v2, v1


class Cgroups:
    """The hierarchies of this host in which groups can be made: none, some or all."""

    def __init__(self, v2: str | None, v1: dict[str, str], v2_controllers: frozenset[str]) -> None:
        self._v2 = v2
        self._v1 = v1
        self._v2_controllers = v2_controllers
        self._owner = f"{_PREFIX}-{os.getpid()}-{start_time(os.getpid())}"
        for parent in {*v1.values(), *([v2] if v2 else [])}:
            _remove_stale(parent)

    @classmethod
    def detect(cls) -> Cgroups:
        """Look at the mounted hierarchies and try each of them once."""
        own = _paths_of("self")
        v1: dict[str, str] = {}
        v2: str | None = None
        enabled: frozenset[str] = frozenset()
        for mount in _mounts():
            if not mount.controllers:
                v2, enabled = _find_v2_parent(mount, own.get("", "/"))
                continue
            for controller in mount.controllers & {"memory", "pids", "freezer"}:
                parent = _below(mount, own.get(controller, "/"))
                if parent and _usable(parent):
                    v1[controller] = parent
        if v2 is not None:
            v1.pop("freezer", None)  # version 2's freezer needs no thawing before a kill
        return cls(v2, v1, enabled - v1.keys())

    @property
    def features(self) -> tuple[str, ...]:
        """The usable features out of memory, pids, freezer and kill; empty if no group can be made."""
        found = {*self._v1, *self._v2_controllers, *({"freezer", "kill"} if self._v2 else ())}
        return tuple(name for name in ("memory", "pids", "freezer", "kill") if name in found)

    def create(self, limits: Limits) -> Group | None:
        """A new group with these limits, or None if the host has no usable hierarchy.

        Raises:
            SandboxError: the kernel refused to make it.
        """
        if not self.features:
            return None
        name = f"{self._owner}-{next(_numbers)}"
        group = Group(
            f"{self._v2}/{name}" if self._v2 else None,
            {controller: f"{parent}/{name}" for controller, parent in self._v1.items()},
            self._v2_controllers,
        )
        try:
            for directory in group.directories:
                os.mkdir(directory)
            _set_limits(group, limits)
        except OSError as error:
            _remove(group.directories)
            raise SandboxError(f"cannot make a control group: {error}", hint="see: kernelwright doctor") from error
        return group


def _set_limits(group: Group, limits: Limits) -> None:
    memory, pids = group.v1.get("memory"), group.v1.get("pids")
    if memory:
        _write(f"{memory}/memory.limit_in_bytes", str(limits.memory_bytes))
        with contextlib.suppress(OSError):  # absent where swap is not accounted
            _write(f"{memory}/memory.memsw.limit_in_bytes", str(limits.memory_bytes))
    elif "memory" in group.v2_controllers:
        _write(f"{group.v2}/memory.max", str(limits.memory_bytes))
        with contextlib.suppress(OSError):
            _write(f"{group.v2}/memory.swap.max", "0")
        with contextlib.suppress(OSError):
            _write(f"{group.v2}/memory.oom.group", "1")
    if pids:
        _write(f"{pids}/pids.max", str(limits.pids + _SPARE_PIDS))
    elif "pids" in group.v2_controllers:
        _write(f"{group.v2}/pids.max", str(limits.pids + _SPARE_PIDS))


def _mounts() -> Iterator[CgroupMount]:
    for line in _read("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        fields, (kind, _, options) = left.split(), right.split(" ", 2)
        if kind == "cgroup2":
            yield CgroupMount(fields[4], frozenset(), fields[3])
        elif kind == "cgroup":
            yield CgroupMount(fields[4], frozenset(options.split(",")), fields[3])


def _paths_of(pid: int | str) -> dict[str, str]:
    """A process's path in each hierarchy, by controller ("" for version 2)."""
    paths: dict[str, str] = {}
    for line in _read(f"/proc/{pid}/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def _below(mount: CgroupMount, own: str) -> str | None:
    """The directory of path ``own`` under a mount, or None. The mount's root may be a group itself (in containers)."""
    relative = os.path.relpath(own, mount.root)
    if relative.startswith(".."):
        return None
    return os.path.normpath(f"{mount.path}/{relative}")


def _find_v2_parent(mount: CgroupMount, own: str) -> tuple[str | None, frozenset[str]]:
    """The nearest usable ancestor that enables the most of memory and pids for its children, and those it enables."""
    directory = _below(mount, own)
    if directory is None:
        return None, frozenset()
    if directory != mount.path:
        directory = os.path.dirname(directory)
    found: tuple[str | None, frozenset[str]] = None, frozenset()
    while True:
        if _usable(directory):
            enabled = frozenset(_read(f"{directory}/cgroup.subtree_control").split()) & {"memory", "pids"}
            if found[0] is None or len(enabled) > len(found[1]):
                found = directory, enabled
        if directory == mount.path or len(found[1]) == 2:
            return found
        directory = os.path.dirname(directory)


def _usable(parent: str) -> bool:
    """Try whether a group can be made here and a process moved into it."""
    trial = f"{parent}/{_PREFIX}-{os.getpid()}-{start_time(os.getpid())}-{next(_numbers)}"
    try:
        os.mkdir(trial)
    except OSError:
        return False
    try:
        joined = subprocess.run(
            ["/bin/sh", "-c", 'echo 0 > "$1"', "sh", f"{trial}/cgroup.procs"], stderr=subprocess.DEVNULL, check=False
        )
        return joined.returncode == 0
    finally:
        _remove([trial])


def start_time(pid: int) -> str:
    """When a process started, in clock ticks since boot. Together with its id it is a unique name."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()[19]


def _remove_stale(parent: str) -> None:
    """Remove groups whose owner is dead, after killing the tasks left in them."""
    for entry in os.listdir(parent):
        prefix, _, rest = entry.partition("-")
        if prefix != _PREFIX or rest.count("-") < 2:
            continue
        pid, started, _ = rest.split("-", 2)
        try:
            alive = start_time(int(pid)) == started
        except (OSError, ValueError, IndexError):
            alive = False
        if not alive:
            Group(None, {"pids": f"{parent}/{entry}"}, frozenset()).close()


def _remove(directories: list[str]) -> None:
    """Remove empty groups. Retry on errors: the kernel says EBUSY while a group's last task is being reaped."""
    deadline = time.monotonic() + _WAIT_S
    for directory in directories:
        while True:
            try:
                os.rmdir(directory)
            except FileNotFoundError:
                break
            except OSError:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.001)
            else:
                break


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _write(path: str, value: str) -> None:
    with open(path, "w") as file:
        file.write(value)
