"""The referee: owns the sandbox, the build cache, the door, the lane; opens sessions."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

import numpy as np

from kernelwright.config import Settings
from kernelwright.errors import InvalidReferenceError, MachineError, UsageError
from kernelwright.evaluator.builds.emulation import EmulatorLibrary
from kernelwright.evaluator.builds.lanes import CompileLanes, pick_lanes
from kernelwright.evaluator.builds.service import BuildService
from kernelwright.evaluator.cpu.fresh import FreshLibrary
from kernelwright.evaluator.cpu.share import ShareSampler
from kernelwright.evaluator.device.examine import Examiner
from kernelwright.evaluator.host.client import Builder, Client
from kernelwright.evaluator.host.device import REHEARSAL, Device, find_device
from kernelwright.evaluator.host.door import Door, DoorLibrary
from kernelwright.evaluator.host.environment import environment
from kernelwright.evaluator.profile.code import CodeReader
from kernelwright.evaluator.verdict.session import ProblemSession
from kernelwright.evaluator.wire.claims import WorkerFailed
from kernelwright.evaluator.worker.guard import GuardLibrary
from kernelwright.records import Backend, Candidate, Environment, Evaluation, InputGenerator, Problem, Status, Verdict
from kernelwright.sandbox import Limits, Mount, Sandbox, open_sandbox, product_memfd

BASELINES = (
    "eager",
    "compile",
    "compile-max-autotune",
    "compile-max-autotune-no-cudagraphs",
    "compile-reduce-overhead",
)
LOAD_TIMEOUT_S = 60.0
_WORKER_LIFE_S = 6 * 3600.0
_GPU_HOST_BYTES = 16 << 30  # of host memory that a worker on a GPU may take: its driver maps a lot
_GPU_FOLDERS = ("/sys/bus/pci", "/sys/devices", "/sys/module")  # in which its driver looks for it; read-only
_GPU_PIDS = 256
_GPU_FILES = 1024
_EXAMINED_S = 300.0
_DIGEST_SOURCE = Path(__file__).parent.parent / "device/digest.cu"
_COMPILER = "kernelwright.evaluator.worker.compiler"
_NULL_CALLS = 200
_NULL_WINDOWS = 5


def _device(settings: Settings) -> Device | None:
    """The device that candidates of its kind are checked and timed on, as the settings say."""
    if settings.device == "auto":
        return find_device()
    return REHEARSAL if settings.device == "rehearsal" else None


def _open_sandbox(settings: Settings, device: Device | None = None) -> Sandbox:
    """The sandbox of the settings, in which the packages that workers import can be seen wherever they lie."""
    found = (importlib.util.find_spec(name) for name in ("torch", "numpy", "triton"))
    places = {str(Path(spec.origin).parent.parent) for spec in found if spec is not None and spec.origin}
    nodes = device.nodes if device is not None else ()
    return open_sandbox(settings.sandbox, python_paths=sorted(places), threads=settings.threads, devices=nodes)


class EvaluatorPool(Protocol):
    """Whatever can judge candidates: the local referee here, many devices elsewhere."""

    def open(
        self,
        problem: Problem,
        *,
        backend: Backend = ...,
        baselines: Sequence[str] = ...,
        on_stage: Callable[[str], None] | None = ...,
        archive: Sequence[InputGenerator] = ...,
    ) -> ProblemSession:
        """A session on one problem, mostly for candidates of ``backend``."""


class Referee:
    """Judges candidates on this machine. A context manager.

    It never executes problem or candidate code: that happens in workers of ``sandbox``.

    Attributes:
        settings: as given.
        environment: what results on this CPU depend on.
        device: the accelerator that is here, or None.
        sandbox: where everything foreign runs.
        warm: whether workers are forked from a process that has imported torch; else each starts anew.
    """

    def __init__(self, settings: Settings, sandbox: Sandbox | None = None) -> None:
        self.settings = settings
        self.device = _device(settings)
        self.environment = environment(settings.threads)
        self._digest_code: bytes | None = None
        self._examiner: Examiner | None = None
        self._owns_sandbox = sandbox is None
        self.sandbox = _open_sandbox(settings, self.device) if sandbox is None else sandbox
        self.sandbox.warm_up()
        self._cache_dir = Path(settings.cache_dir)
        self._cache_dir.mkdir(parents=True, exist_ok=True)
        self.door_library = DoorLibrary(self._cache_dir)
        cpus = sorted(os.sched_getaffinity(0))
        lanes = pick_lanes(settings.compile_lanes, cpus, settings.threads) if self.device is not None else (0, ())
        self.compile_lanes = CompileLanes(*lanes)
        self.builds = BuildService(
            self.sandbox,
            self._cache_dir,
            timeout_s=settings.build_timeout_s,
            memory_bytes=settings.memory_bytes,
            architecture=self.device.architecture if self.device is not None and self.device.is_gpu else "",
            cpus=self.compile_lanes.cpus or None,
        )
        self.own_cpu = cpus[0] if len(cpus) > 1 else None
        self._worker_cpus = cpus[-settings.threads :] if len(cpus) > settings.threads else cpus
        self.fresh_library = FreshLibrary(self._cache_dir, self._worker_cpus[-1] if self.own_cpu is not None else None)
        self.guard_library = GuardLibrary(self._cache_dir)
        self._emulator_library: EmulatorLibrary | None = None
        self.code = CodeReader(self.sandbox)
        self.share_sampler = ShareSampler(self._cache_dir)
        self.warm = True
        self._null_ms: float | None = None

    def __enter__(self) -> Referee:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the sandbox, where it is ours."""
        self.compile_lanes.close(wait=not self._owns_sandbox)
        self.fresh_library.close()
        if self._owns_sandbox:
            self.sandbox.close()  # and with it what is still being built
            self.compile_lanes.close()

    def open(
        self,
        problem: Problem,
        *,
        backend: Backend = "cpp",
        baselines: Sequence[str] = ("eager", "compile"),
        on_stage: Callable[[str], None] | None = None,
        archive: Sequence[InputGenerator] = (),
    ) -> ProblemSession:
        """A session on ``problem``; its reference has been run on the shapes of ``backend``, and found usable.

        Args:
            archive: generators of inputs that candidates are checked on as well, wherever the reference is well
                defined on them.

        Raises:
            InvalidReferenceError: it is not; ``data["line"]`` is the line at fault where one is known.
            UsageError: an unknown baseline, or a problem that this version cannot judge.
        """
        for name in baselines:
            if name not in BASELINES:
                raise UsageError(f"unknown baseline {name!r}", hint=f"use some of {', '.join(BASELINES)}")
        session = ProblemSession(self, problem, baselines=baselines, on_stage=on_stage, archive=archive)
        try:
            session.prepare_for(backend)
        except BaseException:
            session.close()
            raise
        return session

    def evaluate(
        self,
        candidate: Candidate,
        problem: Problem,
        *,
        baselines: Sequence[str] = ("eager", "compile"),
        control: bool = False,
        time: bool = True,
        confirm: bool = False,
        on_stage: Callable[[str], None] | None = None,
        archive: Sequence[InputGenerator] = (),
    ) -> Evaluation:
        """One candidate in a session of its own; an unusable reference is status INVALID_REFERENCE."""
        try:
            opened = self.open(
                problem, backend=candidate.backend, baselines=baselines, on_stage=on_stage, archive=archive
            )
            with opened as session:
                return session.judge(candidate, control=control, time=time, confirm=confirm)
        except InvalidReferenceError as error:
            verdict = Verdict(
                candidate=candidate.sha256,
                problem=problem.id,
                backend=candidate.backend,
                control=control,
                stage=None,
                failed_stage="check",
                status=Status.INVALID_REFERENCE,
                reason=error.message,
                environment=self.environment.id,
                sandbox=self.sandbox.layers,
            )
            return Evaluation(candidate=candidate, verdict=verdict, environment=self.environment)

    # ------------------------------------------------------------------------------------------ for sessions

    @property
    def emulator_library(self) -> EmulatorLibrary:
        """The runtime of emulated CUDA kernels, compiled on first use."""
        if self._emulator_library is None:
            self._emulator_library = EmulatorLibrary(self._cache_dir)
        return self._emulator_library

    def examiner(self, device: Device) -> Examiner:
        """The tools that look at winners on a device; one for each referee."""
        if self._examiner is None:
            limits = self.limits(wall_s=_EXAMINED_S, allow_exec=True, device=device)
            self._examiner = Examiner(self.sandbox, device, self._cache_dir, limits)
        return self._examiner

    def environment_of(self, device: Device | None) -> Environment:
        """What results on a device depend on; of this CPU where it is None."""
        return self.environment if device is None else environment(self.settings.threads, device)

    def environment_for(self, backend: Backend) -> Environment:
        """What results of candidates of a backend depend on: on the device where it serves them, else on this CPU."""
        serves = self.device is not None and self.device.serves(backend)
        return self.environment_of(self.device if serves else None)

    @property
    def digest_code(self) -> bytes:
        """Machine code of the digest for the device that is here, compiled on first use.

        Raises:
            MachineError: it cannot be compiled here.
        """
        assert self.device is not None
        if self._digest_code is None:
            source = _DIGEST_SOURCE.read_text()
            self._digest_code = self.builds.device_code(source, "kw_digest", self.device.architecture)
        return self._digest_code

    def limits(
        self, *, wall_s: float = _WORKER_LIFE_S, allow_exec: bool = False, device: Device | None = None
    ) -> Limits:
        """Limits of a worker."""
        memory_bytes, on_gpu = self.settings.memory_bytes, device is not None and device.is_gpu
        return Limits(
            memory_bytes=max(memory_bytes, _GPU_HOST_BYTES) if on_gpu else memory_bytes,
            wall_s=wall_s,
            cpu_s=3600,
            pids=_GPU_PIDS if on_gpu else Limits.pids,
            nofile=_GPU_FILES if on_gpu else Limits.nofile,
            allow_exec=allow_exec,
            devices=on_gpu,
        )

    def worker(
        self,
        entry: str,
        *,
        name: str,
        builds: Builder | None = None,
        allow_exec: bool = False,
        env: Mapping[str, str] | None = None,
        inductor_cache: str | None = None,
        device: Device | None = None,
        cpus: Sequence[int] | None = None,
    ) -> Client:
        """Start a worker on the timing core(s), or on ``cpus``.

        With a GPU as its ``device``, that is seen, its driver gets what it needs, and programs may be started: Triton's
        assembler is one.

        ``inductor_cache`` names a folder of the build cache that this worker may write: torch.compile's own cache for
        one problem, shared by the reference's workers of that problem alone. Rungs without a file system of their own
        cannot show it; there each of these workers compiles for itself.
        """
        on_gpu = device is not None and device.is_gpu
        mounts = [Mount(path) for path in _GPU_FOLDERS if on_gpu and os.path.isdir(path)]
        variables = dict(env or {})
        if inductor_cache is not None and self.sandbox.name in ("bwrap", "docker"):
            folder = self._cache_dir / "inductor" / inductor_cache[:32]
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o1777)
            mounts.append(Mount(str(folder), "/cache", writable=True))
            variables |= {"TORCHINDUCTOR_CACHE_DIR": "/cache", "TRITON_CACHE_DIR": "/cache/triton"}
        return Client(
            self.sandbox,
            entry,
            name=name,
            limits=self.limits(allow_exec=allow_exec or on_gpu, device=device),
            cpus=self._worker_cpus if cpus is None else cpus,
            builds=builds,
            env=variables,
            mounts=mounts,
            warm=self.warm,
            apart=entry.partition(":")[0] == _COMPILER,  # it imports Triton, which decides then whether it interprets
        )

    def load(
        self,
        client: Client,
        door: Door,
        source: str,
        *,
        role: str,
        mode: str,
        checked_by: str = "",
        ghost: bool = False,
        device: Device | None = None,
        tf32: bool = False,
        compiled: bytes = b"",
        threads: int | None = None,
        timeout_s: float = LOAD_TIMEOUT_S,
    ) -> None:
        """Hand a worker its door and its source; ``checked_by``, ``ghost`` and ``tf32`` as ``do_load`` has them.

        ``compiled``: what Triton compiled for the candidate in its build pass. ``threads``: not as the settings say.

        Raises:
            WorkerFailed: the source does not load.
        """
        sent = [product_memfd(source.encode()), self.door_library.memfd()]
        more = [self.emulator_library.memfd()] if checked_by == "emulator" else []
        if device is not None and device.is_gpu:
            more = [product_memfd(self.digest_code)]
            more += [product_memfd(compiled)] if compiled else []
        status = os.fstat(sent[1])
        client.door_files = frozenset({(status.st_dev, status.st_ino)})
        client.door_data = self.door_library.data
        try:
            client.request(
                "load",
                timeout_s=timeout_s,
                fds=[*sent, *door.fds(), *more],
                role=role,
                mode=mode,
                threads=threads or self.settings.threads,
                checked_by=checked_by,
                ghost=ghost,
                device="" if device is None else device.torch_name,
                tf32=tf32,
            )
        finally:
            for fd in (*sent, *more):
                os.close(fd)

    @contextlib.contextmanager
    def lane(self) -> Iterator[None]:
        """The exclusive right to time on this machine's CPU, across processes."""
        with (self._cache_dir / "cpu-lane.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def null_ms(self) -> float:
        """What the door itself costs a call; measured once, subtracted everywhere.

        No more than that: a candidate that speaks the door's protocol itself saves what our own Python takes, and
        subtracting it from everybody would let a short call come out near zero.
        """
        if self._null_ms is None:
            self._null_ms = self._measure_null()
        return self._null_ms

    def _measure_null(self) -> float:
        door = Door(self.door_library)
        client = self.worker("kernelwright.evaluator.worker.runner:main", name="null")
        try:
            self.load(client, door, "", role="reference", mode="eval")
            client.send("idle", yielding=door.yielding)
            slots = np.zeros(_NULL_CALLS, dtype=np.int64)
            windows = [door.window(client, slots, [], [], call_timeout_s=10.0) for _ in range(_NULL_WINDOWS + 1)]
            return min(window.mean_ms for window in windows[1:])
        except WorkerFailed as failed:
            raise MachineError(f"the null worker failed: {failed.failure.message}") from None
        finally:
            client.close()
            door.close()
