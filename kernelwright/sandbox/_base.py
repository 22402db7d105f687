"""The base class of all sandbox kinds ("rungs"): the plan by which a process confines itself, and three ways to run."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Literal, Self

from kernelwright.errors import SandboxError, UsageError
from kernelwright.sandbox import _landlock, _probe, _seccomp, _slots, memory, messages
from kernelwright.sandbox._cgroups import Cgroups, Group
from kernelwright.sandbox._nursery import Zygote, reap_worker
from kernelwright.sandbox._running import Launch, Pipes, Running
from kernelwright.sandbox._spawn import Process
from kernelwright.sandbox._types import Completed, Exit, Limits, Mount, Worker, WorkerFailed, over_memory
from kernelwright.sandbox._view import DEVICES, WRITABLE, View, base_environment, build_view, driver_environment

ENTRY_FILE: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_entry.py")
_REPLY_DEPTH: Final = 64
_STDERR_TAIL: Final = 4096
_MAX_PAYLOAD_BYTES: Final = 1 << 30
_BARE: Final = ("PATH", "HOME", "LANG", "USER", "LOGNAME", "TMPDIR")

_live: set[BaseSandbox] = set()


@dataclass
class Job:
    """One process to start: its program and its resources."""

    kind: Literal["exec", "entry", "call"]
    limits: Limits
    env: dict[str, str]
    mounts: tuple[Mount, ...]
    argv: tuple[str, ...] = ()
    entry: str = ""
    sock: socket.socket | None = None
    cpus: tuple[int, ...] | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    stdin: bytes = b""
    max_reply_bytes: int = 0
    warm: bool = False
    apart: bool = False
    name: str = ""

    @property
    def preload(self) -> str:
        """The module to import before confinement: one of this package outside the sandbox, which needs no torch."""
        module = self.entry.partition(":")[0]
        ours = module.startswith("kernelwright.") and not module.startswith("kernelwright.sandbox.")
        return module if ours else ""

    @property
    def level(self) -> _seccomp.FilterLevel:
        """The level of its seccomp filter."""
        return "base" if self.kind == "exec" or self.limits.allow_exec else "contestant"


class BaseSandbox(ABC):
    """The common part of all sandboxes. Each subclass, a rung, defines how a process is launched and ended."""

    name: str
    identity: str = ""  # the exact program that passed a self-test, where one name stands for several programs
    layers: tuple[str, ...]
    around: tuple[str, ...]  # the layers that do not depend on the job
    namespaces: tuple[str, ...] = ()  # the entries of /proc/self/ns that differ inside
    confines = True
    keeps_read = False  # whether guests may read past file modes
    devices: tuple[str, ...] = ()  # device files of accelerators, for jobs whose limits allow them

    def __init__(self, *, python_paths: Sequence[str], threads: int, groups: Cgroups, isolated: bool) -> None:
        self.python_paths = tuple(os.path.abspath(path) for path in python_paths)
        self.threads = threads
        self.view: View = build_view(self.python_paths)
        self.groups = groups
        # A worker that is not pinned runs where this process may run now, whatever it pins itself to later.
        self._cpus = tuple(sorted(os.sched_getaffinity(0)))
        self._workers: weakref.WeakSet[Running] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._closed = False
        self._owner = os.getpid()
        self._isolated = isolated
        self.cold_because = ""  # why warm workers are impossible; empty if they are possible
        self._zygote: Zygote | None = None
        self._zygote_lock = threading.RLock()
        _live.add(self)

    # ------------------------------------------------------------------------------------------ the face

    def run(
        self,
        argv: Sequence[str],
        *,
        files: Mapping[str, bytes] | None = None,
        mounts: Sequence[Mount] = (),
        env: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        cpus: Sequence[int] | None = None,
        stdin: bytes = b"",
        warm: bool = False,
    ) -> Completed:
        """See :class:`Sandbox`."""
        files = files or {}
        _check_names(files)
        base = self.environment()
        environment = {name: base[name] for name in _BARE} | dict(env or {})
        job = Job(
            "exec",
            limits or Limits(),
            environment,
            tuple(mounts),
            argv=tuple(argv),
            cpus=_given(cpus),
            files=dict(files),
            stdin=stdin,
            warm=warm and not stdin,
        )
        running = self._start(job)
        try:
            end = running.wait(None)
        except BaseException:  # also on the user's interrupt, so that no program keeps running unattended
            running.kill()
            raise
        assert end is not None
        stdout, stderr = running.output()
        reason = "" if end.reason == "exit" else end.reason
        return Completed(end.returncode, stdout, stderr, reason, end.signal, running.seconds)

    def start_worker(
        self,
        entry: str,
        *,
        sock: socket.socket,
        name: str = "worker",
        mounts: Sequence[Mount] = (),
        env: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        cpus: Sequence[int] | None = None,
        warm: bool = True,
        apart: bool = False,
    ) -> Worker:
        """See :class:`Sandbox`."""
        job = Job(
            "entry",
            limits or Limits(),
            self.environment() | dict(env or {}),
            tuple(mounts),
            name=name,
            entry=_check_entry(entry),
            sock=sock,
            cpus=_given(cpus),
            warm=warm,
            apart=apart,
        )
        with sock:
            return self._start(job)

    def call(
        self,
        entry: str,
        payload: Mapping[str, Any],
        *,
        limits: Limits | None = None,
        mounts: Sequence[Mount] = (),
        env: Mapping[str, str] | None = None,
        cpus: Sequence[int] | None = None,
        max_reply_bytes: int = 64 << 20,
    ) -> dict[str, Any]:
        """See :class:`Sandbox`."""
        limits = limits or Limits(wall_s=120.0)
        ours, theirs = socket.socketpair()
        with ours:
            job = Job(
                "call",
                limits,
                self.environment() | dict(env or {}),
                tuple(mounts),
                entry=_check_entry(entry),
                sock=theirs,
                cpus=_given(cpus),
                max_reply_bytes=max_reply_bytes,
                warm=True,
            )
            with theirs:
                worker = self._start(job)
            try:
                return _exchange(worker, ours, entry, payload, limits, max_reply_bytes)
            finally:
                worker.kill()

    def close(self) -> None:
        """Kill all workers and free everything. Idempotent."""
        if self._owner != os.getpid():  # a fork of the owner, which only inherited it
            return
        with self._lock:
            self._closed = True
            workers = list(self._workers)
        for worker in workers:
            worker.kill()
        with self._zygote_lock:
            if self._zygote is not None:
                self._zygote.close()
                self._zygote = None
        _live.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------ for the rungs

    @abstractmethod
    def launch(self, job: Job, plan: dict[str, Any], control: socket.socket, group: Group | None) -> LaunchParts:
        """Start the process and give it ``control``, the socket on which it will receive the plan."""

    @abstractmethod
    def complete(self, job: Job, plan: dict[str, Any]) -> int | None:
        """Add the rung's own keys to the plan. Returns the user id slot that the rung acquired."""

    def zygote_for(self, job: Job) -> Zygote | None:
        """The zygote to fork a job from, started and tested on first use; None if the job must start cold.

        Raises:
            SandboxError: the zygote's workers can break out. Nothing untrusted has run.
        """
        return self._warmed() if job.warm else None

    def warm_up(self) -> None:
        """Start the zygote in the background. Errors are raised later, when a worker is requested."""

        def start() -> None:
            with contextlib.suppress(SandboxError):
                self._warmed()

        threading.Thread(target=start, name="zygote", daemon=True).start()

    def _warmed(self) -> Zygote | None:
        with self._zygote_lock:
            if self._zygote is not None and not self._zygote.alive():
                self._zygote.close()
                self._zygote = None
            if self._zygote is None and not self.cold_because and not self._closed:
                try:
                    self._zygote = self.start_zygote()
                except SandboxError as error:
                    self.cold_because = error.message
                else:
                    self._test_zygote()
            return self._zygote

    def start_zygote(self) -> Zygote:
        """A zygote whose workers this rung can confine. Raises :class:`SandboxError` if none can be started."""
        return Zygote(self.environment(), isolated=self._isolated, devices=bool(self.devices))

    def _test_zygote(self) -> None:
        """Close the zygote if this host cannot confine its workers, or they are less confined than claimed."""
        if not self.confines:
            return
        try:
            _probe.require(_probe.probe_worker(self), "a warm worker")
        except (SandboxError, WorkerFailed) as error:
            assert self._zygote is not None
            self._zygote.close()
            self._zygote = None
            if "holes" in error.data:
                raise
            self.cold_because = error.message

    def describe_all(self) -> tuple[str, ...]:
        """The layers put around a guest, then those that it applies to itself."""
        abi = _landlock.abi()
        return (*self.around, *((f"landlock:abi{abi}",) if abi else ("no-landlock",)), "seccomp")

    def environment(self) -> dict[str, str]:
        """The environment of workers."""
        return base_environment(self.threads, self.python_paths) | (driver_environment() if self.devices else {})

    def _start(self, job: Job) -> Running:
        self._refuse_closed()
        group = self.groups.create(job.limits)
        uid: int | None = None
        ours, theirs = socket.socketpair()
        try:
            plan = self._plan(job, group)
            uid = self.complete(job, plan)
            with theirs:
                parts = self.launch(job, plan, theirs, group)
        except BaseException:
            ours.close()
            if group is not None:
                group.close()
            _slots.release(uid)
            raise
        reap = parts.reap or functools.partial(reap_worker, ours)
        launch = Launch(
            ours,
            parts.pipes,
            parts.group or group,
            uid,
            parts.kill,
            reap,
            parts.layers,
            parts.warm,
            parts.guests,
            parts.cleanup,
        )
        running = Running(launch, job.limits, job.name)
        running.shake_hands(plan, job.sock, parts.files)
        with self._lock:
            self._workers.add(running)
        try:
            self._refuse_closed()  # by another thread, meanwhile
        except SandboxError:
            running.kill()
            raise
        return running

    def _refuse_closed(self) -> None:
        if self._closed:
            raise SandboxError("the sandbox is closed", hint="open another one with open_sandbox")

    def _plan(self, job: Job, group: Group | None) -> dict[str, Any]:
        limits = job.limits
        rlimits = {
            "core": 1,  # 0 still pipes dumps to a core_pattern that is a program; 1 turns this off, too
            "cpu": limits.cpu_s,
            # A tmpfs with a size bounds its files itself. Memory files carry outputs and may be larger than the tmpfs.
            "fsize": limits.memory_bytes if self._isolated else limits.tmpfs_bytes,
            "memlock": 8 << 20,
            "msgqueue": 0,
            "nice": 0,
            "nofile": limits.nofile,
            "rtprio": 0,
            "sigpending": 1024,
        }
        if group is None or not group.limits_memory:
            rlimits["data"] = limits.memory_bytes
        return {
            "kind": job.kind,
            "argv": job.argv,
            "entry": job.entry,
            "env": job.env,
            "preload": job.preload if job.level == "contestant" else "",
            "sock": job.sock is not None,
            "max_reply_bytes": job.max_reply_bytes,
            "cpus": self._cpus if job.cpus is None else job.cpus,
            "rlimits": rlimits,
            "filter": job.level,
        }


