"""The docker rung: every program and every worker runs in its own container of Docker or podman.

The engine provides namespaces, an empty read-only root with the host's directories over it, control groups and a
seccomp profile, and takes away network and capabilities. The guest's first program then confines itself as on the other
rungs (see ``_entry``). Warm workers are forked from the zygote and enter a new container as the engine's ``exec`` does.
"""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Sequence
from typing import Any, Final

from kernelwright.errors import SandboxError
from kernelwright.sandbox import _engine, _slots
from kernelwright.sandbox._base import (
    BaseSandbox,
    Job,
    LaunchParts,
    entry_command,
    own_root_fences,
    standard_streams,
)
from kernelwright.sandbox._cgroups import Cgroups, Group
from kernelwright.sandbox._container import Container
from kernelwright.sandbox._home import remove_stale
from kernelwright.sandbox._inside import CONTROL_FD
from kernelwright.sandbox._nursery import Zygote, reap_worker
from kernelwright.sandbox._running import Pipes

_HOST_KERNEL_LIMITS: Final = ("msgqueue", "nice", "rtprio", "sigpending")  # gVisor refuses to set them


class DockerSandbox(BaseSandbox):
    """Containers of an engine. They show the same parts of the host as bubblewrap's sandboxes."""

    name = "docker"
    namespaces = ("pid", "net", "ipc", "uts", "mnt")

    def __init__(self, *, python_paths: Sequence[str] = (), threads: int = 1, runtime: str = "") -> None:
        self._engine = _engine.connect(runtime)
        try:
            # The engine makes the groups. Groups made here would lie beside those, without the engine's limits.
            groups = Cgroups(None, {}, frozenset())
            super().__init__(python_paths=python_paths, threads=threads, groups=groups, isolated=True)
            self._image = self._engine.base_image(self.view.links)
            self._engine.remove_stale()
        except BaseException:
            self._engine.close()
            raise
        remove_stale()
        self._as_root = os.geteuid() == 0
        if not self._as_root:
            self.cold_because = "only root can put a worker into a container"
        elif not self._engine.shares_kernel:
            self.cold_because = f"a worker cannot enter a container of {self._engine.runtime}"
        self.identity = self._engine.identity
        self.around = self._describe()
        self.layers = self.describe_all()

    def complete(self, job: Job, plan: dict[str, Any]) -> int | None:
        """See :class:`BaseSandbox`."""
        plan["cwd"] = "/job"
        mounted = [mount.target or mount.source for mount in job.mounts]
        # An engine shows more than the view: its own files in /etc, all of /sys and terminals.
        readable = [*(target for _, target in self.view.binds), "/in", "/proc", *mounted]
        plan["landlock"] = own_root_fences(job) | {"read": readable}
        if "memory" in self._engine.limits:
            del plan["rlimits"]["data"]
        if "pids" not in self._engine.limits:
            plan["rlimits"]["nproc"] = job.limits.pids
        if not self._engine.shares_kernel:
            for name in _HOST_KERNEL_LIMITS:
                del plan["rlimits"][name]
        uid = plan["uid"] = _slots.acquire()
        return uid

    def launch(self, job: Job, plan: dict[str, Any], control: socket.socket, group: Group | None) -> LaunchParts:
        """See :class:`BaseSandbox`."""
        if job.kind == "entry" and not self._engine.shares_kernel:
            raise SandboxError(
                f"workers cannot run under {self._engine.runtime}: their memory is read from outside",
                hint="choose the engine's runtime runc, or --sandbox bwrap",
            )
        zygote = self.zygote_for(job)
        binds = [bind for bind in self.view.binds if not bind[1].startswith("/sys/")]  # the engine shows /sys itself
        cpus = self._cpus if job.cpus is None else job.cpus
        container = Container(self._engine, job, plan["uid"], self._image, binds, cpus)
        try:
            if zygote is not None and container.group.enterable:
                return self._launch_warm(zygote, container, job, plan, control)
            return self._launch_cold(container, job, plan, control)
        except BaseException:
            container.remove()
            container.close()
            raise

    def start_zygote(self) -> Zygote:
        """See :class:`BaseSandbox`. The zygote stays outside all namespaces, so that it can enter each container's."""
        return Zygote(self.environment(), isolated=False)

    def describe_all(self) -> tuple[str, ...]:
        """See :class:`BaseSandbox`."""
        return super().describe_all() if self._engine.shares_kernel else (*self.around, "no-landlock", "seccomp")

    def close(self) -> None:
        """See :class:`BaseSandbox`."""
        super().close()
        self._engine.close()

    def _launch_warm(
        self, zygote: Zygote, container: Container, job: Job, plan: dict[str, Any], control: socket.socket
    ) -> LaunchParts:
        plan["die_with_parent"] = True
        container.group.joins = True
        process = os.pidfd_open(container.pid)
        try:
            with standard_streams(b"") as (_, stdout, stderr, pipes):
                zygote.fork(control, stdout, stderr, preload=job.preload, apart=job.apart, container=process)
        finally:
            os.close(process)
        parts = self._parts(container, pipes)
        parts.layers, parts.warm = ("zygote", *self.around), True
        return parts

    def _launch_cold(self, container: Container, job: Job, plan: dict[str, Any], control: socket.socket) -> LaunchParts:
        plan["uid"] = None  # the container runs as that user from the start
        with standard_streams(job.stdin) as (stdin, stdout, stderr, pipes):
            fds = [control.fileno(), stdin, stdout, stderr]
            container.start(entry_command(job.kind, CONTROL_FD), job.env, fds)
        parts = self._parts(container, pipes)
        parts.reap = functools.partial(reap_worker, container.link)
        return parts

    def _parts(self, container: Container, pipes: Pipes) -> LaunchParts:
        return LaunchParts(
            pipes,
            container.remove,
            None,
            self.around,
            guests=container.guests,
            group=container.group,
            cleanup=[container.close],
        )

    def _describe(self) -> tuple[str, ...]:
        engine = self._engine
        return (
            engine.kind,
            f"runtime:{engine.runtime}",
            "namespaces:pid,net,ipc,uts,mount",
            f"cgroup:{','.join(engine.limits)}" if engine.limits else "no-cgroup",
            *(() if "memory" in engine.limits else ("memory:rlimit+watchdog",)),
            "uid:per-slot" if self._as_root else "uid:own",
            "rlimits",
            "tmpfs",
        )
