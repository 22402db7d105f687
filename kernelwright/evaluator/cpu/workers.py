"""Starts and sets up the workers of one problem: candidates, and the reference's own twins."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kernelwright.errors import SandboxError
from kernelwright.evaluator.cpu.door import Door
from kernelwright.evaluator.cpu.side import SETUP_TIMEOUT_S, Side
from kernelwright.evaluator.device.side import DeviceSide
from kernelwright.evaluator.host.client import Builder, Client, WorkerFailed
from kernelwright.evaluator.host.device import Device
from kernelwright.evaluator.truth.truth import CheckSet, reference_error
from kernelwright.records import Problem

if TYPE_CHECKING:
    from kernelwright.evaluator.verdict.referee import Referee

RIVAL = "rival "  # begins the roles of other candidates that one is timed beside
CONTROL = "control"  # the role of a second eager twin, whose ratio to the first is known to be one


def is_foreign(role: str) -> bool:
    """Whether a role is that of a candidate's code, the judged one's or a rival's."""
    return role == "candidate" or role.startswith(RIVAL)


class Workers:
    """Makes sides for one problem and keeps its twins alive between candidates."""

    def __init__(
        self, referee: Referee, problem: Problem, on_stage: Callable[[str], None], device: Device | None = None
    ) -> None:
        """``device``: what its workers compute on; None for this CPU."""
        self._referee = referee
        self._device = device
        self._problem = problem
        self._on_stage = on_stage
        self._twins: dict[str, Side] = {}

    @property
    def allows_tf32(self) -> bool:
        """Whether the problem or the run lets float32 be computed in TF32."""
        allowed = (*self._problem.meta.tolerance.reduced_precision, *self._referee.settings.allow_precision)
        return "tf32" in allowed

    def close(self) -> None:
        """End the twins."""
        twins, self._twins = self._twins, {}
        for side in twins.values():
            side.end()

    def candidate(self, env: Mapping[str, str], builds: Builder | None = None, role: str = "candidate") -> Side:
        """A fresh worker for a candidate or a rival; nothing is loaded yet. ``builds``: not the build service."""
        return self._start(role, builds=builds or self._referee.builds, env=env)

    def bare(self, name: str) -> Side:
        """A worker that has its door and holds no code but ours.

        Raises:
            WorkerFailed: it does not come up.
        """
        side = self._start(name)
        try:
            self._referee.load(side.client, side.door, "", role="reference", mode="eval")
        except WorkerFailed:
            side.end()
            raise
        return side

    def probe(self) -> None:
        """Let a fresh worker that holds no code but ours compute something on the device.

        Raises:
            WorkerFailed: it cannot.
        """
        side = self._start("probe")
        try:
            self._referee.load(side.client, side.door, "", role="reference", mode="eval", device=self._device)
            side.client.request("probe", timeout_s=SETUP_TIMEOUT_S)
        finally:
            side.end()

    def oracle(self) -> Client:
        """A worker that has loaded the problem and can draw its inputs.

        Raises:
            InvalidReferenceError: the reference does not load.
        """
        client = self._referee.worker("kernelwright.evaluator.worker.oracle:main", name="oracle", device=self._device)
        try:
            with contextlib.closing(Door(self._referee.door_library)) as door:
                self._referee.load(
                    client,
                    door,
                    self._problem.source,
                    role="reference",
                    mode=self._problem.meta.mode,
                    device=self._device,
                    tf32=self.allows_tf32,
                )
        except WorkerFailed as failed:
            output = client.tail()
            client.close()
            raise reference_error(self._problem, failed, output=output) from None
        return client

    def twin(self, name: str, check_set: CheckSet) -> Side:
        """A fresh worker of the reference for a baseline, set up with the first variant and weights.

        Raises:
            InvalidReferenceError: the reference does not load.
        """
        compiled = name.startswith("compile")
        if compiled:
            self._on_stage(f"baseline {name}")
        side = self._start(name, compiles=compiled)
        try:
            mode = self._problem.meta.mode
            self._referee.load(
                side.client,
                side.door,
                self._problem.source,
                role="reference",
                mode=mode,
                device=self._device,
                tf32=self.allows_tf32,
            )
            side.set_up(check_set.variants[0])
            if compiled:
                compile_mode = name.removeprefix("compile").removeprefix("-") or "default"
                side.client.request("compile", timeout_s=SETUP_TIMEOUT_S, mode=compile_mode)
        except WorkerFailed as failed:
            side.end()
            raise reference_error(self._problem, failed) from None
        return side

    def import_compiler(self) -> None:
        """Have torch's compiler imported where workers are forked from, before one is wanted."""
        with contextlib.suppress(SandboxError):
            self._start("compiler", compiles=True).end()

    def live_twin(self, name: str, check_set: CheckSet) -> Side:
        """The kept twin of a baseline; started again where it died."""
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
    ) -> Side:
        door = Door(self._referee.door_library)
        try:
            client = self._referee.worker(
                f"kernelwright.evaluator.worker.{'compiler' if compiles else 'runner'}:main",
                name=name,
                builds=builds,
                allow_exec=compiles,
                env=env,
                inductor_cache=self._problem.sha256 if compiles else None,
                device=self._device,
            )
        except BaseException:
            door.close()
            raise
        if self._device is not None:
            return DeviceSide(name, client, door, self._referee.door_library)
        return Side(name, client, door, watched=is_foreign(name))