@dataclass
class LaunchParts:
    """The result of :meth:`BaseSandbox.launch`; see :class:`Launch`."""

    pipes: Pipes
    kill: Callable[[], None]
    reap: Callable[[float], int | None] | None  # None: the zygote reports over the control socket
    layers: tuple[str, ...]
    warm: bool = False
    guests: Callable[[], list[int]] | None = None  # None: the entry's process and its descendants
    group: Group | None = None  # set if the rung makes groups itself
    files: Sequence[int] = ()  # memory files that the plan names; they are sent with the plan and closed here
    cleanup: list[Callable[[], None]] = field(default_factory=list)


@contextlib.contextmanager
def standard_streams(stdin: bytes) -> Any:
    """Standard streams of a new process: yields (stdin, stdout, stderr, Pipes) and closes the child's ends."""
    out_read, out_write = os.pipe2(os.O_CLOEXEC)
    err_read, err_write = os.pipe2(os.O_CLOEXEC)
    source = memory.product_memfd(stdin, "stdin") if stdin else os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield source, out_write, err_write, Pipes(out_read, err_read)
    except BaseException:
        messages.close_fds([out_read, err_read])
        raise
    finally:
        messages.close_fds([source, out_write, err_write])


def reaper(process: Process) -> Callable[[float], int | None]:
    """A function that waits for a child process: it returns the exit code, or None after ``timeout_s`` seconds."""

    def reap(timeout_s: float) -> int | None:
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    return reap


