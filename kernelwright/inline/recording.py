"""Records the calls that a candidate makes of its C functions, as plain JSON, so that they can be replayed elsewhere.

A recording holds sizes, types and numbers, and which arguments share memory; it holds no data.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from kernelwright.inline._declarations import Parameter
from kernelwright.inline._library import ObservedCall, call_observers
from kernelwright.inline.requests import BuildRequest

__all__ = ["MAX_RECORDED_CALLS", "ArgumentSpan", "record_calls", "tell_of_calls"]

MAX_RECORDED_CALLS = 64
_LINE_BYTES = 64  # a cache line: a buffer starts at a multiple of it
_MAX_VALUE_BYTES = 4096
_UNTYPED_TYPES: dict[type, str] = {int: "int64", bool: "int64", float: "float"}  # of a call without a declaration
_CTYPES: dict[Any, str] = {ctypes.c_float: "float", ctypes.c_double: "double", ctypes.c_bool: "bool"}
for _signed, _unsigned in (("c_int", "c_uint"), ("c_long", "c_ulong"), ("c_longlong", "c_ulonglong")):
    _CTYPES |= {getattr(ctypes, _signed): f"int{8 * ctypes.sizeof(getattr(ctypes, _signed))}"}
    _CTYPES |= {getattr(ctypes, _unsigned): f"uint{8 * ctypes.sizeof(getattr(ctypes, _unsigned))}"}
_CTYPES |= {ctypes.c_int8: "int8", ctypes.c_uint8: "uint8", ctypes.c_int16: "int16", ctypes.c_uint16: "uint16"}


class ArgumentSpan(NamedTuple):
    """Memory that an argument of a C function points to: ``name`` is the parameter's, ``dtype`` the tensor's."""

    name: str
    start: int
    bytes: int
    dtype: str
    item_bytes: int


@contextlib.contextmanager
def tell_of_calls(tell: Callable[[list[ArgumentSpan]], None]) -> Iterator[None]:
    """While active, ``tell`` is called before every call of a library's function, with the memory of its arguments."""

    def observe(call: ObservedCall) -> None:
        tell(_argument_spans(call))

    call_observers.append(observe)
    try:
        yield
    finally:
        call_observers.remove(observe)


def _argument_spans(call: ObservedCall) -> list[ArgumentSpan]:
    import torch

    found = []
    parameters: Sequence[Parameter | None] = call.signature.parameters if call.signature else [None] * len(call.values)
    for position, (parameter, value) in enumerate(zip(parameters, call.values, strict=False)):
        address = value.data_ptr() if isinstance(value, torch.Tensor) else value
        address = address.value if isinstance(address, ctypes.c_void_p) else address
        tensor = value if isinstance(value, torch.Tensor) else None
        if tensor is None and parameter is not None and parameter.pointer and type(address) is int and address:
            tensor = _owner(address)
        if tensor is not None and type(address) is int:
            name = parameter.name if parameter is not None else f"#{position}"
            dtype = str(tensor.dtype).removeprefix("torch.")
            found.append(ArgumentSpan(name, address, _bytes_from(address, tensor), dtype, tensor.element_size()))
    return found


class _Span(NamedTuple):
    """Memory that an argument points to; ``note`` is the argument's part of the recording."""

    start: int
    bytes: int
    note: dict[str, Any]


@contextlib.contextmanager
def record_calls() -> Iterator[list[dict[str, Any]]]:
    """While active, describe the first 64 calls of library functions in the list that the context yields.

    A call is ``{"source_key", "function", "arguments"}``: ``source_key`` is its :attr:`BuildRequest.key`, and each
    argument is one of

    - ``{"tensor": {"bytes", "dtype", "elements", "alias", "written_hint", "buffer", "offset"}}``: ``alias`` is the
      position of an earlier argument of this call with the same address, or None. ``written_hint`` is False for a
      pointer to const, None if the declaration is unknown. Arguments that share memory, also across calls, have the
      same ``buffer``. They start in it ``offset`` bytes from a multiple of 64.
    - ``{"int": value, "type": "int64"}`` or ``{"float": value, "type": "double"}``, with the C type that it takes;
      infinities and NaN are texts.
    - ``{"bytes_value": content as a little-endian integer, "size": bytes}`` for ctypes arrays and structures.
    - ``{"null": true}`` for a null pointer, ``{"unknown": type name}`` for a value that cannot be replayed.

    ``buffer`` and ``offset`` are known when the context ends.
    """
    calls: list[dict[str, Any]] = []
    spans: list[_Span] = []

    def observe(call: ObservedCall) -> None:
        if len(calls) < MAX_RECORDED_CALLS:
            calls.append(_describe(call, spans))

    call_observers.append(observe)
    try:
        yield calls
    finally:
        call_observers.remove(observe)
        _place(spans)


