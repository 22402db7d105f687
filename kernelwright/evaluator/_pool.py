"""Input slots in shared memory, and the private bank that fresh data for them comes from."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

import numpy as np

from kernelwright.evaluator import _distributions as distributions
from kernelwright.evaluator import _wire as wire
from kernelwright.evaluator._truth import CANARY, Trial, Variant, write_tensor
from kernelwright.records import InputDomain
from kernelwright.sandbox import SharedMemory

_OTHER_SHARE = 1 / 16  # of slots that come from other distributions than the plain one
_PLAIN_FACTOR = 3  # the plain bank is this many times as large as what one slot takes of it
_OTHER_FACTOR = 1.25
_OTHER_BYTES = 512 << 20  # what the banks of other distributions may take together
_LEAST_BANK = 1 << 16


class Bank:
    """The referee's store of values from which slots are refilled; ``fill`` says which distribution it took.

    Plain slots hold normal (or uniform) data in the probe's format, like the check's; structured inputs are one of
    many draws of ``get_inputs``. One slot in sixteen holds another distribution that the check knows as well.
    """

    def __init__(self, variant: Variant, trials: Sequence[Trial], structured: Sequence[np.ndarray]) -> None:
        self._rng = distributions.secret_rng(secrets.randbits(128))
        self._structured = structured
        self._free = [
            (spec, domain)
            for spec, domain in zip(variant.inputs, variant.domains, strict=True)
            if isinstance(spec, wire.TensorSpec) and domain.fill != "structured" and spec.elements
        ]
        known = {trial.distribution for trial in trials if trial.weights == 0}
        uniform = any(domain.fill == "uniform" for _, domain in self._free)
        wanted = ("uniform", "normal") if uniform else ("normal", "uniform")
        self._plain = next((name for name in wanted if name in known and self._free), "own")
        self._banks: dict[str, list[np.ndarray]] = {
            self._plain: [
                distributions.bank(max(_PLAIN_FACTOR * spec.elements, _LEAST_BANK), domain, self._rng, spec.dtype)
                for spec, domain in self._free
            ]
        }
        self._others = self._make_others(known - {self._plain, "own", "probe"})

    def _make_others(self, names: set[str]) -> list[str]:
        total = sum(spec.span_bytes for spec, _ in self._free) * _OTHER_FACTOR
        affordable = sorted(names)[: int(_OTHER_BYTES // max(total, 1))]
        for name in affordable:
            self._banks[name] = [self._rows(name, spec, domain) for spec, domain in self._free]
        return affordable

    def _rows(self, name: str, spec: wire.TensorSpec, domain: InputDomain) -> np.ndarray:
        """A flat bank made of whole rows, since a distribution may be about rows."""
        admitted = distributions.distributions_for(domain, spec.dtype)
        row = _row(spec)
        rows = max(int(_OTHER_FACTOR * spec.elements) // row + 1, 2)
        chosen = name if name in admitted else admitted[0]
        return distributions.make(chosen, (rows, row), spec.dtype, domain, self._rng).reshape(-1)

    def fill(self, slot: np.ndarray) -> str:
        """Fresh data into one slot (uint8); the name of its distribution."""
        name = self._plain
        if self._others and self._rng.random() < _OTHER_SHARE:
            name = self._others[int(self._rng.integers(len(self._others)))]
        if self._structured:
            slot[:] = self._structured[int(self._rng.integers(len(self._structured)))]
        for (spec, _), values in zip(self._free, self._banks[name], strict=True):
            row = 1 if name == self._plain else _row(spec)
            start = row * int(self._rng.integers(0, (values.size - spec.elements) // row + 1))
            write_tensor(slot, spec, values[start : start + spec.elements])
        return name


def _row(spec: wire.TensorSpec) -> int:
    return spec.shape[-1] if spec.shape and spec.contiguous else spec.elements


class Pool:
    """Shared input slots of one variant: written here only, read-only for every worker that maps them."""

    def __init__(self, variant: Variant, bank: Bank, slots: int) -> None:
        self.variant = variant
        self.slots = slots
        self.stride = variant.slot_bytes
        self.memory = SharedMemory.create(self.stride * slots, "pool")
        self._bytes = np.frombuffer(self.memory.view, dtype=np.uint8).reshape(slots, self.stride)
        self._bytes[:] = CANARY
        self._bank = bank
        self._labels = [""] * slots
        self.memory.seal()
        self.refill(range(slots))

    def close(self) -> None:
        """Give the memory back."""
        self._bytes = np.zeros((0, self.stride), dtype=np.uint8)
        self.memory.close()

    def refill(self, slots: Sequence[int] | np.ndarray | range) -> None:
        """Fresh data into ``slots``. Nobody who has mapped the pool may be running."""
        for slot in slots:
            self._labels[slot] = self._bank.fill(self._bytes[slot])

    def place(self, trials: Mapping[int, Trial]) -> None:
        """The data of trials into slots."""
        for slot, trial in trials.items():
            self._bytes[slot] = trial.data
            self._labels[slot] = trial.distribution

    def label(self, slot: int) -> str:
        """The distribution that a slot holds."""
        return self._labels[slot]

    def copy_written(self, memory: SharedMemory, slots: np.ndarray) -> None:
        """Copy the inputs that a reference writes from ``slots`` into a worker's own memory."""
        variant = self.variant
        own = np.frombuffer(memory.view, dtype=np.uint8).reshape(-1, variant.written_bytes)
        for position, spec in zip(variant.plan.written, variant.written, strict=True):
            source = variant.inputs[position]
            span = spec.span_bytes
            own[slots, spec.offset : spec.offset + span] = self._bytes[slots, source.offset : source.offset + span]
