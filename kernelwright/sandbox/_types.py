"""The public types of the sandbox: limits, results, and the protocols ``Sandbox`` and ``Worker``."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol

from kernelwright.errors import KernelwrightError

FailureKind = Literal["exception", "timeout", "oom", "output", "crash", "reply"]


@dataclass(frozen=True)
class Limits:
    """The limits of one sandboxed program.

    Attributes:
        memory_bytes: memory of all its processes together, writable tmpfs included.
        pids: number of processes and threads.
        wall_s: wall clock seconds; for a worker a hard limit on its lifetime, frozen time included.
        cpu_s: processor seconds of each process.
        output_bytes: size of each of stdout and stderr; the program is killed if it prints more.
        tmpfs_bytes: size of each of /tmp, /job and /dev/shm.
        nofile: open files of each process.
        allow_exec: whether a worker may start further programs; a program of ``run`` always may.
        devices: whether the program sees the accelerators that the sandbox was opened with.
    """

    memory_bytes: int = 4 << 30
    pids: int = 64
    wall_s: float = 60.0
    cpu_s: int = 600
    output_bytes: int = 1 << 20
    tmpfs_bytes: int = 256 << 20
    nofile: int = 256
    allow_exec: bool = False
    devices: bool = False


@dataclass(frozen=True)
class Mount:
    """A host path that is visible inside, at ``target`` or (None) at its own path."""

    source: str
    target: str | None = None
    writable: bool = False


@dataclass(frozen=True)
class Completed:
    """How a one-shot program ended. Exit status and output are the program's own claims and prove nothing."""

    returncode: int | None
    stdout: bytes
    stderr: bytes
    reason: Literal["", "timeout", "output", "oom", "signal"]
    signal: int | None
    seconds: float


@dataclass(frozen=True)
class Exit:
    """How a worker ended. ``reason``: ``exit`` for a status other than 0, ``signal``, or the limit that it exceeded.

    ``memory_bytes`` is its memory limit.
    """

    returncode: int | None
    signal: int | None
    reason: Literal["", "oom", "timeout", "output", "signal", "exit"]
    memory_bytes: int = field(default=0, compare=False)


def over_memory(memory_bytes: int) -> tuple[str, str]:
    """The message about a program that exceeded its limit of ``memory_bytes``, and a hint for the user."""
    wanted = max(1, -(-4 * memory_bytes >> 30))
    return f"needs more than memory_bytes ({_in_words(memory_bytes)})", f"raise it with --set memory_bytes={wanted}GiB"


def _in_words(size: int) -> str:
    unit, factor = ("GiB", 1 << 30) if size >= 1 << 30 else ("MiB", 1 << 20)
    return f"{size / factor:.3g} {unit}"


class Probe(NamedTuple):
    """One attempt of the self-test to break out. ``ok`` means that the sandbox held."""

    name: str
    ok: bool
    detail: str


class WorkerFailed(KernelwrightError):
    """A worker of :meth:`Sandbox.call` gave no answer.

    ``kind`` is ``exception`` (its function raised), ``timeout``, ``oom``, ``output`` (printed too much), ``crash``, or
    ``reply`` (the answer is not acceptable JSON). The message says what happened, without a name of this package.
    ``entry`` is the function called. ``stderr`` is the tail of the worker's standard error: hostile text.
    """

    @property
    def kind(self) -> FailureKind:
        """Why there is no answer."""
        kind: FailureKind = self.data["kind"]
        return kind

    @property
    def stderr(self) -> str:
        """Last 4 KiB of the worker's standard error."""
        return str(self.data.get("stderr", ""))

    @property
    def traceback(self) -> str:
        """The traceback that the worker sent, for kind ``exception``: hostile text, cut."""
        return str(self.data.get("traceback", ""))


class Worker(Protocol):
    """A running sandboxed function, connected to its caller by a socket."""

    @property
    def pid(self) -> int:
        """Host process id of the process that runs the entry."""

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers that confine this worker."""

    @property
    def warm(self) -> bool:
        """Whether it was forked from the process that has already imported torch."""

    def freeze(self) -> None:
        """Stop all its tasks and wait for the kernel's confirmation. Raises :class:`SandboxError` if none comes."""

    def thaw(self) -> None:
        """Resume it."""

    def alive(self) -> bool:
        """Whether the entry's process still exists."""

    def wait(self, timeout_s: float) -> Exit | None:
        """How it ended, or None if it still runs after ``timeout_s`` seconds."""

    def kill(self) -> Exit:
        """End all its processes and free its resources. Idempotent."""

    def output(self) -> tuple[bytes, bytes]:
        """Standard output and error so far, each truncated to ``Limits.output_bytes``."""


class Sandbox(Protocol):
    """Runs untrusted programs under limits. Safe to use from several threads."""

    @property
    def name(self) -> str:
        """Its kind: ``bwrap``, ``docker``, ``process`` or ``none``."""

    @property
    def layers(self) -> tuple[str, ...]:
        """The active layers, and each missing layer as ``no-...``."""

    def run(
        self,
        argv: Sequence[str],
        *,
        files: Mapping[str, bytes] = ...,
        mounts: Sequence[Mount] = ...,
        env: Mapping[str, str] = ...,
        limits: Limits = ...,
        cpus: Sequence[int] | None = ...,
        stdin: bytes = ...,
        warm: bool = ...,
    ) -> Completed:
        """Run one program to its end. ``files`` appear read-only under /in. It starts in /job, an empty tmpfs.

        ``warm`` lets a fork of the zygote start it, if the rung has one for programs: as confined, and faster. With
        ``stdin`` it is started cold. ``cpus``: processors that it may use; None: all that this process may use.

        Raises:
            SandboxError: the sandbox could not be set up; nothing untrusted was run.
        """

    def start_worker(
        self,
        entry: str,
        *,
        sock: socket.socket,
        name: str = ...,
        mounts: Sequence[Mount] = ...,
        env: Mapping[str, str] = ...,
        limits: Limits = ...,
        cpus: Sequence[int] | None = ...,
        warm: bool = ...,
        apart: bool = ...,
    ) -> Worker:
        """Call ``entry`` ("package.module:function") inside as ``function(sock)``.

        ``warm`` lets a fork of the zygote start it. With ``apart``, a separate zygote forks it, so that other workers
        do not have the entry's module. ``sock`` is the child's end of a stream socket pair. It now belongs to the
        worker and is closed here, also on failure, so that the other end notices the worker's death.

        Raises:
            SandboxError: the sandbox could not be set up; nothing untrusted was run.
        """

    def call(
        self,
        entry: str,
        payload: Mapping[str, Any],
        *,
        limits: Limits = ...,
        mounts: Sequence[Mount] = ...,
        env: Mapping[str, str] = ...,
        cpus: Sequence[int] | None = ...,
        max_reply_bytes: int = ...,
    ) -> dict[str, Any]:
        """Call ``entry`` inside as ``function(payload) -> dict``, in a new worker. Payload and result travel as JSON.

        Raises:
            WorkerFailed: it raised, died, exceeded a limit, or sent an unacceptable answer.
            SandboxError: the sandbox could not be set up.
        """

    def warm_up(self) -> None:
        """Start, in the background, the process that warm workers are forked from."""

    def environment(self) -> dict[str, str]:
        """The environment of workers."""

    def close(self) -> None:
        """Kill all workers and free everything. Idempotent."""

    def __enter__(self) -> Sandbox: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
