"""Prepares sides for their turns: pools, first calls, a plan of windows, all sides frozen at the door."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kernelwright.evaluator.accuracy.redraws import Redraws
from kernelwright.evaluator.accuracy.trials import CheckSet, Variant, is_structured
from kernelwright.evaluator.host.seat import Seat
from kernelwright.evaluator.timing.drawer import Drawer
from kernelwright.evaluator.timing.slots import Draw, Slots
from kernelwright.evaluator.timing.turns import Comparison, Plan, ReadTimes, Turns, plan
from kernelwright.evaluator.timing.workers import Workers
from kernelwright.evaluator.wire.claims import WorkerFailed
from kernelwright.evaluator.wire.roles import is_compiled, is_foreign
from kernelwright.records import Problem

_COMPILE_TIMEOUT_S = 180.0
WARM_CALLS = 8
_UNTIMED_CALLS = 64  # most calls of a window on shapes that are checked and never timed
FLOOR_SHARE = 0.9  # of the time that reading the inputs takes: no correct kernel is faster


class Clockwork(ABC):
    """Hands out windows and turns for one problem.

    Attributes:
        unavailable: compile baselines that do not work on the problem, and why.
        remarks: how candidates were timed, by the rule of a finding.
    """

    def __init__(self, workers: Workers, problem: Problem) -> None:
        self._settings = workers.host.settings
        self._workers = workers
        self._problem = problem
        self._drawers: list[Drawer] = []
        self._pools: dict[tuple[str, int], Slots] = {}
        self._eager_ms: float | None = None
        self.unavailable: dict[str, str] = {}
        self.remarks: dict[str, str] = {}

    def close(self) -> None:
        """Free the pools and end their drawers."""
        pools, self._pools = self._pools, {}
        drawers, self._drawers = self._drawers, []
        for pool in pools.values():
            pool.close()
        for drawer in drawers:
            drawer.close()

    # ------------------------------------------------------------------------------------------ one worker alone

    def rehearse(self, side: Seat, check_set: CheckSet, index: int) -> tuple[Slots, Plan]:
        """Make a worker's first calls on the variant that it is set up for. It waits at the door afterwards, frozen.

        Returns:
            The pool that it has mapped, and how many calls its windows hold.

        Raises:
            WorkerFailed: the worker died, raised or hung.
        """
        variant = check_set.variants[index]
        pool = self._pool(check_set, index, WARM_CALLS)
        mean_ms = self._first_calls(side, pool)
        slowest_ms = max(mean_ms, self._eager_ms or 0.0) if index == 0 else mean_ms
        wanted = self._plan(mean_ms, slowest_ms, variant)
        if index:
            calls = min(wanted.calls, _UNTIMED_CALLS)
            wanted = Plan(calls, min(wanted.slots, 2 * calls))
        if wanted.slots > pool.slots:
            pool = self._pool(check_set, index, wanted.slots)
            self._change_pool(side, pool)
        return pool, wanted

    def untimed(self, side: Seat, check_set: CheckSet, index: int, calls: int) -> tuple[Slots, Plan]:
        """As :meth:`rehearse`, for a worker that is never timed and may be slow: no first calls, short windows."""
        pool = self._pool(check_set, index, 4 * calls)
        side.enter(pool)
        side.freeze()
        return pool, Plan(calls, pool.slots)

    def pool(self, check_set: CheckSet, index: int) -> Slots:
        """The pool of one variant in its current size, for a worker that does not come to the door."""
        return self._pool(check_set, index, 1)

    def pool_bytes(self, check_set: CheckSet) -> int:
        """Bytes that the inputs of timed calls range over: the size of the first variant's pool."""
        pool = self._pools.get((check_set.id, 0))
        return 0 if pool is None else pool.size

    @abstractmethod
    def floor_ms(self, check_set: CheckSet, *, anew: bool = False) -> float:
        """The least time in ms that a correct kernel can take on the timed shape; 0 if it is not known.

        Args:
            anew: measure it again, and take the lesser time: the machine may have been slow.
        """

    def compile_ahead(self, name: str, check_set: CheckSet) -> None:
        """Have the live twin of a compile baseline make its first call, so that it is ready when turns begin.

        A twin that fails is ended. It fails again when turns need it, and the reason is noted then.
        """
        side = self._workers.live_twin(name, check_set)
        try:
            self._first_calls(side, self._pool(check_set, 0, WARM_CALLS))
        except WorkerFailed:
            self._workers.drop(name)
        else:
            self._release([side])

    # ------------------------------------------------------------------------------------------ turns

    @contextlib.contextmanager
    def turns(self, sides: list[Seat], check_set: CheckSet, read_times: ReadTimes, redraws: Redraws) -> Iterator[Turns]:
        """Turns of ``sides``, the candidate first; ``read_times`` and ``redraws`` continue their counts.

        A compile baseline that fails its first call is taken out of ``sides``.

        Raises:
            WorkerFailed: another side failed; ``worker`` names it.
        """
        variant, settings = check_set.variants[0], self._settings
        try:
            null_ms, _ = self.empty_call_ms(check_set)
            pool = self._pool(check_set, 0, WARM_CALLS)
            means = self._all_first_calls(sides, pool)
            self._eager_ms = means.get("eager", self._eager_ms)
            plan_ = self._plan(min(means.values()), max(means.values()), variant)
            if plan_.slots > pool.slots:
                pool = self._pool(check_set, 0, plan_.slots)
                for side in sides:
                    self._change_pool(side, pool)
            redraws.fresh_process()
            yield self._turns_of(
                sides,
                pool,
                plan_,
                self._comparison(check_set, redraws if self._problem.meta.randomness == "distribution" else None),
                read_times,
                reserve=check_set.reserve,
                probing=not (self._problem.meta.tolerance.reduced_precision or settings.allow_precision),
                null_ms=null_ms,
                call_timeout_s=settings.call_timeout_s,
            )
        finally:
            self._release(sides)

    @abstractmethod
    def empty_call_ms(self, check_set: CheckSet) -> tuple[float, float]:
        """What a call that computes nothing takes on the timed shape: mean and upper limit in ms.

        Raises:
            MachineError: it cannot be measured.
        """

    def _comparison(self, check_set: CheckSet, redraws: Redraws | None) -> Comparison:
        """Compares outputs of timed calls; ``redraws`` if they are random."""
        scale = self._problem.meta.tolerance.scale
        return Comparison(check_set.variants[0].outputs, check_set.trials[0], scale, redraws=redraws)

    def _turns_of(self, *given: Any, **named: Any) -> Turns:
        return Turns(*given, **named)

    def _plan(self, fastest_ms: float, slowest_ms: float, variant: Variant) -> Plan:
        """The plan of windows."""
        slot_bytes, pool_bytes = self._room(variant)
        return plan(fastest_ms, slowest_ms, self._settings.measurement.window_ms, slot_bytes, pool_bytes)

    def _room(self, variant: Variant) -> tuple[int, int]:
        """Bytes of one slot, and the most bytes of all slots together."""
        return variant.slot_bytes, self._settings.measurement.pool_bytes

    def _pool(self, check_set: CheckSet, index: int, slots: int) -> Slots:
        """The pool of a variant with at least ``slots`` slots; it is kept, and replaced if it must grow."""
        key = check_set.id, index
        pool = self._pools.get(key)
        if pool is None or pool.slots < slots:
            if pool is not None:
                pool.close()
            pool = self._pools[key] = self._make_pool(check_set, index, slots)
        return pool

    @abstractmethod
    def _make_pool(self, check_set: CheckSet, index: int, slots: int) -> Slots:
        """A new pool of a variant."""

    def _draw(self, variant: Variant) -> Draw | None:
        """Fresh draws of ``get_inputs``, if an input can only be made so."""
        if not is_structured(variant):
            return None
        drawer = Drawer(self._workers.oracle(), variant)
        self._drawers.append(drawer)
        return drawer.draw

    def _all_first_calls(self, sides: list[Seat], pool: Slots) -> dict[str, float]:
        """First calls of all sides (torch.compile compiles now); mean latency in ms of each."""
        means = {}
        for side in list(sides):
            try:
                means[side.name] = self._first_calls(side, pool)
            except WorkerFailed as failed:
                if not is_compiled(side.name):
                    raise
                self.unavailable[side.name] = failed.failure.message
                sides.remove(side)
                self._workers.drop(side.name)
                side.end()
        return means

    def _first_calls(self, side: Seat, pool: Slots) -> float:
        """A few calls on the pool; the worker stays at the door, frozen. Median latency in ms of the last half."""
        patience = _COMPILE_TIMEOUT_S if is_compiled(side.name) else self._settings.call_timeout_s
        pool.refill(range(min(WARM_CALLS, pool.slots)))
        side.enter(pool)
        window = side.window(np.arange(WARM_CALLS) % pool.slots, [], call_timeout_s=patience)
        return float(np.median(window.durations_ns[WARM_CALLS // 2 :])) / 1e6

    def _change_pool(self, side: Seat, pool: Slots) -> None:
        side.leave(timeout_s=self._settings.call_timeout_s)
        self._first_calls(side, pool)

    def _release(self, sides: Sequence[Seat]) -> None:
        """Call the twins back, so that they can serve again. A twin that does not come is ended."""
        for side in sides:
            if is_foreign(side.name) or not side.client.worker.alive():
                continue
            try:
                side.leave(timeout_s=self._settings.call_timeout_s)
            except WorkerFailed:
                side.end()
