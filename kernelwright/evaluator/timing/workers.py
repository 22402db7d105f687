"""Starts and sets up the workers of one problem: candidates, and the reference's own twins."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from kernelwright.errors import SandboxError
from kernelwright.evaluator.accuracy.trials import CheckSet
from kernelwright.evaluator.host.client import Builder, Client
from kernelwright.evaluator.host.device import Device
from kernelwright.evaluator.host.door import Door
from kernelwright.evaluator.host.host import Host, Program
from kernelwright.evaluator.host.seat import SETUP_TIMEOUT_S, WorkerSeat
from kernelwright.evaluator.truth.errors import reference_error
from kernelwright.evaluator.wire.claims import WorkerFailed
from kernelwright.evaluator.wire.roles import compile_mode, is_compiled
from kernelwright.records import Problem


class Workers(ABC):
    """Makes sides for one problem and keeps its twins alive between candidates."""

    def __init__(self, host: Host, problem: Problem, on_stage: Callable[[str], None], device: Device) -> None:
        """``device``: what its workers compute on."""
        self.host = host
        self.device = device
        self._problem = problem
        self._on_stage = on_stage
        self._twins: dict[str, WorkerSeat] = {}

    @property
    def allows_tf32(self) -> bool:
        """Whether the problem or the run lets float32 be computed in TF32."""
        allowed = (*self._problem.meta.tolerance.reduced_precision, *self.host.settings.allow_precision)
        return "tf32" in allowed

    def close(self) -> None:
        """End the twins."""
        twins, self._twins = self._twins, {}
        for side in twins.values():
            side.end()

    def candidate(self, env: Mapping[str, str], builds: Builder | None = None, role: str = "candidate") -> WorkerSeat:
        """A fresh worker for a candidate or a rival; nothing is loaded yet. ``builds`` replaces the build service."""
        return self._start(role, builds=builds or self.host.builds, env=env)

    def bare(self, name: str) -> WorkerSeat:
        """A worker that has its door and holds only the referee's own code.

        Raises:
            WorkerFailed: it does not start.
        """
        side = self._start(name)
        try:
            side.load(self.host, Program("", device=self.device))
        except WorkerFailed:
            side.end()
            raise
        return side

    def reference(self) -> Program:
        """The problem's own program, for a worker."""
        mode = self._problem.meta.mode
        return Program(self._problem.source, mode=mode, device=self.device, tf32=self.allows_tf32)

    def oracle(self) -> Client:
        """A worker that has loaded the problem and can draw its inputs.

        Raises:
            InvalidReferenceError: the reference does not load.
        """
        client = self.host.worker(self._oracle_entry, name="oracle", device=self.device)
        try:
            with contextlib.closing(Door(self.host.door_library)) as door:
                self.host.load(client, door, self.reference())
            self._open(client)
        except WorkerFailed as failed:
            output = client.tail()
            client.close()
            raise reference_error(self._problem, failed, output=output) from None
        return client

    def twin(self, name: str, check_set: CheckSet) -> WorkerSeat:
        """A fresh worker of the reference for a baseline, set up with the first variant and weights.

        Raises:
            InvalidReferenceError: the reference does not load.
        """
        compiled = is_compiled(name)
        if compiled:
            self._on_stage(f"baseline {name}")
        side = self._start(name, compiles=compiled)
        try:
            side.load(self.host, self.reference())
            side.set_up(check_set.variants[0])
            if compiled:
                side.client.request("compile", timeout_s=SETUP_TIMEOUT_S, mode=compile_mode(name))
        except WorkerFailed as failed:
            side.end()
            raise reference_error(self._problem, failed) from None
        return side

    def start_all(self, starts: Sequence[Callable[[], WorkerSeat]]) -> list[WorkerSeat]:
        """Start several workers. If one fails, the others are ended; the first failure in the given order is raised."""
        started: list[WorkerSeat] = []
        try:
            for start in starts:
                started.append(start())
        except BaseException:
            for side in started:
                side.end()
            raise
        return started

    def import_compiler(self) -> None:
        """Have torch's compiler imported in the process that workers fork from, before a worker needs it."""
        with contextlib.suppress(SandboxError):
            self._start("compiler", compiles=True).end()

    def live_twin(self, name: str, check_set: CheckSet) -> WorkerSeat:
        """The kept twin of a baseline; started again if it died."""
        side = self._twins.get(name)
        if side is None or not side.client.worker.alive():
            self.drop(name)
            side = self._twins[name] = self.twin(name, check_set)
        return side

    def drop(self, name: str) -> None:
        """End the kept twin of a baseline, if there is one."""
        side = self._twins.pop(name, None)
        if side is not None:
            side.end()

    def _start(
        self,
        name: str,
        *,
        builds: Builder | None = None,
        compiles: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> WorkerSeat:
        client = self.host.worker(
            self._entry(compiles=compiles),
            name=name,
            builds=builds,
            allow_exec=compiles,
            env=env,
            inductor_cache=self._problem.sha256 if compiles else None,
            device=self.device,
        )
        return self._seat(name, client)

    @property
    @abstractmethod
    def _oracle_entry(self) -> str:
        """The function that an oracle runs."""

    @abstractmethod
    def _open(self, client: Client) -> None:
        """Let an oracle open what it computes on."""

    @abstractmethod
    def _entry(self, *, compiles: bool) -> str:
        """The function that a worker runs."""

    @abstractmethod
    def _seat(self, name: str, client: Client) -> WorkerSeat:
        """The seat of a started worker."""
