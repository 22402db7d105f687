"""A sandboxed process seen from outside: handshake, output, deadline, freezing, and an end without leftovers.

One thread per process drains its pipes and waits. Only this thread ends the process and frees its resources. One-shot
programs and workers are handled alike.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

from kernelwright.errors import SandboxError
from kernelwright.sandbox import _slots, _tasks, _usage, messages
from kernelwright.sandbox._cgroups import Group
from kernelwright.sandbox._types import Exit, Limits

_HANDSHAKE_S: Final = 60.0
_GRACE_S: Final = 10.0
_WATCH_S: Final = 0.02
_LONG_S: Final = 3600.0
_MAX_PLAN_BYTES: Final = 1 << 20

_HINT: Final = "see what this host lacks with: kernelwright doctor; or choose another --sandbox"

Reason = Literal["", "timeout", "output", "oom"]


class Pipes(NamedTuple):
    """The reading ends of a process's standard output and error."""

    stdout: int
    stderr: int


@dataclass
class Launch:
    """A process that a rung of the sandbox launched, for :class:`Running` to take over.

    Attributes:
        control: trusted end of the control socket.
        pipes: reading ends of its output.
        group: its control group, or None.
        uid: its user id slot, or None if this process is not root.
        kill: kills its processes that the group does not cover.
        reap: waits for the given number of seconds. Returns the exit code like subprocess (negative: signal), or None.
        layers: the layers in force before it confines itself.
        warm: whether the zygote forked it.
        guests: lists its untrusted processes; None: the entry's process and its descendants.
        cleanup: functions to call at the end.
    """

    control: socket.socket
    pipes: Pipes
    group: Group | None
    uid: int | None
    kill: Callable[[], None]
    reap: Callable[[float], int | None]
    layers: tuple[str, ...]
    warm: bool = False
    guests: Callable[[], list[int]] | None = None
    cleanup: list[Callable[[], None]] = field(default_factory=list)


