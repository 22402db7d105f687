"""The self-test: sets up canaries outside the sandbox, lets a guest look for them, and fails closed."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, Final, Protocol

from kernelwright.errors import SandboxError
from kernelwright.sandbox import _spawn, _system_calls, messages
from kernelwright.sandbox._types import Limits, Probe, Sandbox
from kernelwright.sandbox._view import package_parent

_GUEST: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_attempts.py")
_LIMITS: Final = Limits(wall_s=60.0, memory_bytes=1 << 30, output_bytes=1 << 16)
_FORBIDDEN: Final = ("/", "/usr", "/usr/bin", "/etc", "/var/tmp", "/home", "/root", "/run", "/dev", "/proc/self", "/in")


class Probed(Sandbox, Protocol):
    """A sandbox that lists the namespaces that differ inside, and says whether guests may read past file modes."""

    namespaces: tuple[str, ...]
    keeps_read: bool


def probe_program(sandbox: Probed) -> list[Probe]:
    """Try to break out from a one-shot program."""
    with _canaries(sandbox, sockets=0) as payload:
        argv = [sys.executable, "-I", "-S", "-B", _GUEST]
        done = sandbox.run(argv, stdin=json.dumps(payload).encode(), limits=_LIMITS)
        if done.returncode != 0:
            text = done.stderr[-500:].decode(errors="replace")
            raise SandboxError(f"the sandbox's self-test did not run: {text}", hint="see: kernelwright doctor")
        try:
            results = messages.parse_object(done.stdout)
        except messages.ProtocolError as error:
            raise SandboxError(f"the self-test's reply is invalid: {error}", hint="see: kernelwright doctor") from error
        return _read_results(results, payload)


def probe_worker(sandbox: Probed) -> list[Probe]:
    """Try to break out from a worker, a warm one if the sandbox has a zygote."""
    with _canaries(sandbox, sockets=1) as payload:
        results = sandbox.call("kernelwright.sandbox._attempts:attempt", payload, limits=_LIMITS)
        return _read_results(results, payload)


def require(probes: list[Probe], what: str) -> None:
    """Raise :class:`SandboxError` if an attempt succeeded."""
    holes = [f"{probe.name} ({probe.detail})" for probe in probes if not probe.ok]
    if holes:
        raise SandboxError(
            f"{what} can reach out of the sandbox: {'; '.join(holes)}",
            hint="check the bwrap program on PATH or the container engine, or choose another --sandbox; "
            "nothing untrusted was run",
            holes=holes,
        )


def _read_results(results: dict[str, Any], payload: dict[str, Any]) -> list[Probe]:
    """The results that the guest reports, except for its marks in host directories, which are checked here."""
    found = {name: str(detail)[:500] for name, detail in results.items()}
    for directory in payload["marked"]:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(directory, payload["mark"]))
            found["write outside"] = directory
    return [Probe(name, detail == "", detail) for name, detail in found.items()]


@contextlib.contextmanager
def _canaries(sandbox: Probed, *, sockets: int) -> Iterator[dict[str, Any]]:
    """Set up a process with a secret in its environment, a world-readable secret file, and a listening socket."""
    token = secrets.token_hex(16)
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="kernelwright-canary-"))
        os.chmod(directory, 0o755)
        secret = os.path.join(directory, "secret")
        with open(secret, "w") as file:
            file.write(token)
        os.chmod(secret, 0o644)
        target = os.path.join(directory, "target")
        os.mkdir(target)
        os.chmod(target, 0o777)
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.bind(f"\0kernelwright-{token}")
        listener.listen()
        null = stack.enter_context(open(os.devnull, "r+b", buffering=0)).fileno()
        starting: Future[_spawn.Process] = Future()
        stack.callback(_spawn.end, starting)
        command = _spawn.Command(["/bin/sleep", "300"], {"KERNELWRIGHT_CANARY": token}, null, null, null, [])
        canary = _spawn.spawn(command, starting)
        yield {
            "token": token,
            "secret": secret,
            "listener": f"kernelwright-{token}",
            "canary": canary.pid,
            "mark": f"kernelwright-probe-{token}",
            "marked": [target, os.path.expanduser("~"), os.getcwd(), sys.prefix, package_parent()],
            "forbidden": _FORBIDDEN,
            "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in sandbox.namespaces},
            "capabilities": 1 << _system_calls.CAP_DAC_READ_SEARCH if sandbox.keeps_read else 0,
            "root": os.geteuid() == 0,
            "sockets": sockets,
        }
