"""Input slots on a device: plain data that only the keeper sees, drawn anew for every use as on the CPU.

Slots of a contestant hold the same data sealed, each under a key of its own that the reveal of its call carries. So a
worker cannot look at a call's inputs before the call begins, nor tell slots apart.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from kernelwright.evaluator.accuracy import distributions
from kernelwright.evaluator.accuracy.quantiles import quantiles
from kernelwright.evaluator.accuracy.trials import PROBES, Trial, Variant
from kernelwright.evaluator.device.keeper_client import Keeper, Memory
from kernelwright.evaluator.device.trials import DeviceTrials
from kernelwright.evaluator.timing.slots import Draw
from kernelwright.evaluator.wire import keeper as wire
from kernelwright.evaluator.wire import tensors
from kernelwright.records import InputDomain

__all__ = ["DevicePool", "DeviceSource", "Filling", "drawn"]

_OTHER_SHARE = 1 / 16  # of slots that come from other distributions than the plain one
_ONE = int(np.float32(1.0).view(np.uint32))
_ALIGNMENT = 16


class Filling(NamedTuple):
    """How the keeper draws one distribution of one input: a kind of filling with its bounds, or a table of quantiles.

    table: (4096,) bit patterns, or None. row: elements of a row. Fields as in ``wire.keeper.Piece``.
    """

    kind: wire.Fill
    table: np.ndarray | None = None
    row: int = 1
    low: int = 0
    high: int = 0
    ends: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)


def draw_of(name: str, spec: tensors.TensorSpec, domain: InputDomain) -> Filling | None:
    """How the keeper draws a distribution for a tensor; None if it cannot, so that the host must make it.

    Distributions of float32, and of integers and booleans, are drawn on the device. Others (float64, half precision,
    data with NaN, layouts with gaps) are rare and small.
    """
    if spec.dtype == "bool":
        return Filling(wire.Fill.EITHER, low=0, high=1)
    if spec.dtype in distributions.INTEGER_DTYPES:
        low, high = distributions.integer_bounds(spec.dtype, domain)
        kind = wire.Fill.EITHER if name == "binary" else wire.Fill.UNIFORM_INTEGERS
        return None if name == "constant_rows" else Filling(kind, low=low, high=high)
    if spec.dtype != "float32" or not (spec.contiguous or name in distributions.INDEPENDENT):
        return None
    row = spec.shape[-1] if spec.shape else 1
    if name == "binary":
        return Filling(wire.Fill.EITHER, low=0, high=_ONE)
    if name == "constant_rows":
        return Filling(wire.Fill.ROWS_OF_TABLE, _rows_of(domain), row=row)
    if name in distributions.FAR:
        along, cycle = (_row_of_ends(spec.shape), spec.elements) if name == "end_rows" else (1, row)
        return Filling(wire.Fill.ENDS, row=along, high=cycle, ends=distributions.ends_of(domain))
    table = quantiles(name, domain)
    if table is None:
        return None
    probe = distributions.has_probe_format(name, domain)
    return Filling(wire.Fill.PROBE_TABLE if probe else wire.Fill.TABLE, table)


def _row_of_ends(shape: Sequence[int]) -> int:
    """Elements of one index of the first dimension that is longer than 1; half of a vector."""
    leading = next((axis for axis, size in enumerate(shape[:-1]) if size > 1), None)
    return -(-shape[-1] // 2) if leading is None and shape else math.prod(shape[(leading or 0) + 1 :])


def _rows_of(domain: InputDomain) -> np.ndarray:
    """A table of numbers that rows repeat, in sixteenths where the domain has them."""
    rng = distributions.secret_rng(secrets.randbits(128))
    values = distributions.make("constant_rows", (wire.TABLE_ENTRIES, 1), "float32", domain, rng)
    return np.ascontiguousarray(values.ravel()).view(np.uint32)


def drawn(keeper: Keeper, name: str, spec: tensors.TensorSpec, domain: InputDomain) -> np.ndarray | None:
    """Numbers of a distribution for a tensor, drawn on the device and copied from there; None if it cannot."""
    filling = draw_of(name, spec, domain)
    if filling is None:
        return None
    dtype, held = np.dtype(spec.dtype), []
    try:
        memory, table = keeper.allocate(spec.elements * dtype.itemsize), None
        held.append(memory)
        if filling.table is not None:
            table = keeper.allocate(filling.table.nbytes)
            held.append(table)
            keeper.put(table, filling.table)
        keeper.fill([_piece(filling, spec, (memory, 0), table)])
        return np.frombuffer(keeper.get(memory, memory.size), dtype=dtype)
    finally:
        keeper.release(*held)


def _piece(filling: Filling, spec: tensors.TensorSpec, to: tuple[Memory, int], table: Memory | None) -> wire.Piece:
    """The request to fill a tensor at an offset of a memory. ``table``: where the keeper has the filling's."""
    bounds = filling.row, filling.low, filling.high, filling.ends
    drawn_from = 0 if table is None else table.number
    item, key = tensors.ITEM_BYTES[spec.dtype], secrets.randbits(64)
    return wire.Piece(to[0].number, to[1], spec.elements, drawn_from, 0, key, filling.kind, item, *bounds)


