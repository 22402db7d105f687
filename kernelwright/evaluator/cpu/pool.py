"""Input slots in shared memory, and the source of fresh data for them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from kernelwright.evaluator.accuracy import distributions
from kernelwright.evaluator.accuracy.quantiles import quantiles
from kernelwright.evaluator.accuracy.trials import CANARY, PROBES, Trial, Variant, write_tensor
from kernelwright.evaluator.cpu.fresh import FreshLibrary, Pieces
from kernelwright.evaluator.timing.slots import Draw
from kernelwright.evaluator.wire import tensors as wire
from kernelwright.records import InputDomain
from kernelwright.sandbox import SharedMemory

_SMALL_SLOT = 16 << 10  # bytes; in larger slots, looking at everything costs a worker more than it could gain
_OTHER_SHARE = 1 / 16  # of slots that come from other distributions than the plain one


class Source:
    """Draws the contents of slots, every time anew.

    Plain slots hold normal data (uniform where inputs are declared so), like the check's; one slot in sixteen holds
    another distribution that the check knows as well. Structured inputs are fresh draws of ``get_inputs``.
    """

    def __init__(self, variant: Variant, trials: Sequence[Trial], library: FreshLibrary, draw: Draw | None) -> None:
        """``draw`` gives (count, slot bytes) of fresh ``get_inputs``; None if no input is structured."""
        self._rng = distributions.secret_rng(secrets.randbits(128))
        self._library = library
        self._draw = draw
        self._free = [
            (spec, domain)
            for spec, domain in zip(variant.inputs, variant.domains, strict=True)
            if isinstance(spec, wire.TensorSpec) and domain.fill != "structured" and spec.elements
        ]
        known = {trial.distribution for trial in trials if trial.weights == 0}
        first = distributions.plain((spec.dtype, domain) for spec, domain in self._free)
        wanted = (first, "normal", "uniform")
        self._plain = next((name for name in wanted if name in known and self._free), "own")
        self._others = sorted(known - {self._plain, "own", *PROBES.values()}) if self._free else []
        self._tables = {
            name: [self._table(name, *free) for free in self._free] for name in (self._plain, *self._others)
        }

    def _table(self, name: str, spec: wire.TensorSpec, domain: InputDomain) -> np.ndarray | None:
        if spec.dtype != "float32":
            return None
        return quantiles(_admitted(name, spec, domain), domain)

    def fill(self, memory: np.ndarray, slots: np.ndarray) -> list[str]:
        """Put fresh data into ``slots`` of ``memory``, (slots, slot bytes) uint8. Return their distributions' names."""
        if self._draw is not None and len(slots):
            memory[slots] = self._draw(len(slots))
        names = [self._plain, *self._others]
        chosen = np.zeros(len(slots), dtype=np.int64)
        if self._others:
            others = self._rng.integers(1, len(names), len(slots))
            chosen = np.where(self._rng.random(len(slots)) < _OTHER_SHARE, others, 0)
        pieces = [piece for i in np.unique(chosen) for piece in self._pieces(memory, slots[chosen == i], names[i])]
        if pieces:
            self._library.fill(Pieces(*(np.concatenate(column) for column in zip(*pieces, strict=True))))
        return [names[i] for i in chosen]

    def _pieces(self, memory: np.ndarray, slots: np.ndarray, name: str) -> Iterator[Pieces]:
        """The parts of ``slots`` that the library fills with one distribution. Other parts are drawn here."""
        starts = np.uint64(memory.ctypes.data) + slots.astype(np.uint64) * np.uint64(memory.strides[0])
        for (spec, domain), table in zip(self._free, self._tables[name], strict=True):
            if table is not None:
                elements = np.full(len(slots), spec.span_bytes // 4)
                coded = distributions.has_probe_format(_admitted(name, spec, domain), domain)
                tables, probe = np.full(len(slots), table.ctypes.data), np.full(len(slots), coded)
                yield Pieces(starts + np.uint64(spec.offset), elements, tables, probe)
            else:
                for slot in slots:
                    write_tensor(memory[slot], spec, self._make(name, spec, domain))

    def _make(self, name: str, spec: wire.TensorSpec, domain: InputDomain) -> np.ndarray:
        shape = spec.shape if spec.contiguous else (spec.elements,)
        return distributions.make(_admitted(name, spec, domain), shape, spec.dtype, domain, self._rng)


def _admitted(name: str, spec: wire.TensorSpec, domain: InputDomain) -> str:
    """``name``, or the plainest distribution where the input does not admit it."""
    admitted = distributions.distributions_for(domain, spec.dtype)
    return name if name in admitted else admitted[0]


class Pool:
    """Shared input slots of one variant: written here only, read-only for every worker that maps them."""

    def __init__(self, variant: Variant, source: Source, slots: int) -> None:
        self.variant = variant
        self.slots = slots
        self.stride = variant.slot_bytes
        self.memory = SharedMemory.create(self.stride * slots, "pool")
        self._bytes = np.frombuffer(self.memory.view, dtype=np.uint8).reshape(slots, self.stride)
        self._bytes[:] = CANARY
        self._source = source
        self._labels = [""] * slots
        self._rng = np.random.default_rng(secrets.randbits(128))
        self.memory.seal()

    @property
    def size(self) -> int:
        """Bytes of all slots."""
        return self.memory.size

    def close(self) -> None:
        """Free the memory."""
        self._bytes = np.zeros((0, self.stride), dtype=np.uint8)
        self.memory.close()

    def refill(self, slots: Sequence[int] | np.ndarray) -> np.ndarray:
        """Put fresh data into ``slots``. Return the other slots that were changed as well, which no call uses.

        No worker that has mapped the pool may be running.
        """
        confused = self._confuse(slots)
        self._refill(slots)
        return confused

    def _confuse(self, used: Sequence[int] | np.ndarray) -> np.ndarray:
        """Change equally many unused slots. Otherwise the changes would tell a worker which calls are to come."""
        unused = np.setdiff1d(np.arange(self.slots), np.asarray(used), assume_unique=True)
        chosen = self._rng.permutation(unused)[: len(used)]
        if self.stride <= _SMALL_SLOT:
            self._refill(chosen)
        else:
            self._shift(chosen)
        return chosen

    def _shift(self, slots: np.ndarray) -> None:
        """Rotate the elements of every tensor in ``slots``, so that a look at a few places finds them changed.

        Structured inputs, which only the problem's own code can draw, move from slot to slot instead.
        """
        for spec, domain in zip(self.variant.inputs, self.variant.domains, strict=True):
            if isinstance(spec, wire.TensorSpec) and domain.fill == "structured":
                part = slice(spec.offset, spec.offset + spec.span_bytes)
                self._bytes[slots, part] = self._bytes[np.roll(slots, 1), part]
            elif isinstance(spec, wire.TensorSpec) and spec.elements > 1:
                first, item = spec.offset, wire.ITEM_BYTES[spec.dtype]
                before = np.empty(spec.span_bytes, dtype=np.uint8)
                for slot in slots:
                    places = item * int(self._rng.integers(1, spec.span_bytes // item))
                    tensor = self._bytes[slot, first : first + spec.span_bytes]
                    before[:] = tensor
                    tensor[:places] = before[-places:]
                    tensor[places:] = before[:-places]

    def _refill(self, slots: Sequence[int] | np.ndarray) -> None:
        chosen = np.asarray(slots, dtype=np.int64)
        for slot, label in zip(chosen, self._source.fill(self._bytes, chosen), strict=True):
            self._labels[slot] = label

    def rewrite(self, slots: np.ndarray) -> None:
        """Write the same data into ``slots`` again, so that it comes from the same caches as new data."""
        self._bytes[slots] = self._bytes[slots]

    def place(self, trials: Mapping[int, Trial]) -> None:
        """Put the data of trials into slots."""
        for slot, trial in trials.items():
            self._bytes[slot] = trial.data
            self._labels[slot] = trial.distribution

    def label(self, slot: int) -> str:
        """The distribution that a slot holds."""
        return self._labels[slot]

    def copy_written(self, memory: SharedMemory, slots: np.ndarray) -> None:
        """Copy those inputs in ``slots`` that the reference writes to, into a worker's own memory."""
        variant = self.variant
        own = np.frombuffer(memory.view, dtype=np.uint8).reshape(-1, variant.written_bytes)
        for position, spec in zip(variant.plan.written, variant.written, strict=True):
            source = variant.inputs[position]
            span = spec.span_bytes
            own[slots, spec.offset : spec.offset + span] = self._bytes[slots, source.offset : source.offset + span]
