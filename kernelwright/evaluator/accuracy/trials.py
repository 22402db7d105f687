"""A problem's shape variants, the trials that are drawn for them, and the expected outputs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernelwright.evaluator.accuracy import arrays, budget, distributions
from kernelwright.evaluator.wire import tensors as wire
from kernelwright.evaluator.wire.calls import CallPlan
from kernelwright.records import InputDomain, InputGenerator, KnobValue

_STRIDED_ROOM = 12  # an output may span this many times the bytes of its values
CANARY = 0xFF  # NaN in every float format
_FEW_NUMBERS = 16  # in outputs of fewer elements random changes would not average out
OWN = "own"  # the distribution of inputs from the problem's own get_inputs
ARCHIVED = "archived"  # the distribution of trials from an archive's generators
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
    outputs: tuple[wire.TensorSpec, ...]  # of a call, including gradients and written tensors
    plan: CallPlan
    slot_bytes: int
    written: tuple[wire.TensorSpec, ...]  # places of written inputs in a worker's own memory
    written_bytes: int  # of one slot; 0 if nothing is written
    state_bytes: int
    weights: tuple[np.ndarray, ...]  # drawn states, each state_bytes of uint8
    structure: str = ""  # how the outputs of forward are nested; empty if a call is more than forward

    def inputs_json(self) -> list[Any]:
        """The inputs' layout inside a slot."""
        return [
            {"tensor": wire.spec_to_json(i)} if isinstance(i, wire.TensorSpec) else {"value": i} for i in self.inputs
        ]

    def arguments_json(self) -> list[Any]:
        """The inputs' layout for a worker at the door. Written inputs lie in memory of their own."""
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
        """The tensors that a call takes, such as ``x float32[2048, 128]``."""
        return tuple(
            f"{name} {spec.dtype}{list(spec.shape)}"
            for name, spec in zip(self.names, self.inputs, strict=False)
            if isinstance(spec, wire.TensorSpec)
        )

    @property
    def main_dtype(self) -> str:
        """The dtype of the first float input, else of the first float output; empty if neither exists."""
        tensors = (spec for spec in (*self.inputs, *self.outputs) if isinstance(spec, wire.TensorSpec))
        return next((spec.dtype for spec in tensors if spec.dtype in wire.FLOATS), "")

    def capacity(self) -> list[int]:
        """Bytes that each output may span: room for a wider dtype, padded rows, and views of something larger."""
        return [max(2 * spec.span_bytes, _STRIDED_ROOM * spec.value_bytes) + 4096 for spec in self.outputs]


class TruthFacts(NamedTuple):
    """Numbers about a truth.

    median: of its scale. rms, largest: root mean square and largest absolute value of the finite elements of the exact
    output. finite: whether all of it, and of the reference's own output, is finite.
    """

    median: float
    rms: float
    largest: float
    finite: bool


class Truth(NamedTuple):
    """The expected value of one output of one trial.

    elsewhere: a ``device.asker.TruthThere`` where a device holds the truth of a float output; the arrays then have its
        shape and no values.
    """

    kind: str
    low: np.ndarray
    exact: np.ndarray
    scale: np.ndarray
    rule: tuple[np.ndarray, np.ndarray, int, bool] | None  # values, their scale, dimension, distinct
    elsewhere: Any = None


class Trial(NamedTuple):
    """One draw: its inputs as slot bytes, the weights that it was computed with, and the truths of its outputs.

    ``partner`` is the index of the trial that differs in one input, in bits that lower precision does not see.
    ``draws`` are the reference's own outputs of many calls, if they are random and only their distribution is judged.
    ``drawn_by`` describes the archive's generator that drew the inputs; empty for the fixed distributions.
    ``elsewhere`` is the memory of a device that holds the inputs. ``data`` is then empty.
    """

    distribution: str
    weights: int
    data: np.ndarray
    reductions: tuple[budget.Reduction, ...]
    truths: tuple[Truth, ...]
    partner: int | None = None
    draws: tuple[tuple[np.ndarray, ...], ...] = ()
    drawn_by: str = ""
    elsewhere: Any = None


class CheckSet(NamedTuple):
    """All variants with their trials. ``id`` names the set and reveals nothing about it.

    ``archived`` are trials, by variant, whose inputs the generators of the archive named ``archive`` drew. They are
    revealed last, in windows of their own, because timed slots look like the fixed distributions only.
    """

    id: str
    variants: tuple[Variant, ...]
    trials: tuple[tuple[Trial, ...], ...]  # by variant
    reserve: tuple[Trial, ...]  # of the first variant with the first weights: revealed only among timed calls
    flops: int  # of one call of the first variant
    steps: int  # computing operators of torch in such a call
    read: tuple[int, ...]  # positions of the first variant's float inputs that a right kernel must read whole
    archived: tuple[tuple[Trial, ...], ...] = ()
    archive: str = ""
    assumed: str = ""  # assumptions about inputs of undeclared domain, in words


class Admission(NamedTuple):
    """Whether a generator's draws are well defined. reasons: for each variant "", or why they are not."""

    generator: InputGenerator
    reasons: tuple[str, ...]

    @property
    def admitted(self) -> bool:
        """Whether at least one variant can use the generator."""
        return "" in self.reasons


def read_tensor(data: np.ndarray, spec: wire.TensorSpec) -> np.ndarray:
    """The tensor of ``spec`` out of slot or arena bytes, as a private dense array (bfloat16 as float32)."""
    raw = data[spec.offset : spec.offset + spec.span_bytes]
    return arrays.decode(raw.tobytes(), spec.dtype, spec.shape, spec.stride)


def write_tensor(data: np.ndarray, spec: wire.TensorSpec, values: np.ndarray) -> None:
    """Write ``values`` (dense, or flat over the span) into slot bytes."""
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
    """How rounding errors add up on inputs of a distribution. Archived inputs mostly have equal terms."""
    if distribution == OWN:
        return "own"
    if is_normal(distribution):
        return "normal"
    if distribution in distributions.FAR:
        return "far"
    return "equal" if distribution == ARCHIVED or distribution in distributions.EQUAL else "other"


def has_few_numbers(variant: Variant) -> bool:
    """Whether the float outputs have too few elements for errors to average out."""
    return 0 < sum(spec.elements for spec in variant.outputs if spec.dtype in wire.FLOATS) < _FEW_NUMBERS