class Running:
    """A running worker (:class:`~kernelwright.sandbox.Worker`) or one-shot program."""

    def __init__(self, launch: Launch, limits: Limits, name: str = "") -> None:
        self._launch = launch
        self._name = name
        self._limits = limits
        self._outputs = {launch.pipes.stdout: bytearray(), launch.pipes.stderr: bytearray()}
        self._open = set(self._outputs)
        self._reason: Reason = ""
        self._killed = False
        self._exit: Exit | None = None
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._pidfd = -1
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.pid = 0
        self.layers: tuple[str, ...] = launch.layers
        self.warm = launch.warm
        self.seconds = 0.0
        self._started = 0.0

    def shake_hands(self, plan: Mapping[str, Any], sock: socket.socket | None, files: Sequence[int] = ()) -> None:
        """Send the plan and the guest's socket, await ``ready``, start the guest and a thread that watches it.

        ``files`` are the memory files that the plan names, in the plan's order. They are closed here.

        Raises:
            SandboxError: the sandbox could not be set up. Everything made for it is removed again.
        """
        groups: list[int] = []
        try:
            groups = self._launch.group.open_procs() if self._launch.group is not None else []
            self._exchange(plan, [*([sock.fileno()] if sock is not None else []), *groups, *files])
        except (messages.ProtocolError, OSError) as error:
            self._abandon()
            said = bytes(self._outputs[self._launch.pipes.stderr][-2000:]).decode(errors="replace").strip()
            raise SandboxError(f"the sandbox could not be set up: {said or error}", hint=_HINT) from error
        except BaseException:
            self._abandon()
            raise
        finally:
            messages.close_fds([*groups, *files])
        self._started = time.monotonic()
        threading.Thread(target=self._watch, name=f"sandbox-{self._name}-{self.pid}", daemon=True).start()

    def _exchange(self, plan: Mapping[str, Any], fds: Sequence[int]) -> None:
        control = self._launch.control
        control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        messages.send_message(control, plan, fds, max_bytes=_MAX_PLAN_BYTES)
        reply, _, pid = messages.receive(control, timeout_s=_HANDSHAKE_S, max_fds=0)
        if reply.get("ready") is not True or not pid:
            raise SandboxError(f"the sandbox could not be set up: {reply.get('error', reply)}", hint=_HINT)
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)
        self.layers += tuple(str(layer) for layer in reply.get("layers", ()))
        messages.send_message(control, {"go": True})

    # ------------------------------------------------------------------------------------------ the worker's interface

    def alive(self) -> bool:
        """Whether the entry's process still exists."""
        with self._lock:
            return not _readable(self._pidfd)

    def wait(self, timeout_s: float | None) -> Exit | None:
        """How it ended, or None if it still runs after ``timeout_s`` seconds."""
        self._done.wait(timeout_s)
        return self._exit

    def kill(self) -> Exit:
        """End it and free its resources."""
        self._killed = True
        with self._lock:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)
        self._done.wait()
        assert self._exit is not None
        return self._exit

    def freeze(self) -> None:
        """Stop all its tasks and wait for the kernel's confirmation. A worker that has ended counts as stopped.

        Raises:
            SandboxError: its tasks do not stop.
        """
        group = self._launch.group
        try:
            if group is not None and group.can_freeze:
                group.freeze()
            else:
                _tasks.stop(self._guests)
        except OSError as error:
            if self.alive():
                raise SandboxError(f"cannot freeze a worker: {error}", hint="run the job again") from error

    def thaw(self) -> None:
        """Resume it. Raises :class:`SandboxError` if the kernel refuses."""
        group = self._launch.group
        try:
            if group is not None and group.can_freeze:
                group.thaw()
            else:
                _tasks.resume(self._guests())
        except OSError as error:
            if self.alive():
                raise SandboxError(f"cannot thaw a worker: {error}", hint="run the job again") from error

    def output(self) -> tuple[bytes, bytes]:
        """Standard output and error so far, each cut at the limit."""
        pipes = self._launch.pipes
        return bytes(self._outputs[pipes.stdout]), bytes(self._outputs[pipes.stderr])

    # ------------------------------------------------------------------------------------------ its thread

    def _guests(self) -> list[int]:
        return _tasks.tree(self.pid) if self._launch.guests is None else self._launch.guests()

    def _watch(self) -> None:
        try:
            self._follow(self._started + self._limits.wall_s)
        finally:
            self._finish()

    def _follow(self, deadline: float) -> None:
        """Drain the pipes until the process ends, exceeds a limit, or should be killed."""
        watched = self._launch.group is None or not self._launch.group.limits_memory
        poll = select.poll()
        for fd in (*self._open, self._pidfd, self._wake):
            poll.register(fd, select.POLLIN)
        while not self._killed:
            left = deadline - time.monotonic()
            if left <= 0:
                self._reason = "timeout"
                return
            ready = {fd for fd, _ in poll.poll(min(left, _WATCH_S if watched else _LONG_S) * 1e3)}
            for fd in ready & self._open:
                if not self._drain(fd):
                    poll.unregister(fd)
            if self._reason or self._pidfd in ready:
                return
            if watched and _usage.memory_bytes(self._guests()) > self._limits.memory_bytes:
                self._reason = "oom"
                return

    def _drain(self, fd: int) -> bool:
        """Read the bytes that a pipe holds now. Returns False at its end."""
        data = os.read(fd, 65536)
        if not data:
            self._open.discard(fd)
            return False
        buffer = self._outputs[fd]
        room = self._limits.output_bytes - len(buffer)
        buffer += data[:room]
        if len(data) > room:
            self._reason = "output"
        return True

    def _finish(self) -> None:
        """Kill and reap everything, read the last output, free all resources, and wake the waiting threads."""
        self.seconds = time.monotonic() - self._started
        group = self._launch.group
        ended_itself = _readable(self._pidfd)
        code = self._launch.reap(_GRACE_S) if ended_itself and not self._reason else None
        self._end()
        if code is None:
            code = self._launch.reap(_GRACE_S)
        self._drain_rest()
        if group is not None and group.out_of_memory():
            self._reason = "oom"
        self._free()
        end = _describe(code, self._reason, killed=self._killed and not ended_itself)
        self._exit = replace(end, memory_bytes=self._limits.memory_bytes)
        self._done.set()

    def _end(self) -> None:
        if self._launch.group is not None:
            self._launch.group.kill()
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self._launch.kill()

    def _drain_rest(self) -> None:
        """Read the rest of the output. No process can write to the pipes any more, so this ends."""
        deadline = time.monotonic() + _GRACE_S
        for fd in list(self._open):
            while fd in self._open and not self._reason and time.monotonic() < deadline:
                poll = select.poll()
                poll.register(fd, select.POLLIN)
                if not poll.poll(0) or not self._drain(fd):
                    break

    def _abandon(self) -> None:
        """Clean up after a failed set-up, as :meth:`_finish` does, but without a watching thread."""
        with contextlib.suppress(OSError):
            self._launch.control.shutdown(socket.SHUT_WR)  # a process that waits for its plan or "go" then ends
        self._end()
        self._launch.reap(_GRACE_S)
        self._drain_rest()
        self._free()
        self._exit = Exit(None, signal.SIGKILL, "signal")
        self._done.set()

    def _free(self) -> None:
        with self._lock:
            fds = [*self._launch.pipes, self._wake, *([self._pidfd] if self._pidfd >= 0 else [])]
            messages.close_fds(fds)
            self._wake = self._pidfd = -1
        self._launch.control.close()
        if self._launch.group is not None:
            self._launch.group.close()
        for undo in self._launch.cleanup:
            with contextlib.suppress(OSError):
                undo()
        _slots.release(self._launch.uid)


def _readable(fd: int) -> bool:
    """Whether a descriptor is ready; a closed one counts as ready (its process is gone)."""
    if fd < 0:
        return True
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _describe(code: int | None, reason: Reason, *, killed: bool) -> Exit:
    """The exit record. Like a shell, bubblewrap reports a signal as 128 plus its number."""
    number: int | None = None
    if killed or reason or code is None:
        number = signal.SIGKILL.value
    elif code < 0:
        number = -code
    elif 128 < code <= 128 + signal.NSIG:
        number = code - 128
    if number is not None:
        return Exit(None, number, reason or "signal")
    return Exit(code, None, "exit" if code else "")
