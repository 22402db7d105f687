"""The two lower rungs, for hosts where bubblewrap cannot work.

``process`` has no namespaces. It keeps a user id of its own (if this process is root), Landlock, a seccomp filter that
forbids all sockets, rlimits, a control group if available, and a reaper. ``none`` has only rlimits and the wall clock
limit; it must be requested by name. Neither has a file system of its own: /in and /job stand for private directories,
and each occurrence as a path in ``argv`` is replaced by the private directory.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from kernelwright.errors import SandboxError
from kernelwright.sandbox import _landlock, _slots, _spawn, _tasks
from kernelwright.sandbox._base import BaseSandbox, Job, LaunchParts, entry_command, reaper, standard_streams
from kernelwright.sandbox._cgroups import Cgroups, Group
from kernelwright.sandbox._home import Home, remove_stale
from kernelwright.sandbox._nursery import Zygote
from kernelwright.sandbox._view import DEVICES, base_environment, package_parent

_PRIVATE_PATH: Final = re.compile(r"(?<![\w./-])/(in|job)(?![\w.-])")
_STOP_S: Final = 5.0


class ProcessSandbox(BaseSandbox):
    """Confinement without namespaces."""

    name = "process"

    def __init__(self, *, python_paths: Sequence[str] = (), threads: int = 1) -> None:
        super().__init__(python_paths=python_paths, threads=threads, groups=self._find_groups(), isolated=False)
        remove_stale()
        self._as_root = os.geteuid() == 0
        # If a directory above the interpreter is closed to the guest's user, the guest may read past file modes, and
        # Landlock alone restricts what it reads.
        self.keeps_read = self._as_root and not all(
            _passable(path) for path in (sys.prefix, sys.base_prefix, package_parent(), *self.python_paths)
        )
        self.around = self._describe()
        self.layers = self.describe_all()

    def complete(self, job: Job, plan: dict[str, Any]) -> int | None:
        """See :class:`BaseSandbox`."""
        uid = _slots.acquire()
        plan["rlimits"]["nproc"] = job.limits.pids + (0 if uid is not None else _tasks.threads_of(os.getuid()))
        plan["uid"] = uid
        plan["keep_read"] = self.keeps_read
        plan["die_with_parent"] = True
        if plan["filter"] == "base":
            plan["filter"] = "offline"
        return uid

    def launch(self, job: Job, plan: dict[str, Any], control: socket.socket, group: Group | None) -> LaunchParts:
        """See :class:`BaseSandbox`."""
        for mount in job.mounts:
            if mount.target not in (None, mount.source):
                raise SandboxError(
                    f"the {self.name!r} rung cannot show {mount.source} at {mount.target}", hint="use --sandbox bwrap"
                )
        home = Home(job, plan["uid"])
        try:
            self._settle(job, plan, home.path)
            zygote = self.zygote_for(job) if not job.limits.allow_exec else None
            if zygote is not None:
                parts = self._launch_warm(zygote, job, control)
            else:
                parts = self._launch_cold(job, plan, control)
        except BaseException:
            home.remove()
            raise
        parts.cleanup.append(home.remove)
        return parts

    def _settle(self, job: Job, plan: dict[str, Any], home: str) -> None:
        """Put the private directories into the plan."""
        work = f"{home}/job"
        private = base_environment(self.threads, self.python_paths, home=work)
        standard = self.environment()
        plan["env"] = {
            name: private[name] if name in private and standard.get(name) == value else value
            for name, value in job.env.items()
        }
        plan["argv"] = [_PRIVATE_PATH.sub(lambda match: f"{home}/{match[1]}", word) for word in job.argv]
        plan["cwd"] = work
        readable = [*self.view.readable, "/proc", home, *DEVICES, *(mount.source for mount in job.mounts)]
        writable = [work, "/dev/null", *(mount.source for mount in job.mounts if mount.writable)]
        plan["landlock"] = {"read": readable, "write": writable}

    def _launch_cold(self, job: Job, plan: dict[str, Any], control: socket.socket) -> LaunchParts:
        plan["reaper"] = True
        with standard_streams(job.stdin) as (stdin, stdout, stderr, pipes):
            argv = entry_command(job.kind, control.fileno())
            process = _spawn.spawn(_spawn.Command(argv, plan["env"], stdin, stdout, stderr, [control.fileno()]))
        return LaunchParts(
            pipes,
            _ender(process, plan["uid"]),
            reaper(process),
            self.around,
            guests=lambda: _tasks.tree(process.pid)[1:],
        )

    def _launch_warm(self, zygote: Zygote, job: Job, control: socket.socket) -> LaunchParts:
        with standard_streams(b"") as (_, stdout, stderr, pipes):
            zygote.fork(control, stdout, stderr, preload=job.preload, apart=job.apart)
        layers = ("zygote", *self.around)
        return LaunchParts(pipes, lambda: None, None, layers, warm=True)

    def _find_groups(self) -> Cgroups:
        return Cgroups.detect()

    def _describe(self) -> tuple[str, ...]:
        if _landlock.abi() == 0:
            raise SandboxError(
                "the 'process' rung needs Landlock, which this kernel does not have",
                hint="use Linux 5.13 or later, or --sandbox bwrap",
            )
        features = self.groups.features
        return (
            "process",
            "no-namespaces",
            f"cgroup:{','.join(features)}" if features else "no-cgroup",
            *(() if "memory" in features else ("memory:rlimit+watchdog",)),
            "uid:per-slot" if self._as_root else "no-uid",
            *(("capability:dac_read_search",) if self.keeps_read else ()),
            "rlimits",
        )


class UnconfinedSandbox(ProcessSandbox):
    """No confinement at all; must be requested by name."""

    name = "none"
    confines = False

    def complete(self, job: Job, plan: dict[str, Any]) -> int | None:
        """See :class:`BaseSandbox`."""
        plan["uid"] = None
        plan["confined"] = False
        plan["filter"] = None
        plan["die_with_parent"] = True
        return None

    def _settle(self, job: Job, plan: dict[str, Any], home: str) -> None:
        super()._settle(job, plan, home)
        del plan["landlock"]

    def _find_groups(self) -> Cgroups:
        return Cgroups(None, {}, frozenset())

    def _describe(self) -> tuple[str, ...]:
        return ("unconfined",)

    def describe_all(self) -> tuple[str, ...]:
        """See :class:`BaseSandbox`."""
        return self.around


def _ender(process: _spawn.Process, uid: int | None) -> Callable[[], None]:
    """A function that kills all that the reaper left (it kills on hang-up of its socket), then the reaper itself."""

    def end() -> None:
        if uid is not None:
            _tasks.kill_all(uid)
        if process.poll() is not None:
            return
        for pid in reversed(_tasks.tree(process.pid)[1:]):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()

    return end


def _passable(path: str) -> bool:
    """Whether every user may enter all directories down to ``path``."""
    path = os.path.realpath(path)
    while path != "/":
        if os.stat(path).st_mode & 0o001 == 0:
            return False
        path = os.path.dirname(path)
    return True
