"""Opens sandboxes by name, after a self-test that each must pass, and describes the host for ``doctor``."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from typing import Final

from kernelwright.errors import MissingToolError, SandboxError, UsageError
from kernelwright.sandbox import _engine, _landlock, _probe, _system_calls
from kernelwright.sandbox._base import BaseSandbox
from kernelwright.sandbox._bwrap import BwrapSandbox
from kernelwright.sandbox._cgroups import Cgroups
from kernelwright.sandbox._docker import DockerSandbox
from kernelwright.sandbox._process import ProcessSandbox, UnconfinedSandbox
from kernelwright.sandbox._types import Probe, Sandbox

_RUNGS: Final[dict[str, Callable[..., BaseSandbox]]] = {
    "bwrap": BwrapSandbox,
    "docker": DockerSandbox,
    "process": ProcessSandbox,
    "none": UnconfinedSandbox,
}
_passed: set[tuple[str, str, int]] = set()  # (kind, identity, user id) that passed the self-test in this process

# Observed on an H100: CUDA does not start (error 304) in a program that may open no sockets at all. Without a network
# namespace, any socket would reach the host's.
_NO_SOCKETS = "the sandbox 'process' has no sockets, and CUDA's driver does not start without them"
_FOR_DEVICES = "use the sandbox bwrap (apt install bubblewrap), or leave the GPU alone: --set device=none"


def open_sandbox(
    kind: str = "bwrap",
    *,
    python_paths: Sequence[str] = (),
    threads: int = 1,
    runtime: str = "",
    devices: Sequence[str] = (),
) -> Sandbox:
    """Open a sandbox that passed its self-test.

    Args:
        kind: ``bwrap``; ``docker`` (containers of Docker or podman); ``process`` (no namespaces, labelled so in
            ``layers``); ``none`` (no confinement); or ``auto``: ``bwrap`` if it works here, otherwise ``process``.
        python_paths: directories importable inside, in addition to this Python's own and this package.
        threads: OpenMP threads of workers.
        devices: device files that workers may open and write to, in addition to /dev/null and the like. Only for
            ``bwrap`` and ``none``.
        runtime: for ``docker``, the engine's container runtime, such as ``runsc``; empty for its default.

    Raises:
        MissingToolError: bubblewrap, the docker SDK, the engine or the runtime is not installed.
        SandboxError: the sandbox cannot be set up here, or the self-test broke out of it.
        UsageError: the kind is unknown, or it has no runtimes or shows no devices.
    """
    if runtime and kind != "docker":
        raise UsageError(f"the sandbox {kind!r} has no runtimes to choose from", hint="choose the sandbox docker")
    if devices and kind == "docker":
        raise UsageError("the sandbox 'docker' shows no devices", hint=_FOR_DEVICES)
    if devices and kind == "process":
        raise UsageError(_NO_SOCKETS, hint=_FOR_DEVICES)
    if kind == "auto":
        try:
            return _open_tested("bwrap", python_paths, threads, devices)
        except (MissingToolError, SandboxError) as error:
            if devices:
                raise SandboxError(f"{error.message}; {_NO_SOCKETS}", hint=_FOR_DEVICES) from error
        return _open_tested("process", python_paths, threads, devices)
    if kind not in _RUNGS:
        raise UsageError(f"unknown sandbox {kind!r}", hint=f"choose one of: auto, {', '.join(_RUNGS)}")
    options = {"runtime": runtime} if runtime else {}
    return _open_tested(kind, python_paths, threads, devices, **options)


def self_test(sandbox: Sandbox) -> list[Probe]:
    """Try to break out, from a one-shot program and from a worker. A probe is ``ok`` if the sandbox held.

    Raises:
        SandboxError: the sandbox could not be set up.
    """
    if not isinstance(sandbox, BaseSandbox):
        raise UsageError("the self-test knows only the sandboxes that open_sandbox returns")
    programs = [Probe(f"program: {probe.name}", *probe[1:]) for probe in _probe.probe_program(sandbox)]
    return programs + [Probe(f"worker: {probe.name}", *probe[1:]) for probe in _probe.probe_worker(sandbox)]


def describe_host() -> dict[str, str]:
    """The features of this host that sandboxes use, in words, for ``doctor``."""
    program = shutil.which("bwrap")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False) if program else None
    try:
        features = Cgroups.detect().features
    except OSError as error:
        features = (f"unreadable: {error}",)
    abi = _landlock.abi()
    return {
        "container engine": _engine.describe(),
        "bubblewrap": version.stdout.strip() if version else "missing (apt install bubblewrap)",
        "user": "root (one user id per sandbox)" if os.geteuid() == 0 else f"uid {os.geteuid()} (user namespace)",
        "user namespaces": _user_namespaces(),
        "control groups": ", ".join(features) or "none usable (memory by rlimit and watchdog)",
        "landlock": f"ABI {abi}" if abi else "not available",
        "seccomp": "filter" if os.path.exists("/proc/sys/kernel/seccomp/actions_avail") else "not available",
        "architecture": _system_calls.machine(),
    }


def _open_tested(
    kind: str, python_paths: Sequence[str], threads: int, devices: Sequence[str], **options: str
) -> BaseSandbox:
    sandbox = _RUNGS[kind](python_paths=tuple(python_paths), threads=threads, **options)
    sandbox.devices = tuple(devices)
    key = kind, sandbox.identity, os.geteuid()
    if kind != "none" and key not in _passed:
        try:
            _probe.require(_probe.probe_program(sandbox), f"a program in the {kind!r} sandbox")
        except BaseException:
            sandbox.close()
            raise
        _passed.add(key)
    return sandbox


def _user_namespaces() -> str:
    for path, closed, remedy in (
        ("/proc/sys/user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
        ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "an AppArmor profile for bwrap"),
    ):
        with contextlib.suppress(OSError), open(path) as file:
            if file.read().strip() == closed:
                return f"restricted (needs {remedy})"
    return "allowed"
