"""The default rung: bubblewrap. Warm workers come from the zygote, which builds the same confinement itself.

Mode A (this process is root): no user namespace. The guest gets a user id of its own inside; bubblewrap's process 1
still runs as root, so the guest cannot reach it. Mode B (an ordinary user): a user namespace that forbids further ones.
Root never uses mode B: root's user namespace maps to root outside, which may write /proc/sys/kernel/core_pattern.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kernelwright.errors import MissingToolError, SandboxError
from kernelwright.sandbox import _slots, _spawn, _tasks, memory, messages
from kernelwright.sandbox._base import (
    BaseSandbox,
    Job,
    LaunchParts,
    entry_command,
    own_root_fences,
    reaper,
    standard_streams,
)
from kernelwright.sandbox._cgroups import Cgroups, Group
from kernelwright.sandbox._nursery import Zygote
from kernelwright.sandbox._view import WRITABLE, View, parents

_INSIDE_UID: Final = 1000
_MOST_WARM_FILES: Final = 8  # their descriptors and those of the groups are sent in one message
_IDENTITY: Final = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP"]


class BwrapSandbox(BaseSandbox):
    """Namespaces made by bubblewrap. The first program inside does the rest of the confinement (see ``_entry``)."""

    name = "bwrap"
    namespaces = ("pid", "net", "ipc", "uts", "mnt")

    def __init__(self, *, python_paths: Sequence[str] = (), threads: int = 1) -> None:
        program = shutil.which("bwrap")
        if program is None:
            raise MissingToolError("bubblewrap is missing", hint="apt install bubblewrap, or choose --sandbox process")
        super().__init__(python_paths=python_paths, threads=threads, groups=Cgroups.detect(), isolated=True)
        self.program = self.identity = program
        self.as_root = os.geteuid() == 0
        self._can_forbid_userns = not self.as_root and "--disable-userns" in _help(program)
        self.around = self._describe()
        self.layers = self.describe_all()

    def complete(self, job: Job, plan: dict[str, Any]) -> int | None:
        """See :class:`BaseSandbox`."""
        uid = _slots.acquire()
        plan["uid"] = uid
        plan["cwd"] = "/job"
        plan["landlock"] = own_root_fences(job, self._devices_for(job))
        if "pids" not in self.groups.features:
            plan["rlimits"]["nproc"] = job.limits.pids
        return uid

    def launch(self, job: Job, plan: dict[str, Any], control: socket.socket, group: Group | None) -> LaunchParts:
        """See :class:`BaseSandbox`."""
        if len(job.files) <= _MOST_WARM_FILES and (zygote := self.zygote_for(job)) is not None:
            return self._launch_warm(zygote, job, plan, control)
        return self._launch_cold(job, control)

    def _launch_warm(self, zygote: Zygote, job: Job, plan: dict[str, Any], control: socket.socket) -> LaunchParts:
        plan["root"] = {
            "binds": self.view.binds,
            "links": self.view.links,
            "directories": self.view.directories,
            "writable": WRITABLE,
            "tmpfs_bytes": job.limits.tmpfs_bytes,
            "mounts": [(mount.source, mount.target or mount.source, mount.writable) for mount in job.mounts],
            "files": list(job.files),
            "devices": self._devices_for(job),
        }
        files = [memory.product_memfd(data, "in") for data in job.files.values()]
        try:
            with standard_streams(b"") as (_, stdout, stderr, pipes):
                zygote.fork(control, stdout, stderr, preload=job.preload, apart=job.apart)
        except BaseException:
            messages.close_fds(files)
            raise
        return LaunchParts(pipes, lambda: None, None, ("zygote", *self.around[1:]), warm=True, files=files)

    def _launch_cold(self, job: Job, control: socket.socket) -> LaunchParts:
        info_read, info_write = os.pipe2(os.O_CLOEXEC)
        file_fds = {name: memory.product_memfd(data, "in") for name, data in job.files.items()}
        try:
            with standard_streams(job.stdin) as (stdin, stdout, stderr, pipes):
                argv = [
                    self.program,
                    *self._namespaces(),
                    *_file_system(self.view, job, file_fds, self._devices_for(job)),
                    *("--info-fd", str(info_write), "--chdir", "/job", "--"),
                    *entry_command(job.kind, control.fileno()),
                ]
                fds = [control.fileno(), info_write, *file_fds.values()]
                process = _spawn.spawn(_spawn.Command(argv, job.env, stdin, stdout, stderr, fds))
        except OSError as error:
            os.close(info_read)
            raise SandboxError(f"cannot start bubblewrap: {error}", hint="see: kernelwright doctor") from error
        finally:
            messages.close_fds([info_write, *file_fds.values()])
        return LaunchParts(
            pipes,
            lambda: _kill(process, info_read),
            reaper(process),
            self.around,
            guests=lambda: _tasks.tree(process.pid)[2:],  # without bubblewrap's outer process and its process 1
            cleanup=[lambda: os.close(info_read)],
        )

    def _devices_for(self, job: Job) -> tuple[str, ...]:
        return self.devices if job.limits.devices else ()

    def _namespaces(self) -> list[str]:
        arguments = ["--die-with-parent", "--new-session", "--unshare-pid", "--unshare-net", "--unshare-ipc"]
        arguments += ["--unshare-uts", "--hostname", "sandbox"]
        if self.as_root:
            return [*arguments, "--cap-drop", "ALL", *_IDENTITY]
        arguments += ["--unshare-user", "--cap-drop", "ALL"]
        arguments += ["--uid", str(_INSIDE_UID), "--gid", str(_INSIDE_UID)]
        return [*arguments, *(["--disable-userns"] if self._can_forbid_userns else [])]

    def _describe(self) -> tuple[str, ...]:
        spaces = "pid,net,ipc,uts,mount" if self.as_root else "user,pid,net,ipc,uts,mount"
        features = self.groups.features
        return (
            "bubblewrap",
            f"namespaces:{spaces}",
            f"cgroup:{','.join(features)}" if features else "no-cgroup",
            *(() if "memory" in features else ("memory:rlimit+watchdog",)),
            "uid:per-slot" if self.as_root else "uid:own",
            "rlimits",
            "tmpfs",
        )


def _file_system(view: View, job: Job, file_fds: Mapping[str, int], devices: Sequence[str]) -> list[str]:
    """Arguments that build the view, the writable places, ``/in`` and the mounts. None of them hides another."""
    size = str(job.limits.tmpfs_bytes)
    arguments: list[str] = ["--proc", "/proc", "--dev", "/dev"]
    for device in devices:
        arguments += ["--dev-bind", device, device]
    for target in WRITABLE:
        arguments += ["--size", size, "--perms", "1777", "--tmpfs", target]
    arguments += ["--perms", "0755", "--dir", "/in"]
    targets = [mount.target or mount.source for mount in job.mounts]
    outer = {*view.directories, *parents(targets), *parents([f"/in/{name}" for name in file_fds])}
    for directory in sorted(outer - {"/dev", "/tmp", "/in"}):
        arguments += ["--perms", "0755", "--dir", directory]
    for source, target in view.binds:
        arguments += ["--ro-bind", source, target]
    for name, link in view.links:
        arguments += ["--symlink", link, name]
    for name, fd in file_fds.items():
        arguments += ["--perms", "0444", "--file", str(fd), f"/in/{name}"]
    for mount, target in zip(job.mounts, targets, strict=True):
        arguments += ["--bind" if mount.writable else "--ro-bind", mount.source, target]
    return [*arguments, "--remount-ro", "/dev", "--remount-ro", "/"]


def _kill(process: _spawn.Process, info_fd: int) -> None:
    """Kill process 1 of the sandbox, which ends its whole namespace. Bubblewrap's outer process then ends by itself."""
    if process.poll() is not None:
        return
    text = os.read(info_fd, 4096)
    try:
        os.kill(json.loads(text)["child-pid"], signal.SIGKILL)
        process.wait(5.0)
    except (ValueError, KeyError, ProcessLookupError, subprocess.TimeoutExpired):
        process.kill()


def _help(program: str) -> str:
    return subprocess.run([program, "--help"], capture_output=True, text=True, check=False).stdout
