"""One container: the request to the engine, the connection to its process 1, its control group, its removal."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from kernelwright.errors import SandboxError
from kernelwright.sandbox import _seccomp, _tasks, messages
from kernelwright.sandbox._base import Job
from kernelwright.sandbox._cgroups import Group, existing_groups
from kernelwright.sandbox._engine import OWNER_LABEL, Engine, owner
from kernelwright.sandbox._home import Home
from kernelwright.sandbox._types import Limits

INSIDE_FILE: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_inside.py")
SOCKET_DIRECTORY: Final = "/run/kernelwright"  # where the connection's socket shows inside
_SOCKET: Final = "socket"
_SPARE_PIDS: Final = 5  # for process 1 and the program's first steps
_SPARE_THREADS: Final = 64  # for threads that this user's other programs may start meanwhile
_EMULATOR_PIDS: Final = 1000  # threads of a kernel that runs as a program
_SPARE_FILES: Final = 16  # for the files of process 1; the program lowers its own limit
_MAX_INODES: Final = 1 << 16
_CONNECT_S: Final = 60.0
_LOOK_S: Final = 1.0


@dataclass(frozen=True)
class Request:
    """A request to an engine for a container.

    Attributes:
        engine: the engine whose dialect the request uses.
        image: its base image.
        user: user and group id of all its processes.
        nproc: limit on the threads of that user, on the whole machine.
        limits: memory, processes, files, sizes.
        cpus: processors that it may use.
        binds: (host path, path inside, writable).
        seccomp: the profile, in the form that the engine takes.
        runtime: the program that runs it.
        shares_kernel: whether its processes run on this kernel.
        kept: whether the container is kept after it ends, so that its output can be read.
    """

    engine: Literal["docker", "podman"]
    image: str
    user: tuple[int, int]
    nproc: int
    limits: Limits
    cpus: Sequence[int]
    binds: Sequence[tuple[str, str, bool]]
    seccomp: str
    runtime: str
    shares_kernel: bool = True
    kept: bool = False

    def body(self) -> dict[str, Any]:
        """The body of the engine's ``POST /containers/create``."""
        return {
            "Image": self.image,
            # The engine adds to the environment (podman: its proxies, which may hold passwords), hence ``env -i``.
            "Entrypoint": ["/usr/bin/env", "-i", sys.executable, "-I", "-S", "-B", INSIDE_FILE],
            "Cmd": [f"{SOCKET_DIRECTORY}/{_SOCKET}"],
            "User": ":".join(map(str, self.user)),
            "WorkingDir": "/job",
            "Hostname": "sandbox",
            "Labels": {OWNER_LABEL: owner()},
            "NetworkDisabled": True,
            "HostConfig": self._host_config(),
        }

    def _host_config(self) -> dict[str, Any]:
        limits = self.limits
        files = max(limits.nofile, 0) + _SPARE_FILES
        return {
            "NetworkMode": "none",  # podman heeds this and not NetworkDisabled
            "IpcMode": "private",
            "CgroupnsMode": "private",  # no effect on podman with version 1, so not claimed as a layer; it hides paths
            "ShmSize": limits.tmpfs_bytes,
            "ReadonlyRootfs": True,
            "Tmpfs": self._tmpfs(),
            "Mounts": [
                {"Type": "bind", "Source": source, "Target": target, "ReadOnly": not writable}
                for source, target, writable in self.binds
            ],
            "CapDrop": ["ALL"],
            # SELinux would forbid access to the host's directories, as they have no container label.
            "SecurityOpt": ["no-new-privileges", f"seccomp={self.seccomp}", "label=disable"],
            "Memory": limits.memory_bytes,
            "MemorySwap": limits.memory_bytes,  # memory and swap together
            "PidsLimit": limits.pids + _SPARE_PIDS + (0 if self.shares_kernel else _EMULATOR_PIDS),
            # No quota: being throttled would show in timings. (gVisor fails at this with version 1 of control groups.)
            "CpusetCpus": ",".join(map(str, self.cpus)) if self.shares_kernel else "",
            "Ulimits": [
                {"Name": name, "Soft": value, "Hard": value}
                for name, value in {"nofile": files, "nproc": self.nproc, "core": 1}.items()
            ],
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "64k"}},
            "Runtime": self.runtime,
            "AutoRemove": not self.kept,
        }

    def _tmpfs(self) -> dict[str, str]:
        """The writable places, except /dev/shm, which the engine makes."""
        options = f"size={self.limits.tmpfs_bytes},mode=1777,nosuid,nodev,exec"
        if self.engine == "docker":
            options += f",nr_inodes={_MAX_INODES}"  # unknown to podman 4, where the memory limit also bounds inodes
        places = {"/tmp": options, "/job": options}
        if self.engine == "podman":  # its default: writable for all, and as large as half the memory
            places |= {"/run": "size=64k,mode=755", "/var/tmp": "size=64k,mode=755"}
        return places