def entry_command(kind: str, control_fd: int) -> list[str]:
    """The command line of the first program inside. If it only execs, it skips site-packages: 10 ms instead of 40."""
    bare = ["-I", "-S"] if kind == "exec" else []
    return [sys.executable, *bare, "-B", ENTRY_FILE, str(control_fd)]


def own_root_fences(job: Job, devices: Sequence[str] = ()) -> dict[str, list[str]]:
    """Landlock rules for a guest that has a file system of its own: all of it is readable, few places are writable.

    Of /dev only ``DEVICES`` and ``devices`` are writable: a terminal could wake a stopped guest with a signal.
    """
    mounted = [mount.target or mount.source for mount in job.mounts if mount.writable]
    named = ["/proc"] if devices else []  # CUDA's driver does not start if it cannot name its threads
    return {"read": ["/"], "write": [*WRITABLE, *DEVICES, *devices, *named, *mounted]}


def _exchange(
    worker: Running, ours: socket.socket, entry: str, payload: Mapping[str, Any], limits: Limits, max_reply_bytes: int
) -> dict[str, Any]:
    deadline = time.monotonic() + limits.wall_s
    try:
        messages.send_message(ours, payload, timeout_s=limits.wall_s, max_bytes=_MAX_PAYLOAD_BYTES)
        left = max(0.0, deadline - time.monotonic())
        reply, _ = messages.recv_message(
            ours, timeout_s=left, max_bytes=max_reply_bytes, max_depth=_REPLY_DEPTH, max_fds=0
        )
    except (messages.PeerClosed, messages.PeerTimeout) as error:
        if isinstance(error, messages.PeerClosed):
            worker.wait(5.0)
        end = worker.kill()
        kind: str = "timeout" if isinstance(error, messages.PeerTimeout) else end.reason
        if kind not in ("timeout", "oom", "output"):
            kind = "crash"
        why, hint = _ended(kind, end, limits)
        raise _failed(worker, entry, kind, why, hint=hint) from error
    except messages.ProtocolError as error:
        raise _failed(worker, entry, "reply", error.message) from error
    if "exception" in reply:
        failure = "exception" if reply["exception"] else "reply"
        text = f"{reply['exception']}: {reply.get('message', '')}" if reply["exception"] else reply.get("message", "")
        raise _failed(worker, entry, failure, str(text)[:2000], traceback=str(reply.get("traceback", ""))[:8192])
    if not isinstance(reply.get("result"), dict):
        raise _failed(worker, entry, "reply", "the answer is no object")
    result: dict[str, Any] = reply["result"]
    return result


