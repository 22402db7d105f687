"""Paired timing: candidate and baselines take turns over the same fresh inputs, one running, the others frozen.

Every turn reveals the same slots in the same order to every side. Before each turn, with all sides frozen, the slots to
be used are refilled from a private bank; after it, outputs that were read at secret calls are compared with those of
the eager reference on the same data. So a candidate cannot tell checks from timing, or idle once it was checked.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from kernelwright.evaluator import _budget as budget
from kernelwright.evaluator import _distributions as distributions
from kernelwright.evaluator import _wire as wire
from kernelwright.evaluator._client import Client
from kernelwright.evaluator._clock import Door, OutputClaim, Window
from kernelwright.evaluator._truth import CheckSet, Variant, compare_layout, write_tensor
from kernelwright.records import Status, TimingSample
from kernelwright.sandbox import SharedMemory

_READ_SHARE = 1 / 16  # secret probability with which a timed call's output is read
_LEAST_READS = 2
_MOST_CALLS = 1024
_LEAST_CALLS = 4
_MANY_CALLS = 100
_LONG_WINDOW_MS = 20.0
_SLOTS_PER_CALL = 4
_BANK_SLOTS = 3  # a bank is this many times as large as what one slot takes of it
_STRAY = 4.0  # a timed output may stray this many times the budget of a check: two low-precision outputs are compared


class Side(NamedTuple):
    """One live worker with its door; frozen whenever it is not its turn."""

    name: str
    client: Client
    door: Door

    def window(self, slots: np.ndarray, reads: np.ndarray, capacity: Sequence[int], *, call_timeout_s: float) -> Window:
        """Thaw, run one window, freeze again."""
        self.client.worker.thaw()
        try:
            return self.door.window(self.client, slots, reads, capacity, call_timeout_s=call_timeout_s)
        finally:
            if self.client.worker.alive():
                self.client.worker.freeze()


class Bank:
    """The referee's private store of values from which slots are refilled, made once for a session."""

    def __init__(self, variant: Variant, check_set: CheckSet) -> None:
        self._rng = distributions.secret_rng(secrets.randbits(128))
        self._structured = check_set.structured
        self._values: list[tuple[wire.TensorSpec, np.ndarray]] = []
        for spec, domain in zip(variant.inputs, variant.domains, strict=True):
            if isinstance(spec, wire.TensorSpec) and domain.fill != "structured" and spec.elements:
                size = max(_BANK_SLOTS * spec.elements, 1 << 16)
                self._values.append((spec, distributions.bank(size, domain, self._rng, spec.dtype)))

    def fill(self, slot: np.ndarray) -> None:
        """Fresh data into one slot: windows of the bank at random offsets, or another draw of structured inputs."""
        if self._structured:
            slot[:] = self._structured[int(self._rng.integers(len(self._structured)))]
        for spec, values in self._values:
            start = int(self._rng.integers(0, values.size - spec.elements + 1))
            write_tensor(slot, spec, values[start : start + spec.elements])


class Pool:
    """Shared input slots of one variant."""

    def __init__(self, variant: Variant, bank: Bank, slots: int) -> None:
        self.variant = variant
        self.slots = slots
        self.stride = variant.slot_bytes
        self.memory = SharedMemory.create(self.stride * slots, "pool")
        self._bytes = np.frombuffer(self.memory.view, dtype=np.uint8).reshape(slots, self.stride)
        self._bank = bank
        self.memory.seal()
        self.refill(np.arange(slots))

    def close(self) -> None:
        """Give the memory back."""
        self._bytes = np.zeros((0, self.stride), dtype=np.uint8)
        self.memory.close()

    def refill(self, slots: np.ndarray) -> None:
        """Fresh data into ``slots``."""
        for slot in slots:
            self._bank.fill(self._bytes[slot])


class Plan(NamedTuple):
    """How long a window is: ``calls`` a window over a pool of ``slots``."""

    calls: int
    slots: int