class Container:
    """A running container whose process 1 is connected to this process, and waits.

    Attributes:
        pid: host process id of its process 1.
        link: the connection to process 1.
        group: its control group, as far as it is visible.
    """

    def __init__(
        self,
        engine: Engine,
        job: Job,
        uid: int | None,
        image: str,
        binds: Sequence[tuple[str, str]],
        cpus: Sequence[int],
    ) -> None:
        """Make and start a container.

        Raises:
            SandboxError: it did not start; nothing of it is left.
        """
        self._engine = engine
        self._id = ""
        self.pid = 0
        self._home = Home(job, uid)
        self.link = socket.socket(socket.AF_UNIX)
        try:
            request = self._request(job, uid, image, binds, cpus)
            with _listening(f"{self._home.path}/job", uid) as listener:
                self._id = engine.create(request.body())
                engine.start(self._id)
                self._accept(listener, request.user[0])
            engine.proven = True
            self.group = ContainerGroup(self._id, self.pid, limits=engine.limits)
        except BaseException:
            self.remove()
            self.close()
            raise

    def start(self, argv: Sequence[str], env: Mapping[str, str], fds: Sequence[int]) -> None:
        """Start its one program. ``fds`` are the control socket and standard input, output and error.

        Raises:
            SandboxError: process 1 is gone.
        """
        try:
            message = {"argv": list(argv), "env": dict(env), "stay": self._engine.shares_kernel}
            messages.send_message(self.link, message, fds)
        except messages.ProtocolError as error:
            raise SandboxError(f"the container ended early: {error}", hint="run the job again") from error

    def guests(self) -> list[int]:
        """Ids of its processes except process 1, as this process sees them."""
        return [pid for pid in self.group.pids() or _tasks.tree(self.pid) if pid != self.pid]

    def remove(self) -> None:
        """End and remove it. If the engine fails to, the engine's next start or the next sandbox removes it."""
        with contextlib.suppress(OSError):
            self.link.shutdown(socket.SHUT_RDWR)  # process 1 then ends the container
        if self._id:
            with contextlib.suppress(SandboxError):
                self._engine.remove(self._id)

    def close(self) -> None:
        """Close the connection and remove the private directory."""
        self.link.close()
        self._home.remove()

    def _request(
        self, job: Job, uid: int | None, image: str, binds: Sequence[tuple[str, str]], cpus: Sequence[int]
    ) -> Request:
        engine, home = self._engine, self._home.path
        # The kernel counts all threads of a user on the whole machine, including those of this user's other programs.
        others = 0 if uid is not None else _tasks.threads_of(os.getuid()) + _SPARE_THREADS
        shown = [
            *((source, target, False) for source, target in binds),
            (f"{home}/in", "/in", False),
            (f"{home}/job", SOCKET_DIRECTORY, False),
            *((mount.source, mount.target or mount.source, mount.writable) for mount in job.mounts),
        ]
        for source, _, _ in shown:
            if not os.path.exists(source):  # podman would create it
                raise SandboxError(f"cannot show {source} in the sandbox: it does not exist")
        return Request(
            engine=engine.kind,
            image=image,
            user=(os.geteuid(), os.getegid()) if uid is None else (uid, uid),
            nproc=job.limits.pids + _SPARE_PIDS + others,
            limits=job.limits,
            cpus=cpus,
            binds=shown,
            seccomp=self._seccomp_profile(),
            runtime=engine.runtime,
            shares_kernel=engine.shares_kernel,
            kept=not engine.proven,
        )

    def _seccomp_profile(self) -> str:
        """The seccomp profile: its text for Docker, the path of a file for podman."""
        text = json.dumps(_seccomp.container_profile())
        if self._engine.kind == "docker":
            return text
        path = f"{self._home.path}/seccomp.json"
        with open(path, "x") as file:
            file.write(text)
        return path

    def _accept(self, listener: socket.socket, uid: int) -> None:
        """Accept the connection of process 1. The kernel reports its credentials."""
        listener.settimeout(_LOOK_S)
        deadline = time.monotonic() + _CONNECT_S
        while True:
            try:
                link, _ = listener.accept()
            except TimeoutError:
                if time.monotonic() < deadline and self._engine.running(self._id):
                    continue
                said = self._engine.last_words(self._id) or "its process 1 did not connect"
                raise SandboxError(
                    f"the container did not start: {said}",
                    hint="the engine must run on this machine and see its /tmp; or choose --sandbox bwrap",
                ) from None
            break
        self.link.close()
        self.link = link
        credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self.pid, found, _ = struct.unpack("3i", credentials)
        if self.pid <= 0 or found not in ((uid,) if self._engine.shares_kernel else (uid, 0)):
            raise SandboxError(
                f"the container's process 1 appears here as process {self.pid} of user {found}, not of user {uid}",
                hint="run kernelwright beside the container engine, not in one of its containers",
            )


