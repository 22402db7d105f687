"""A problem's shape variants, the trials that are drawn for them, and what their outputs must be."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernelwright.evaluator.accuracy import arrays, budget, distributions
from kernelwright.evaluator.wire import tensors as wire
from kernelwright.evaluator.wire.calls import CallPlan
from kernelwright.records import InputDomain, InputGenerator, KnobValue

_STRIDED_ROOM = 12  # an output may span this many times the bytes of its values
CANARY = 0xFF  # NaN in every float format
_FEW_NUMBERS = 16  # of outputs in which changes at random would cancel out
OWN = "own"  # the distribution of what the problem's get_inputs draws
ARCHIVED = "archived"  # the distribution of trials that an archive's generators drew
PROBES = {"normal": "probe", "uniform": "uniform probe"}  # names of the probe's trials, by their distribution
_NORMAL = frozenset({OWN, "normal", "probe"})  # judged without the wider tails of other distributions


class Variant(NamedTuple):
    """One shape variant of a problem as the oracle described it."""

    constants: dict[str, KnobValue]
    init: list[Any]  # constructor arguments, encoded
    inputs: tuple[wire.TensorSpec | Any, ...]  # a spec with its offset inside a slot, or an encoded plain value
    names: tuple[str, ...]
    domains: tuple[InputDomain, ...]
    state: tuple[wire.TensorSpec, ...]
    required: tuple[str, ...]  # names of the state that a candidate must have
    outputs: tuple[wire.TensorSpec, ...]  # of a call, so gradients and written tensors included
    plan: CallPlan
    slot_bytes: int
    written: tuple[wire.TensorSpec, ...]  # where inputs that are written lie in a worker's own memory
    written_bytes: int  # of one slot; 0 where nothing is written
    state_bytes: int
    weights: tuple[np.ndarray, ...]  # drawn states, each state_bytes of uint8
    structure: str = ""  # how the outputs of forward are nested; empty where a call is more than forward

    def inputs_json(self) -> list[Any]:
        """The inputs' layout inside a slot."""
        return [
            {"tensor": wire.spec_to_json(i)} if isinstance(i, wire.TensorSpec) else {"value": i} for i in self.inputs
        ]

    def arguments_json(self) -> list[Any]:
        """The same for a worker at the door, whose written inputs lie in a memory of their own."""
        found = self.inputs_json()
        for position, spec in zip(self.plan.written, self.written, strict=True):
            found[position] = {"written": wire.spec_to_json(spec)}
        return found

    @property
    def bytes_moved(self) -> int:
        """Bytes that one call must read and write at least once: inputs, weights and outputs."""
        inputs = sum(spec.value_bytes for spec in self.inputs if isinstance(spec, wire.TensorSpec))
        return inputs + sum(spec.value_bytes for spec in (*self.state, *self.outputs))

    def inputs_in_words(self) -> tuple[str, ...]:
        """What a call is given: ``x float32[2048, 128]``."""
        return tuple(
            f"{name} {spec.dtype}{list(spec.shape)}"
            for name, spec in zip(self.names, self.inputs, strict=False)
            if isinstance(spec, wire.TensorSpec)
        )

    @property
    def main_dtype(self) -> str:
        """The dtype of the first float input, or output where there is none; empty where nothing is float."""
        tensors = (spec for spec in (*self.inputs, *self.outputs) if isinstance(spec, wire.TensorSpec))
        return next((spec.dtype for spec in tensors if spec.dtype in wire.FLOATS), "")

    def capacity(self) -> list[int]:
        """Bytes that each output may span: room for a wider dtype, padded rows, and views of something larger."""
        return [max(2 * spec.span_bytes, _STRIDED_ROOM * spec.value_bytes) + 4096 for spec in self.outputs]


class Truth(NamedTuple):
    """What one output of one trial must be."""

    kind: str
    low: np.ndarray
    exact: np.ndarray
    scale: np.ndarray
    rule: tuple[np.ndarray, np.ndarray, int, bool] | None  # values, their scale, dimension, distinct