class DeviceSource:
    """Draws the contents of slots on the device, every time anew; see :class:`cpu.pool.Source` for what they hold."""

    def __init__(self, keeper: Keeper, variant: Variant, known: Sequence[str], draw: Draw | None = None) -> None:
        """``known``: distributions of the check's trials. ``draw``: of ``get_inputs``, if an input needs it."""
        self._keeper = keeper
        self._own = draw
        self._rng = distributions.secret_rng(secrets.randbits(128))
        self._free = [
            (spec, domain)
            for spec, domain in zip(variant.inputs, variant.domains, strict=True)
            if isinstance(spec, tensors.TensorSpec) and domain.fill != "structured" and spec.elements
        ]
        first = distributions.plain((spec.dtype, domain) for spec, domain in self._free)
        self._plain = next((name for name in (first, "normal", "uniform") if name in known and self._free), "own")
        self._others = sorted(set(known) - {self._plain, "own", *PROBES.values()}) if self._free else []
        self._tables: dict[int, Memory] = {}  # by the identity of a table, which is kept
        self._kept: list[np.ndarray] = []
        self._draws: dict[tuple[str, int], Filling | None] = {}

    def fill(self, memory: Memory, slots: Sequence[int], stride: int) -> list[str]:
        """Put fresh data into slots of ``memory``. Returns the names of their distributions."""
        chosen = [self._choose() for _ in slots]
        if self._own is not None and len(slots):
            for slot, drawn in zip(slots, self._own(len(slots)), strict=True):
                self._keeper.put(memory, drawn, slot * stride)
        pieces = []
        for slot, name in zip(slots, chosen, strict=True):
            for position, (spec, domain) in enumerate(self._free):
                at = slot * stride + spec.offset
                pieces += self._pieces(memory, at, name, position, spec, domain)
        self._keeper.fill(pieces)
        return chosen

    def put(self, memory: Memory, at: int, name: str, spec: tensors.TensorSpec, domain: InputDomain) -> None:
        """Fill one tensor, ``at`` bytes into memory, with one distribution."""
        position = next(i for i, (other, _) in enumerate(self._free) if other is spec)
        self._keeper.fill(self._pieces(memory, at, name, position, spec, domain))

    def close(self) -> None:
        """Free the tables."""
        for table in self._tables.values():
            self._keeper.release(table)
        self._tables.clear()
        self._kept.clear()

    def _choose(self) -> str:
        if not self._others or self._rng.random() >= _OTHER_SHARE:
            return self._plain
        return self._others[int(self._rng.integers(len(self._others)))]

    def _pieces(
        self, memory: Memory, at: int, name: str, position: int, spec: tensors.TensorSpec, domain: InputDomain
    ) -> list[wire.Piece]:
        """What the keeper is asked for; nothing where the host has made the data."""
        admitted = distributions.distributions_for(domain, spec.dtype)
        name = name if name in admitted else admitted[0]
        if (name, position) not in self._draws:
            self._draws[name, position] = draw_of(name, spec, domain)
        draw = self._draws[name, position]
        if draw is None:
            shape = spec.shape if spec.contiguous else (spec.elements,)
            self._keeper.put(memory, distributions.make(name, shape, spec.dtype, domain, self._rng), at)
            return []
        table = None if draw.table is None else self._table(draw.table)
        return [_piece(draw, spec, (memory, at), table)]

    def _table(self, table: np.ndarray) -> Memory:
        if id(table) not in self._tables:
            self._kept.append(table)
            self._tables[id(table)] = self._keeper.allocate(table.nbytes)
            self._keeper.put(self._tables[id(table)], table)
        return self._tables[id(table)]


class DevicePool:
    """Plain slots of one variant, which only the keeper sees.

    Attributes:
        memory: of all slots. stride: bytes of one slot.
    """

    def __init__(
        self, keeper: Keeper, variant: Variant, source: DeviceSource, slots: int, trials: DeviceTrials
    ) -> None:
        """``trials``: holds the inputs of trials."""
        self._keeper = keeper
        self._trials = trials
        self._source = source
        self.variant = variant
        self.slots = slots
        self.stride = -(-variant.slot_bytes // _ALIGNMENT) * _ALIGNMENT
        self.memory = keeper.allocate(self.stride * slots)
        self._labels = [""] * slots

    def close(self) -> None:
        """Free the slots."""
        self._keeper.release(self.memory)

    def refill(self, slots: Sequence[int] | np.ndarray) -> None:
        """Put fresh data into ``slots``."""
        chosen = [int(slot) for slot in slots]
        for slot, label in zip(chosen, self._source.fill(self.memory, chosen, self.stride), strict=True):
            self._labels[slot] = label

    @property
    def size(self) -> int:
        """Bytes of all slots."""
        return self.memory.size

    def place(self, trials: Mapping[int, Trial]) -> None:
        """Put the inputs of trials into slots."""
        for slot, trial in trials.items():
            self._keeper.copy((self._trials.inputs(trial), 0), self.at(slot), self.variant.slot_bytes)
            self._labels[slot] = trial.distribution

    def at(self, slot: int) -> tuple[Memory, int]:
        """Memory and offset of a slot."""
        return self.memory, slot * self.stride

    def label(self, slot: int) -> str:
        """The distribution that a slot holds."""
        return self._labels[slot]

    def seal(self, slots: Sequence[int] | np.ndarray, keys: Sequence[int] | np.ndarray, to: Memory) -> None:
        """Write slots, sealed with their keys, into a contestant's memory, one after another in the given order."""
        rows = [
            (*self.at(int(slot)), to, k * self.stride, int(key))
            for k, (slot, key) in enumerate(zip(slots, keys, strict=True))
        ]
        self._keeper.seal(rows, self.stride)
