"""Smaller sizes for a problem, worker side: constants are halved until memory and work fit. Nothing is computed.

Shapes alone are followed, on torch's ``meta`` device. Runs in a sandbox only. JSON in, JSON out; no pydantic.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from kernelwright.datasets._runtime import (
    ReferenceFault,
    load_reference,
    make_init_inputs,
    make_inputs,
    make_model,
    settle_device,
)

_STEPS = 64
_LEAST = 16  # below which nothing is halved: a width of 1 is another problem
_LEAST_BATCH = 2  # the same for how many there are of the same

_RANGES = (torch.linspace, torch.arange, torch.logspace)
_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)

Values = dict[str, int]


def fit(payload: dict[str, Any]) -> dict[str, Any]:
    """Find sizes in which a problem fits.

    Args:
        payload: ``source``; ``places``: by constant the spans of its value in the text, in characters; ``values``: what
            each is now; ``bytes``: most of inputs, parameters and outputs together; ``flops``: most of a forward.

    Returns:
        ``sizes``: what has to be changed, empty where it fits as it is. ``fits``: whether it does then. ``bytes`` and
        ``flops``: of that. ``reason``: why the problem cannot be followed at all; empty where it can.
    """
    values: Values = {name: int(value) for name, value in payload["values"].items()}
    given = dict(values)
    try:
        now = _load(payload, values)
    except ReferenceFault as fault:
        return {"sizes": {}, "fits": False, "bytes": 0, "flops": 0, "reason": fault.message[:500]}
    for _ in range(_STEPS):
        if _excess(now, payload) <= 1:
            break
        step = _next(payload, values, _excess(now, payload))
        if step is None:
            break
        values, now = step
    changed = {name: value for name, value in values.items() if value != given[name]}
    fits = _excess(now, payload) <= 1
    return {"sizes": changed, "fits": fits, "bytes": now[0], "flops": now[1], "reason": ""}


def _next(payload: Mapping[str, Any], values: Values, excess: float) -> tuple[Values, tuple[int, int]] | None:
    """The problem with one constant halved: the largest one that helps and with which it still runs, so that the sizes
    stay in proportion; of equal ones that which helps most."""
    found = []
    for name, value in values.items():
        if value < (_LEAST_BATCH if "batch" in name.lower() else _LEAST):
            continue
        halved = {**values, name: value // 2}
        try:
            load = _load(payload, halved)
        except ReferenceFault:
            continue
        if _excess(load, payload) < excess:
            found.append((value, -_excess(load, payload), name, halved, load))
    if not found:
        return None
    _, _, _, halved, load = max(found, key=lambda one: one[:2])
    return halved, load


def _excess(load: tuple[int, int], payload: Mapping[str, Any]) -> float:
    """How many times as much as there is room for it takes: of memory or of work, whichever is the worse."""
    return max(load[0] / int(payload["bytes"]), load[1] / int(payload["flops"]))


def _load(payload: Mapping[str, Any], values: Values) -> tuple[int, int]:
    """Bytes of all tensors of one call that stay, and its floating-point operations.

    Raises:
        ReferenceFault: it does not run in these sizes.
    """
    module = load_reference(_text(payload, values), {})
    with torch.device("meta"), torch.no_grad():
        model = _model(module, make_init_inputs(module))
        inputs = make_inputs(module)
        settle_device(model, inputs)
        with _RecurrentLayers() as recurrent, FlopCounterMode(display=False) as counter:
            try:
                outputs = model(*inputs)
            except Exception as error:
                raise ReferenceFault("forward", None, f"{type(error).__name__}: {error}") from error
    held = [*inputs, *model.parameters(), *model.buffers(), *_tensors(outputs)]
    tensors = {id(value): value for value in held if isinstance(value, torch.Tensor)}
    elements = sum(value.numel() for value in tensors.values())
    flops = counter.get_total_flops() + recurrent.flops + elements
    return sum(value.nbytes for value in tensors.values()), flops


def _model(module: types.ModuleType, init_inputs: Sequence[Any]) -> torch.nn.Module:
    """The model, on the ``meta`` device. If that fails, it is built once more with ranges that hold their numbers."""
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
    """Counts the products of a recurrent layer by its weights, for all steps at once: step by step takes minutes.

    The steps of packed sequences are still followed one by one.
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


def _text(payload: Mapping[str, Any], values: Values) -> str:
    source: str = payload["source"]
    spans = [(start, end, name) for name, places in payload["places"].items() for start, end in places]
    for start, end, name in sorted(spans, reverse=True):
        source = source[:start] + str(values[name]) + source[end:]
    return source