class Trial(NamedTuple):
    """One draw: its inputs as slot bytes, the weights that it was computed with, and the truths of its outputs.

    ``partner`` is the trial whose inputs differ in the bits of one input that lower precision does not see. ``draws``
    are the reference's own outputs of many calls, where those are random and only their distribution is judged.
    ``drawn_by`` says in words which generator of an archive drew the inputs; empty for the fixed distributions.
    """

    distribution: str
    weights: int
    data: np.ndarray
    reductions: tuple[budget.Reduction, ...]
    truths: tuple[Truth, ...]
    partner: int | None = None
    draws: tuple[tuple[np.ndarray, ...], ...] = ()
    drawn_by: str = ""


class CheckSet(NamedTuple):
    """All variants with their trials. ``id`` names it without giving anything away.

    ``archived`` are trials, by variant, whose inputs the generators of the archive named ``archive`` drew. They are
    revealed in windows of their own after the others: timed slots look like the fixed distributions, never like these.
    """

    id: str
    variants: tuple[Variant, ...]
    trials: tuple[tuple[Trial, ...], ...]  # by variant
    reserve: tuple[Trial, ...]  # of the first variant with the first weights: revealed only among timed calls
    flops: int  # of one call of the first variant
    steps: int  # in which torch does them: operators that compute something
    read: tuple[int, ...]  # positions of the first variant's float inputs that a right kernel must read whole
    archived: tuple[tuple[Trial, ...], ...] = ()
    archive: str = ""
    assumed: str = ""  # what was assumed of inputs whose domain is not declared, in words


class Admission(NamedTuple):
    """Whether a generator's draws are well defined, by variant: "" or why they are not."""

    generator: InputGenerator
    reasons: tuple[str, ...]

    @property
    def admitted(self) -> bool:
        """Whether some variant can use it."""
        return "" in self.reasons


def read_tensor(data: np.ndarray, spec: wire.TensorSpec) -> np.ndarray:
    """The tensor of ``spec`` out of slot or arena bytes, as a private dense array (bfloat16 as float32)."""
    raw = data[spec.offset : spec.offset + spec.span_bytes]
    return arrays.decode(raw.tobytes(), spec.dtype, spec.shape, spec.stride)


def write_tensor(data: np.ndarray, spec: wire.TensorSpec, values: np.ndarray) -> None:
    """Writes ``values`` (dense, or flat over the span) into slot bytes."""
    if values.size == spec.elements:
        raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        data[spec.offset : spec.offset + raw.size] = raw
        return
    view = np.lib.stride_tricks.as_strided(
        data[spec.offset : spec.offset + spec.span_bytes].view(values.dtype),
        spec.shape,
        [s * values.itemsize for s in spec.stride],
    )
    view[...] = values


def is_structured(variant: Variant) -> bool:
    """Whether some input can only be made by the problem's own ``get_inputs``."""
    return any(
        isinstance(s, wire.TensorSpec) and d.fill == "structured"
        for s, d in zip(variant.inputs, variant.domains, strict=True)
    )


def is_normal(distribution: str) -> bool:
    """Whether outputs on inputs of a distribution are judged without the wider tails."""
    return distribution in _NORMAL


def data_of(distribution: str) -> budget.Data:
    """How rounding errors add up on inputs of a distribution. What was searched for has mostly equal terms."""
    if is_normal(distribution):
        return "normal"
    if distribution in distributions.FAR:
        return "far"
    return "equal" if distribution == ARCHIVED or distribution in distributions.REPEATING else "other"


def has_few_numbers(variant: Variant) -> bool:
    """Whether the float outputs are so few numbers that nothing averages out over them."""
    return 0 < sum(spec.elements for spec in variant.outputs if spec.dtype in wire.FLOATS) < _FEW_NUMBERS
