"""Finds smaller sizes for a problem, worker side: halves numbers until memory and work fit. Nothing is computed.

Only shapes are propagated, on torch's ``meta`` device. Runs in a sandbox only. JSON in, JSON out; no pydantic.
"""

from __future__ import annotations

import itertools
import sys
import time
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from kernelwright.datasets.runtime import (
    ReferenceFault,
    load_reference,
    make_init_inputs,
    make_inputs,
    make_model,
    settle_device,
)

_LEAST = 16  # smaller numbers are not halved: with a width of 1 the problem would be another one
_LEAST_BATCH = 2  # the same limit for batch sizes
_GAIN = 0.99  # a halving must reduce the excess to this share of it, as long as others may help more
_RESULT_SHARE = 4  # largest intermediate result, as a multiple of the limit on inputs, parameters and outputs

_RANGES = (torch.linspace, torch.arange, torch.logspace)
_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)

Values = dict[str, int]


class _Load(NamedTuple):
    """The cost of one call: bytes of inputs, state and outputs, bytes of the largest result, and operations.

    ``names`` are those of parameters and buffers.
    """

    held: int
    result: int
    flops: int
    names: frozenset[str]


class _Step(NamedTuple):
    values: Values
    excess: float


def fit(payload: dict[str, Any]) -> dict[str, Any]:
    """Find sizes in which a problem fits.

    Args:
        payload: ``source``; ``places``: by name, the spans of its values in the text, in characters; ``values``: by
            name, the current value; ``tiers``: lists of names to try, a later list only when the earlier ones are
            small; ``variants``: settings of constants, all of which must fit; ``bytes``: limit on inputs, parameters
            and outputs together; ``flops``: limit on one forward; ``seconds``: time limit of the search; ``tile``:
            optional, sizes that are halved to less only if the problem would otherwise be ``slack`` times too large;
            ``alike``: optional, whether the names of parameters and which numbers differ change only then, too.

    Returns:
        ``sizes``: the changed values, empty if none. ``fits``: whether the problem fits with them. ``reason``: why the
        problem cannot be analysed, or that the time was too short; empty otherwise.
    """
    search = _Search(payload)
    try:
        now = _Step(search.given, search.excess(search.given))
    except ReferenceFault as fault:
        return {"sizes": {}, "fits": False, "reason": fault.message[:500]}
    tiers = list(itertools.accumulate(payload["tiers"]))
    rounds = [(names, gain) for gain in (_GAIN, 1.0) for names in tiers]
    tile = payload.get("tile", 1)
    whole_tiles = [(2 * tile, payload["slack"])] if 2 * tile > _LEAST else []
    ways = [True, False] if payload.get("alike") else [False]
    fits = False
    for (least, enough), search.alike in itertools.product((*whole_tiles, (_LEAST, 1.0)), ways):
        for names, gain in rounds:
            while now.excess > 1 and (step := search.step(names, now, gain, least)) is not None:
                now = step
        fits = now.excess <= enough
        if fits:
            break
    changed = {name: value for name, value in now.values.items() if value != search.given[name]}
    late = f"no sizes that fit were found in {payload['seconds']:g} s"
    return {"sizes": changed, "fits": fits, "reason": late if not fits and search.is_late() else ""}


