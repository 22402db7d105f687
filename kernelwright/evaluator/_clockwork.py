"""Brings sides to where they can take turns: a fresh pool, first calls, a plan, everyone frozen at the door."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kernelwright.evaluator._client import WorkerFailed
from kernelwright.evaluator._timing import Bank, Pool, Side, Turns, pinned, plan
from kernelwright.evaluator._truth import CheckSet
from kernelwright.evaluator._workers import SETUP_TIMEOUT_S, Workers, call_back, end, map_slots

if TYPE_CHECKING:
    from kernelwright.evaluator._referee import Referee

_COMPILE_TIMEOUT_S = 180.0
_WARM_CALLS = 8


class Clockwork:
    """Hands out turns for one problem. ``unavailable`` names compile baselines that do not work on it, and why."""

    def __init__(self, referee: Referee, workers: Workers, tolerance_scale: float) -> None:
        self._referee = referee
        self._settings = referee.settings
        self._workers = workers
        self._tolerance_scale = tolerance_scale
        self._banks: dict[str, Bank] = {}
        self.unavailable: dict[str, str] = {}

    @contextlib.contextmanager
    def turns(self, sides: list[Side], check_set: CheckSet) -> Iterator[Turns]:
        """Turns of ``sides`` over a fresh pool. A compile baseline that fails its first call is taken out of ``sides``.

        Raises:
            WorkerFailed: another side failed; ``worker`` names it.
        """
        variant, settings = check_set.variants[0], self._settings
        bank = self._bank(check_set)
        pool = Pool(variant, bank, _WARM_CALLS)
        try:
            with pinned(self._referee.own_cpu):
                null_ms = self._referee.null_ms()
                means = self._first_calls(sides, pool)
                plan_ = plan(min(means), max(means), settings.window_ms, variant.slot_bytes, settings.pool_bytes)
                pool.close()
                pool = Pool(variant, bank, plan_.slots)
                for side in sides:
                    self._calls(side, pool)
                    side.client.worker.freeze()
                first = check_set.trials[0][0]
                yield Turns(
                    sides,
                    pool,
                    plan_,
                    [(truth.scale, first.reduction) for truth in first.truths],
                    null_ms=null_ms,
                    call_timeout_s=settings.call_timeout_s,
                    tolerance_scale=self._tolerance_scale,
                )
        finally:
            pool.close()
            self._release(sides)

    def _bank(self, check_set: CheckSet) -> Bank:
        if check_set.id not in self._banks:
            self._banks[check_set.id] = Bank(check_set.variants[0], check_set)
        return self._banks[check_set.id]

    def _first_calls(self, sides: list[Side], pool: Pool) -> list[float]:
        """First calls of all sides (torch.compile compiles now); mean latency in ms of each."""
        means = []
        for side in list(sides):
            try:
                means.append(self._calls(side, pool))
                call_back(side, timeout_s=self._settings.call_timeout_s)
            except WorkerFailed as failed:
                if not side.name.startswith("compile"):
                    raise
                self.unavailable[side.name] = failed.failure.message
                sides.remove(side)
                self._workers.drop(side.name)
                end(side)
        return means

    def _calls(self, side: Side, pool: Pool) -> float:
        """A few calls on the pool, ending inside the door; median latency in ms of the last half."""
        patience = _COMPILE_TIMEOUT_S if side.name.startswith("compile") else self._settings.call_timeout_s
        map_slots(side, pool.memory, pool.variant, pool.slots, timeout_s=SETUP_TIMEOUT_S)
        order = np.arange(_WARM_CALLS) % pool.slots
        window = side.door.window(side.client, order, [], pool.variant.capacity(), call_timeout_s=patience)
        return float(np.median(window.durations_ns[_WARM_CALLS // 2 :])) / 1e6

    def _release(self, sides: Sequence[Side]) -> None:
        """Call the twins back, so that they can serve again; one that does not come is ended."""
        for side in sides:
            if side.name == "candidate" or not side.client.worker.alive():
                continue
            try:
                call_back(side, timeout_s=self._settings.call_timeout_s)
            except WorkerFailed:
                side.client.close()
