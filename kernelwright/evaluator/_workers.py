"""Starts and sets up the workers of one problem: candidates, and the reference's own twins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from kernelwright.evaluator import _wire as wire
from kernelwright.evaluator._client import WorkerFailed
from kernelwright.evaluator._clock import Door
from kernelwright.evaluator._timing import Side
from kernelwright.evaluator._truth import CheckSet, Variant, reference_error
from kernelwright.records import Problem
from kernelwright.sandbox import SharedMemory

if TYPE_CHECKING:
    from kernelwright.evaluator._referee import Referee

SETUP_TIMEOUT_S = 60.0


class Workers:
    """Makes sides for one problem and keeps its twins alive between candidates."""

    def __init__(self, referee: Referee, problem: Problem, on_stage: Callable[[str], None]) -> None:
        self._referee = referee
        self._problem = problem
        self._on_stage = on_stage
        self._twins: dict[str, Side] = {}

    def close(self) -> None:
        """End the twins."""
        twins, self._twins = self._twins, {}
        for side in twins.values():
            end(side)

    def candidate(self, env: Mapping[str, str]) -> Side:
        """A fresh worker for a candidate; nothing is loaded yet."""
        return self._start("candidate", builds=True, env=env)

    def twin(self, name: str, check_set: CheckSet) -> Side:
        """A fresh worker of the reference for a baseline, set up with the first variant and weights.

        Raises:
            InvalidReferenceError: the reference does not load.
        """
        compiled = name != "eager"
        if compiled:
            self._on_stage(f"baseline {name}")
        side = self._start(name, compiles=compiled)
        try:
            mode = self._problem.meta.mode
            self._referee.load(side.client, side.door, self._problem.source, role="reference", mode=mode)
            self.set_up(side, check_set.variants[0], 0)
            if compiled:
                compile_mode = name.removeprefix("compile").removeprefix("-") or "default"
                side.client.request("compile", timeout_s=SETUP_TIMEOUT_S, mode=compile_mode)
        except WorkerFailed as failed:
            end(side)
            raise reference_error(self._problem, failed) from None
        return side

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
            end(side)

    def set_up(self, side: Side, variant: Variant, weights: int) -> None:
        """Construct a worker's module for one variant and give it its weights.

        Raises:
            WorkerFailed: its constructor raises, or its parameters do not correspond.
        """
        side.client.request("construct", timeout_s=SETUP_TIMEOUT_S, init=variant.init, variant=variant.constants)
        self.give_weights(side, variant, weights)

    def give_weights(self, side: Side, variant: Variant, weights: int) -> None:
        """Copy one drawn state into a worker's module."""
        if not variant.state:
            return
        with SharedMemory.create(variant.state_bytes, "weights") as memory:
            np.frombuffer(memory.view, dtype=np.uint8)[:] = variant.weights[weights]
            memory.seal()
            side.client.request(
                "weights",
                timeout_s=SETUP_TIMEOUT_S,
                fds=[memory.fd],
                size=memory.size,
                state=[wire.spec_to_json(s) for s in variant.state],
                parameters=variant.parameters,
            )

    def _start(
        self, name: str, *, builds: bool = False, compiles: bool = False, env: Mapping[str, str] | None = None
    ) -> Side:
        door = Door(self._referee.door_library)
        try:
            client = self._referee.worker(
                f"kernelwright.evaluator.{'_compiler' if compiles else '_worker'}:main",
                name=name,
                builds=builds,
                allow_exec=compiles,
                env=env,
                inductor_cache=self._problem.sha256 if compiles else None,
            )
        except BaseException:
            door.close()
            raise
        return Side(name, client, door)


def map_slots(side: Side, memory: SharedMemory, variant: Variant, count: int, *, timeout_s: float) -> None:
    """Lay the forward arguments of ``count`` slots over shared memory, and send the worker into its door.

    Raises:
        WorkerFailed: it did not.
    """
    side.client.request(
        "slots",
        timeout_s=timeout_s,
        fds=[memory.fd],
        size=memory.size,
        count=count,
        stride=variant.slot_bytes,
        inputs=variant.inputs_json(),
    )
    side.client.send("enter", yielding=side.door.yielding)


def call_back(side: Side, *, timeout_s: float) -> None:
    """Out of the door and back to the socket.

    Raises:
        WorkerFailed: it does not come.
    """
    side.client.worker.thaw()
    side.door.leave()
    side.client.reply("enter", timeout_s=timeout_s)


def end(side: Side) -> None:
    """Kill a side's worker and give its door back."""
    side.client.close()
    side.door.close()
