"""The trusted side of the zygote: starts it, requests workers from it, ends it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Final

from kernelwright.errors import SandboxError
from kernelwright.sandbox import _spawn, messages

_START_S: Final = 120.0
_STOP_S: Final = 5.0


class Zygote:
    """A running zygote. Safe to use from several threads."""

    def __init__(self, env: Mapping[str, str], *, isolated: bool, devices: bool = False) -> None:
        """Start a zygote and wait until it has imported torch.

        ``devices``: its workers may open devices, so it must not ask for them itself.

        Raises:
            SandboxError: it cannot be set up here (no namespaces, no torch, or an import starts threads).
        """
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair()
        starting: Future[_spawn.Process] = Future()
        log_fd = os.memfd_create("zygote-log", os.MFD_CLOEXEC)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            with theirs:
                argv = [sys.executable, "-B", "-m", "kernelwright.sandbox._zygote", str(theirs.fileno())]
                command = _spawn.Command(argv, env, null, null, log_fd, [theirs.fileno()])
                self._process = _spawn.spawn(command, starting)
            messages.send_message(self._control, {"isolated": isolated, "devices": devices})
            reply, _ = messages.recv_message(self._control, timeout_s=_START_S)
            if reply.get("ready") is not True or reply.get("threads") != 1:
                raise SandboxError(f"warm workers are not possible here: {reply}", hint="see: kernelwright doctor")
            self.loaded = tuple(reply["loaded"])
        except (OSError, messages.ProtocolError, SandboxError) as error:
            self.close()
            said = os.pread(log_fd, 4096, max(0, os.fstat(log_fd).st_size - 4096)).decode(errors="replace").strip()
            raise SandboxError(f"the zygote did not start: {said or error}", hint="see: kernelwright doctor") from error
        except BaseException:  # interrupted: the zygote has no workers yet, and would continue to import torch
            _spawn.end(starting)
            self.close()
            raise
        finally:
            messages.close_fds([log_fd, null])

    def fork(
        self,
        control: socket.socket,
        stdout: int,
        stderr: int,
        *,
        preload: str,
        apart: bool = False,
        container: int | None = None,
    ) -> None:
        """Request a worker that talks over ``control`` (duplicated). Raises :class:`SandboxError` if it is dead.

        ``apart``: a fork of the zygote imports ``preload``, so that workers of other modules do not have it.
        ``container``: the pidfd of a container's first process, if the worker should enter that container.
        """
        fds = [control.fileno(), stdout, stderr, *([container] if container is not None else [])]
        try:
            with self._lock:
                messages.send_message(self._control, {"preload": preload, "apart": apart}, fds)
        except messages.ProtocolError as error:
            raise SandboxError(f"the zygote is gone: {error}", hint="start the job again") from error

    def alive(self) -> bool:
        """Whether the zygote still runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """Hang up. This ends the zygote and every worker that it forked. Idempotent."""
        self._control.close()
        process = getattr(self, "_process", None)
        if process is None:
            return
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def reap_worker(control: socket.socket, timeout_s: float) -> int | None:
    """The exit code that the zygote reports for a worker: -SIGKILL if the zygote died, None if it is late."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            left = max(0.0, deadline - time.monotonic())
            message, _ = messages.recv_message(control, timeout_s=left, max_fds=0)
        except messages.PeerClosed:
            return -signal.SIGKILL
        except messages.ProtocolError:
            return None
        if isinstance(message.get("exit"), int):
            code: int = message["exit"]
            return code