class ContainerGroup(Group):
    """A container's control groups, made and removed by the engine."""

    def __init__(self, container: str, pid: int, *, limits: tuple[str, ...]) -> None:
        v2, v1 = existing_groups(pid, container)
        self._leaves = Group(v2, v1, frozenset()).directories  # crun puts processes one level below the limits
        v2 = _outermost(v2, container) if v2 is not None else None
        enabled = frozenset[str]()
        if v2 is not None:
            with contextlib.suppress(OSError), open(f"{v2}/cgroup.controllers") as file:
                enabled = frozenset(file.read().split())
        super().__init__(v2, {name: _outermost(path, container) for name, path in v1.items()}, enabled)
        self.joins = False  # whether processes from outside will enter it
        self._limits = limits
        self._out_of_memory = False

    @property
    def limits_memory(self) -> bool:
        """Whether the kernel enforces the memory limit."""
        return "memory" in self._limits

    @property
    def enterable(self) -> bool:
        """Whether every limit of the engine is visible here, so that a process from outside can be put under it."""
        return {*self._limits} <= {*self.v1, *self.v2_controllers}

    @property
    def can_freeze(self) -> bool:
        """Whether there is a freezer that this process may use."""
        path = f"{self.v2}/cgroup.freeze" if self.v2 is not None else f"{self.v1.get('freezer')}/freezer.state"
        return os.access(path, os.W_OK)

    def open_procs(self) -> list[int]:
        """See :class:`Group`; empty if the processes are in the group from the start."""
        leaves = self._leaves if self.joins else []
        return [os.open(f"{leaf}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for leaf in leaves]

    def pids(self) -> list[int]:
        """See :class:`Group`."""
        return Group(None, {leaf: leaf for leaf in self._leaves}, frozenset()).pids()

    def kill(self) -> None:
        """See :class:`Group`. Reads the out-of-memory state first: the group vanishes with its last process."""
        self._out_of_memory = self.out_of_memory()
        super().kill()

    def out_of_memory(self) -> bool:
        """Whether the kernel killed one of its tasks for using too much memory."""
        with contextlib.suppress(OSError):
            return self._out_of_memory or super().out_of_memory()
        return self._out_of_memory

    def close(self) -> None:
        """Close its descriptors and remove leftover groups. The engine removes them; podman forgets some."""
        with self._lock:
            self._closed = True
            messages.close_fds(list(self._fds.values()))
            self._fds.clear()
        for directory in [*self._leaves, *self.directories]:
            with contextlib.suppress(OSError):
                os.rmdir(directory)


def _outermost(path: str, name: str) -> str:
    """The part of a path up to and including the first directory whose name contains ``name``."""
    parts = path.split("/")
    return "/".join(parts[: 1 + next(k for k, part in enumerate(parts) if name in part)])


@contextlib.contextmanager
def _listening(directory: str, uid: int | None) -> Iterator[socket.socket]:
    """A socket in ``directory`` that only ``uid`` (None: this user) and root can reach, removed with the context."""
    handle = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    path = f"/proc/self/fd/{handle}/{_SOCKET}"  # a socket's path has at most 107 bytes; TMPDIR may be longer
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(path)
            try:
                os.chmod(path, 0o600)
                if uid is not None:
                    os.chown(path, uid, uid)
                listener.listen(1)
                yield listener
            finally:
                os.unlink(path)
    finally:
        os.close(handle)
