"""This machine as the referee uses it: the sandbox, workers and their limits, builds, processors, the lane."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from kernelwright.config import Settings
from kernelwright.errors import UsageError
from kernelwright.evaluator.builds.builder import BuildService
from kernelwright.evaluator.builds.emulation import EmulatorLibrary
from kernelwright.evaluator.builds.lanes import CompileLanes, pick_lanes
from kernelwright.evaluator.host.client import Builder, Client
from kernelwright.evaluator.host.cores import usable_cores
from kernelwright.evaluator.host.device import CPU, Device, find_device
from kernelwright.evaluator.host.door import Door, DoorLibrary
from kernelwright.evaluator.host.environment import environment
from kernelwright.records import Backend, DeviceClass, Environment
from kernelwright.sandbox import Limits, Mount, Sandbox, open_sandbox, product_memfd

LOAD_TIMEOUT_S = 60.0
RUNNER = "kernelwright.evaluator.worker.runner:main"
ORACLE = "kernelwright.evaluator.worker.oracle:main"
COMPILER = "kernelwright.evaluator.worker.compiler:main"
ORACLE_ON_DEVICE = "kernelwright.evaluator.worker.device_oracle:main"
RUNNER_ON_DEVICE = "kernelwright.evaluator.worker.device_runner:main"
COMPILER_ON_DEVICE = "kernelwright.evaluator.worker.compiler:main_on_device"
_WORKER_LIFE_S = 6 * 3600.0
_DEVICE_WORKERS = 4


class Program(NamedTuple):
    """The program that a worker loads. ``checked_by``, ``ghost`` and ``tf32`` are arguments of its ``do_load``.

    compiled: Triton's compilations for a candidate, from its build pass. threads: None as in the settings.
    """

    source: str
    role: Literal["candidate", "reference"] = "reference"
    mode: str = "eval"
    checked_by: str = ""
    ghost: bool = False
    device: Device = CPU
    tf32: bool = False
    compiled: bytes = b""
    threads: int | None = None


class Host:
    """This machine, as the settings let it be used.

    Attributes:
        settings: as given.
        environment: the environment that results on this CPU depend on.
        device: this machine's accelerator; ``CPU`` if there is none.
        sandbox: runs all untrusted code.
        warm: whether workers are forked from a process that has imported torch; else each starts from scratch.
        builds: compiles for workers.
        compile_lanes: cores that candidates are built on while others are timed.
        own_cpu: the processor of the referee's own thread, None if there is only one.
        worker_cpus: the processors that workers run on; ``last_cpu`` is the last of them.
        cache_dir: folder in which products and measurements are kept.
        closing: closes first what rooms above have opened for this host.
    """

    def __init__(self, settings: Settings, sandbox: Sandbox | None = None, device: Device | None = None) -> None:
        """``device``: instead of the one that the settings choose.

        Raises:
            UsageError: with so many threads, no core is left for the clock.
        """
        self.settings = settings
        self.device = device_of(settings) if device is None else device
        cpus = sorted(os.sched_getaffinity(0))
        _leave_a_core(settings.threads, int(usable_cores()), self.device)
        self.closing = contextlib.ExitStack()
        self.environment = environment(settings.threads)
        self.warm = True
        self._owns_sandbox = sandbox is None
        self.sandbox = _open_sandbox(settings, self.device) if sandbox is None else sandbox
        self.sandbox.warm_up()
        self.cache_dir = Path(settings.cache_dir)
        self.cache_dir.mkdir(parents=True, exist_ok=True)
        self.door_library = DoorLibrary(self.cache_dir)
        apart = min(_DEVICE_WORKERS, max(len(cpus) - 2, 1)) if self.device.is_gpu else 0  # workers only enqueue there
        workers = max(settings.threads, apart)
        lanes = pick_lanes(settings.compile_lanes, cpus, workers) if self.device.is_apart else (0, ())
        self.compile_lanes = CompileLanes(*lanes)
        self.builds = BuildService(
            self.sandbox,
            self.cache_dir,
            timeout_s=settings.build_timeout_s,
            memory_bytes=settings.memory_bytes,
            architecture=self.device.architecture,
            cpus=self.compile_lanes.cpus or None,
        )
        self.own_cpu = cpus[0] if len(cpus) > 1 else None
        self.worker_cpus = cpus[-settings.threads :] if len(cpus) > settings.threads else cpus
        self._device_cpus = cpus[-workers:] if len(cpus) > workers else cpus
        self.last_cpu = self.worker_cpus[-1]
        self._emulator_library: EmulatorLibrary | None = None

    def close(self) -> None:
        """End the sandbox, if this host opened it, and with it all running builds."""
        self.closing.close()
        self.compile_lanes.close(wait=not self._owns_sandbox)
        if self._owns_sandbox:
            self.sandbox.close()
            self.compile_lanes.close()

    # ------------------------------------------------------------------------------------------ backends

    def cpus_for(self, device: Device) -> Sequence[int]:
        """The processors that a device's workers run on."""
        return self._device_cpus if device.is_gpu else self.worker_cpus

    def device_for(self, backend: Backend) -> Device:
        """The device that candidates of a backend run on: the accelerator, or this CPU, with or without help."""
        return self.device.serving(backend)

    def class_for(self, backend: Backend) -> DeviceClass:
        """The class of devices whose shapes of a problem candidates of a backend get."""
        return self.device.class_for(backend)

    def environment_for(self, backend: Backend) -> Environment:
        """The environment that results of a backend's candidates depend on."""
        device = self.device_for(backend)
        return environment(self.settings.threads, device) if device.is_apart else self.environment

    # ------------------------------------------------------------------------------------------ workers

    def limits(self, *, wall_s: float = _WORKER_LIFE_S, allow_exec: bool = False, device: Device = CPU) -> Limits:
        """Limits of a worker."""
        memory_bytes = self.settings.memory_bytes
        return device.limits(Limits(memory_bytes=memory_bytes, wall_s=wall_s, cpu_s=3600, allow_exec=allow_exec))

    def worker(
        self,
        entry: str,
        *,
        name: str,
        builds: Builder | None = None,
        allow_exec: bool = False,
        env: Mapping[str, str] | None = None,
        inductor_cache: str | None = None,
        device: Device = CPU,
        cpus: Sequence[int] | None = None,
    ) -> Client:
        """Start a worker on the timing core(s), or on ``cpus``.

        With a GPU as its ``device``, the worker sees that GPU, its limits suit the GPU's driver, and it may start
        programs such as Triton's assembler.

        ``inductor_cache`` names a folder of the build cache that this worker may write. It is torch.compile's cache for
        one problem, shared by the workers of that problem's reference. Sandboxes without a file system of their own
        cannot show the folder; there each of these workers compiles for itself.
        """
        mounts, variables = device.mounts(), {**device.variables(), **(env or {})}
        if inductor_cache is not None and self.sandbox.name in ("bwrap", "docker"):
            folder = self.cache_dir / "inductor" / inductor_cache[:32]
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o1777)
            mounts.append(Mount(str(folder), "/cache", writable=True))
            variables |= {"TORCHINDUCTOR_CACHE_DIR": "/cache", "TRITON_CACHE_DIR": "/cache/triton"}
        return Client(
            self.sandbox,
            entry,
            name=name,
            limits=self.limits(allow_exec=allow_exec or device.is_gpu, device=device),
            cpus=self.cpus_for(device) if cpus is None else cpus,
            builds=builds,
            env=variables,
            mounts=mounts,
            warm=self.warm,
            apart=entry
            in (COMPILER, COMPILER_ON_DEVICE),  # it imports Triton, which decides then whether it interprets
        )

    def load(self, client: Client, door: Door, program: Program, *, timeout_s: float = LOAD_TIMEOUT_S) -> None:
        """Hand a worker its door and its program.

        Raises:
            WorkerFailed: the program does not load.
        """
        sent = [product_memfd(program.source.encode()), self.door_library.memfd()]
        if program.checked_by == "emulator":
            if self._emulator_library is None:
                self._emulator_library = EmulatorLibrary(self.cache_dir)
            sent.append(self._emulator_library.memfd())
        status = os.fstat(sent[1])
        client.door_files = frozenset({(status.st_dev, status.st_ino)})
        client.door_data = self.door_library.data
        try:
            client.request(
                "load",
                timeout_s=timeout_s,
                fds=[*sent[:2], *door.fds(), *sent[2:]],
                role=program.role,
                mode=program.mode,
                threads=program.threads or self.settings.threads,
                checked_by=program.checked_by,
                ghost=program.ghost,
                device=program.device.torch_name,
                tf32=program.tf32,
            )
        finally:
            for fd in sent:
                os.close(fd)

    @contextlib.contextmanager
    def lane(self) -> Iterator[None]:
        """The exclusive right to time on this machine's CPU, across processes."""
        with (self.cache_dir / "cpu-lane.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


@contextlib.contextmanager
def pinned(cpu: int | None) -> Iterator[None]:
    """Keep the calling thread on one core while it spins."""
    before = os.sched_getaffinity(0)
    try:
        if cpu is not None:
            os.sched_setaffinity(0, {cpu})
        yield
    finally:
        os.sched_setaffinity(0, before)


def _leave_a_core(threads: int, cores: int, device: Device) -> None:
    """Refuse timing on all cores: the clock's thread polls, and a team of threads waits for the one beside it.

    A softmax of 0.2 ms then took 8 ms, two slices of the scheduler, and so did its reference. One thread on one core
    is another matter: the two yield to each other.
    """
    if threads > max(cores - 1, 1) and not device.is_gpu:
        most = f"set threads to {cores - 1} or less" if cores > 2 else "set threads to 1"
        raise UsageError(
            f"threads={threads}: {max(cores, 1)} core{'s' * (cores > 1)} can be used here, "
            "and the referee's clock needs one for itself",
            hint=f"{most}, or use more cores ('kernelwright doctor' shows them)",
        )


def device_of(settings: Settings) -> Device:
    """The device that the settings choose: an accelerator, else this CPU."""
    return (find_device() or CPU) if settings.device == "auto" else CPU


_SHOWN = ("torch", "numpy", "triton", "pydantic")  # what workers import of others


def _open_sandbox(settings: Settings, device: Device) -> Sandbox:
    """The sandbox that the settings choose. It shows the packages that workers import, wherever they are installed."""
    found = (importlib.util.find_spec(name) for name in _SHOWN)
    places = {str(Path(spec.origin).parent.parent) for spec in found if spec is not None and spec.origin}
    return open_sandbox(settings.sandbox, python_paths=sorted(places), threads=settings.threads, devices=device.nodes)