def _ended(kind: str, end: Exit, limits: Limits) -> tuple[str, str]:
    """The message about a worker that ended before it answered, and a hint for the user."""
    if kind == "oom":
        return over_memory(limits.memory_bytes)
    detail = f"signal {end.signal}" if end.signal else f"status {end.returncode}"
    said = {
        "timeout": f"takes longer than {limits.wall_s:g} s",
        "output": f"prints more than {limits.output_bytes / 2**20:.3g} MiB",
    }
    return said.get(kind, f"ends the process that runs it ({detail})"), ""


def _failed(worker: Running, entry: str, kind: str, why: str, **data: Any) -> WorkerFailed:
    worker.kill()
    tail = worker.output()[1][-_STDERR_TAIL:].decode(errors="replace")
    return WorkerFailed(why, kind=kind, entry=entry, stderr=tail, **data)


def _check_entry(entry: str) -> str:
    module, colon, name = entry.partition(":")
    if not (colon and name.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise UsageError(f"{entry!r} is not of the form package.module:function")
    return entry


def _given(cpus: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if cpus is None else tuple(cpus)


def _check_names(files: Mapping[str, bytes]) -> None:
    for name in files:
        parts = name.split("/")
        if not name or name.startswith("/") or any(part in ("", ".", "..") for part in parts) or "\0" in name:
            raise UsageError(f"{name!r} is not a plain relative path for a file under /in")


def _close_all() -> None:
    for sandbox in list(_live):
        sandbox.close()


atexit.register(_close_all)