def plan(fastest_ms: float, slowest_ms: float, window_ms: float, slot_bytes: int, pool_bytes: int) -> Plan:
    """At least ``window_ms`` for the fastest side, 100 calls where the slowest allows, the pool within its bytes."""
    calls = max(
        math.ceil(window_ms / max(fastest_ms, 1e-6)),
        min(_MANY_CALLS, math.ceil(_LONG_WINDOW_MS / max(slowest_ms, 1e-6))),
        _LEAST_CALLS,
    )
    most_slots = max(pool_bytes // slot_bytes, 2 * _LEAST_CALLS)
    calls = min(calls, _MOST_CALLS, max(most_slots // 2, _LEAST_CALLS))
    return Plan(calls, min(_SLOTS_PER_CALL * calls, most_slots))


class Turn(NamedTuple):
    """One turn of all sides: mean latency in ms by side, and the first thing wrong with the candidate's outputs."""

    latency_ms: dict[str, float]
    samples: tuple[TimingSample, ...]
    wrong: tuple[Status, str] | None


class Turns:
    """Takes turns of ``sides`` over ``pool``. ``sides[0]`` is the candidate; ``eager`` is what it is compared with."""

    def __init__(
        self,
        sides: Sequence[Side],
        pool: Pool,
        plan: Plan,
        scales: Sequence[tuple[np.ndarray, int]],
        *,
        null_ms: float,
        call_timeout_s: float,
        tolerance_scale: float,
    ) -> None:
        self._sides = list(sides)
        self._pool = pool
        self._plan = plan
        self._scales = scales
        self._null_ms = null_ms
        self._call_timeout_s = call_timeout_s
        self._tolerance_scale = tolerance_scale
        self._rng = np.random.default_rng(secrets.randbits(128))

    def turn(self, pair: int, process: int, phase: Literal["search", "confirm", "control"]) -> Turn:
        """One turn.

        Raises:
            WorkerFailed: a side failed; its ``client`` tells which.
        """
        slots = self._rng.choice(self._pool.slots, size=self._plan.calls, replace=False)
        self._pool.refill(slots)
        count = max(_LEAST_READS, int(self._rng.binomial(self._plan.calls, _READ_SHARE)))
        reads = np.sort(self._rng.choice(self._plan.calls, size=min(count, self._plan.calls), replace=False))
        capacity = self._pool.variant.capacity()
        windows: dict[str, Window] = {}
        samples: list[TimingSample] = []
        latency: dict[str, float] = {}
        for position, i in enumerate(self._rng.permutation(len(self._sides))):
            side = self._sides[i]
            windows[side.name] = side.window(slots, reads, capacity, call_timeout_s=self._call_timeout_s)
            latency[side.name] = max(windows[side.name].mean_ms - self._null_ms, 1e-6)
            samples.append(
                TimingSample(
                    role=side.name,
                    process=process,
                    pair=pair,
                    order=position,
                    calls=self._plan.calls,
                    latency_ms=latency[side.name],
                    phase=phase,
                )
            )
        wrong = self._compare(windows[self._sides[0].name], windows["eager"]) if "eager" in windows else None
        return Turn(latency, tuple(samples), wrong)

    def _compare(self, ours: Window, theirs: Window) -> tuple[Status, str] | None:
        for call, claims in ours.outputs.items():
            for j, (claim, other, spec) in enumerate(
                zip(claims, theirs.outputs[call], self._pool.variant.outputs, strict=True)
            ):
                wrong = compare_layout(claim, spec, j, len(claims))
                if wrong is None and not self._agrees(claim, other, spec, j):
                    wrong = Status.INCORRECT_NUMERICAL, "a timed call's output differs from the reference's"
                if wrong is not None:
                    return wrong
        return None

    def _agrees(self, claim: OutputClaim, other: OutputClaim, spec: wire.TensorSpec, j: int) -> bool:
        try:
            ours = budget.decode(claim.data.tobytes(), spec.dtype, claim.shape, claim.stride)
            theirs = budget.decode(other.data.tobytes(), spec.dtype, other.shape, other.stride)
        except budget.DecodeError:
            return False
        scale, reduction = self._scales[j]
        if spec.dtype not in wire.FLOATS:
            return bool(np.mean(ours != theirs) <= 0.005) if ours.size else True
        with np.errstate(invalid="ignore"):
            difference = np.atleast_1d(np.abs(ours.astype(np.float64) - theirs.astype(np.float64)))
        difference[np.atleast_1d((ours == theirs) | (np.isnan(ours) & np.isnan(theirs)))] = 0.0
        allowed = _STRAY * budget.tolerance(reduction, self._tolerance_scale)
        norm = math.sqrt(float(np.sum(np.square(difference)))) if difference.size else 0.0
        limit = math.sqrt(float(np.sum(np.square(scale))))
        largest = float(np.max(difference)) if difference.size else 0.0
        return bool(norm <= allowed * limit and largest <= 40.0 * allowed * float(np.max(scale, initial=0.0)))


@contextlib.contextmanager
def pinned(cpu: int | None) -> Iterator[None]:
    """The referee's thread on one core while it spins."""
    before = os.sched_getaffinity(0)
    try:
        if cpu is not None:
            os.sched_setaffinity(0, {cpu})
        yield
    finally:
        os.sched_setaffinity(0, before)