class _Search:
    """The search over numbers of one file.

    Attributes:
        given: the file's numbers.
        alike: whether steps are left out after which parameters have other names or numbers that differed are equal.
    """

    def __init__(self, payload: Mapping[str, Any]) -> None:
        self.given: Values = {name: int(value) for name, value in payload["values"].items()}
        self.alike = False
        self._names: frozenset[str] = frozenset()  # of the parameters in the given sizes
        self._payload = payload
        self._until = time.monotonic() + float(payload["seconds"])

    def is_late(self) -> bool:
        """Whether the time limit has passed."""
        return time.monotonic() > self._until

    def step(self, names: Sequence[str], now: _Step, gain: float, least: int) -> _Step | None:
        """Halve the largest number that helps and still runs, so that sizes stay in proportion. Among equal numbers,
        halve the one that helps most. If none helps alone, try all equal numbers together, then pairs. Numbers below
        ``least`` are not halved."""
        values = {
            name: now.values[name]
            for name in names
            if now.values[name] >= (_LEAST_BATCH if "batch" in name.lower() else least)
        }
        enough = now.excess * gain
        for value in sorted(set(values.values()), reverse=True):
            equal = [name for name, held in values.items() if held == value]
            moves = [(name,) for name in equal]
            together = [tuple(equal)] if len(equal) > 1 else []
            found = self._best(moves, now, enough) or self._best(together, now, enough)
            if found is not None:
                return found
        largest = sorted(values, key=lambda name: -values[name])
        for pair in itertools.combinations(largest, 2):
            if (found := self._best([pair], now, enough)) is not None:
                return found
        return None

    def _best(self, moves: Sequence[tuple[str, ...]], now: _Step, enough: float) -> _Step | None:
        found = []
        for move in moves:
            if self.is_late():
                break
            halved = {**now.values, **{name: now.values[name] // 2 for name in move}}
            if self.alike and self._joins(now.values, halved):
                continue
            try:
                excess = self.excess(halved)
            except ReferenceFault:
                continue
            if excess < enough:
                found.append(_Step(halved, excess))
        return min(found, key=lambda step: step.excess, default=None)

    def _joins(self, before: Values, after: Values) -> bool:
        """Whether a step makes numbers equal that differed, and that differ in the file."""
        return any(
            after[a] == after[b] and before[a] != before[b] and self.given[a] != self.given[b]
            for a, b in itertools.combinations(after, 2)
        )

    def excess(self, values: Values) -> float:
        """The memory or work of the worst variant as a multiple of its limit, whichever is larger.

        Raises:
            ReferenceFault: the problem does not run in these sizes, or not with the same parameters.
        """
        sizes = {name: value for name, value in values.items() if value != self.given[name]}
        source = _text(self._payload, sizes)
        most = int(self._payload["bytes"])
        worst = 0.0
        for variant in self._payload["variants"] or [{}]:
            load = _load(source, {name: sizes.get(name, value) for name, value in variant.items()})
            self._names = self._names or load.names
            if self.alike and load.names != self._names:
                raise ReferenceFault("Model", None, "the parameters have other names in these sizes")
            flops = load.flops / int(self._payload["flops"])
            worst = max(worst, load.held / most, load.result / (_RESULT_SHARE * most), flops)
        return worst


def _load(source: str, variant: Mapping[str, Any]) -> _Load:
    """The cost of one call.

    Raises:
        ReferenceFault: the problem does not run in these sizes.
    """
    module = load_reference(source, variant)
    try:
        with torch.device("meta"), torch.no_grad():
            model = _model(module, make_init_inputs(module))
            inputs = make_inputs(module)
            settle_device(model, inputs)
            with (
                _RecurrentLayers() as recurrent,
                FlopCounterMode(display=False) as counter,
                _LargestResult() as largest,
            ):
                try:
                    outputs = model(*inputs)
                except Exception as error:
                    raise ReferenceFault("forward", None, f"{type(error).__name__}: {error}") from error
    finally:
        sys.modules.pop(module.__name__, None)
    held = [*inputs, *model.parameters(), *model.buffers(), *_tensors(outputs)]
    tensors = {id(value): value for value in held if isinstance(value, torch.Tensor)}
    elements = sum(value.numel() for value in tensors.values())
    flops = counter.get_total_flops() + recurrent.flops + elements
    names = frozenset(model.state_dict())
    return _Load(sum(value.nbytes for value in tensors.values()), largest.bytes, flops, names)


class _LargestResult(TorchDispatchMode):  # type: ignore[misc]
    """Records the size in bytes of the largest result of an operator, including results that are freed again."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], _: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            held = tensor.untyped_storage().nbytes() if tensor.layout is torch.strided else tensor.numel()
            self.bytes = max(self.bytes, held)
        return result


def _model(module: types.ModuleType, init_inputs: Sequence[Any]) -> torch.nn.Module:
    """Build the model on the ``meta`` device. If that fails, build it again with ranges that hold real numbers."""
    try:
        return make_model(module, init_inputs)
    except ReferenceFault:
        with _RealRanges():
            return make_model(module, init_inputs).to("meta")


class _RealRanges(TorchFunctionMode):  # type: ignore[misc]
    """Makes ranges on the CPU: constructors read rates from them, as in ``[x.item() for x in torch.linspace(...)]``."""

    def __torch_function__(
        self, func: Callable[..., Any], _: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if func in _RANGES:
            named.setdefault("device", "cpu")
        return func(*args, **named)


class _RecurrentLayers(TorchFunctionMode):  # type: ignore[misc]
    """Counts the operations of a recurrent layer from its weights, for all steps at once; one by one takes minutes.

    The steps of packed sequences still run one by one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_function__(
        self, func: Callable[..., Any], _: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func not in _RECURRENT or len(args) < 9 or not isinstance(args[2], list):
            return func(*args, **(kwargs or {}))
        inputs, state, weights = args[:3]
        states = tuple(state) if func is _RECURRENT[0] else (state,)
        directions = 2 if args[7] else 1
        steps = inputs.numel() // inputs.shape[-1]
        self.flops += 2 * steps * sum(weight.numel() for weight in weights if weight.dim() == 2)
        output = inputs.new_empty((*inputs.shape[:-1], directions * states[0].shape[-1]))
        return (output, *(torch.empty_like(one) for one in states))


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = value.values()
    return [tensor for item in value for tensor in _tensors(item)] if isinstance(value, Iterable) else []


def _text(payload: Mapping[str, Any], sizes: Values) -> str:
    """The text of the file with changed values of some names."""
    source: str = payload["source"]
    spans = [(start, end, name) for name in sizes for start, end in payload["places"][name]]
    for start, end, name in sorted(spans, reverse=True):
        source = source[:start] + str(sizes[name]) + source[end:]
    return source