@functools.lru_cache(maxsize=16)
def _source_key(source: str, flags: tuple[str, ...]) -> str:
    return BuildRequest("cpp", source, flags).key


def _describe(call: ObservedCall, spans: list[_Span]) -> dict[str, Any]:
    parameters: Sequence[Parameter | None] = call.signature.parameters if call.signature else [None] * len(call.values)
    arguments = []
    position_of: dict[int, int] = {}
    for position, (parameter, value) in enumerate(zip(parameters, call.values, strict=True)):
        argument = _argument(parameter, value, spans)
        if "tensor" in argument:
            start = spans[-1].start
            argument["tensor"]["alias"] = position_of.get(start)
            position_of.setdefault(start, position)
        arguments.append(argument)
    return {"source_key": _source_key(*call.built_from), "function": call.function, "arguments": arguments}


def _argument(parameter: Parameter | None, value: Any, spans: list[_Span]) -> dict[str, Any]:
    """One argument; memory that it points to is added to ``spans``."""
    import torch

    written = None if parameter is None else not parameter.const
    if isinstance(value, torch.Tensor):
        return _memory(value.data_ptr(), value, written, spans)
    if value is None:
        return {"null": True}
    if isinstance(value, ctypes.c_void_p) or (parameter is not None and parameter.pointer and type(value) is int):
        address = value.value if isinstance(value, ctypes.c_void_p) else value
        owner = _owner(address) if address else None
        return {"null": True} if not address else _memory(address, owner, written, spans)
    if isinstance(value, ctypes.Array | ctypes.Structure) and ctypes.sizeof(value) <= _MAX_VALUE_BYTES:
        return {"bytes_value": int.from_bytes(bytes(value), "little"), "size": ctypes.sizeof(value)}
    if parameter is not None and parameter.pointer:
        return {"unknown": type(value).__name__}
    kind = parameter.type if parameter else _CTYPES.get(type(value)) or _UNTYPED_TYPES.get(type(value))
    return _number(value.value if isinstance(value, ctypes._SimpleCData) else value, kind)


def _number(value: Any, kind: str | None) -> dict[str, Any]:
    if kind in ("float", "double") and hasattr(value, "__float__"):
        number = float(value)
        return {"float": number if math.isfinite(number) else str(number), "type": kind}
    if kind is not None and hasattr(value, "__index__"):
        return {"int": value.__index__(), "type": kind}
    return {"unknown": type(value).__name__}


def _memory(address: int, owner: Any, written: bool | None, spans: list[_Span]) -> dict[str, Any]:
    """An argument that points to ``address``, inside the tensor ``owner`` (None: inside no known tensor)."""
    if owner is None:
        return {"unknown": "address"}
    size, item = _bytes_from(address, owner), owner.element_size()
    dtype = str(owner.dtype).removeprefix("torch.")
    note = {"bytes": size, "dtype": dtype, "elements": size // item, "alias": None, "written_hint": written}
    spans.append(_Span(address, size, note))
    return {"tensor": note}


def _bytes_from(address: int, tensor: Any) -> int:
    """Bytes of a tensor's memory from ``address`` to its end."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.data_ptr() + (last + 1) * tensor.element_size() - address)


def _owner(address: int) -> Any:
    """The living tensor whose memory holds ``address``: one that starts there, else the one that reaches furthest."""
    import torch

    holders = [
        found
        for found in gc.get_objects()
        if type(found) in (torch.Tensor, torch.nn.Parameter)
        and found.layout == torch.strided
        and found.is_cpu
        and found.data_ptr() <= address < address + _bytes_from(address, found)
    ]
    return max(holders, key=lambda t: (t.data_ptr() == address, _bytes_from(address, t)), default=None)


def _place(spans: Sequence[_Span]) -> None:
    """Give every span its buffer and offset: spans that overlap, or meet in one cache line, share a buffer."""
    buffer_of: list[tuple[int, list[_Span]]] = []  # (end of the buffer, its spans), by address
    for span in sorted(spans, key=lambda s: s.start):
        end = span.start + max(span.bytes, 1)
        if buffer_of and span.start // _LINE_BYTES * _LINE_BYTES < buffer_of[-1][0]:
            furthest, members = buffer_of[-1]
            buffer_of[-1] = max(furthest, end), [*members, span]
        else:
            buffer_of.append((end, [span]))
    base_of = {id(span.note): members[0].start for _, members in buffer_of for span in members}
    numbers: dict[int, int] = {}
    for span in spans:
        base = base_of[id(span.note)]
        span.note["buffer"] = numbers.setdefault(base, len(numbers))
        span.note["offset"] = span.start - base // _LINE_BYTES * _LINE_BYTES
