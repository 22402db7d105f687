"""Loads and calls products in which CUDA kernels run on the CPU. The evaluator's emulator describes how they run.

They need the emulator's runtime (``set_emulator``). The referee loads it on machines without a device.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, Final

from kernelwright.inline.toolchain import BuildError

__all__ = [
    "EmulationError",
    "NotCheckable",
    "count_launches",
    "emulated_kernel",
    "emulated_module",
    "idle_emulated",
    "is_emulated",
    "next_order",
    "seen_launches",
    "set_emulator",
]

_ANCHOR: Final = "kw_product_anchor"
_TEXT_BYTES = 2048
_MOST_RESULTS = 64
_MOST_DIMENSIONS = 16
_SEVERAL = 1 << 30  # flag of a result that belongs to a tuple
_ORDERS = 4  # orders of blocks and threads, used in turn: ascending, descending, two shuffled ones
_FAULTS = ("OutOfBounds", "Race", "Misaligned", "Deadlock", "Collective", "CannotLaunch", "Trap", "Assert")
_NONE, _INT, _DOUBLE, _BOOL, _TENSOR, _INTS, _DTYPE, _DEVICE, _OPTIONS, _TENSORS, _TEXT, _DOUBLES = range(12)
# By c10::ScalarType.
_DTYPES = dict(enumerate(("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")))
_DTYPES |= {11: "bool", 15: "bfloat16"}


class _Value(ctypes.Structure):
    _fields_ = [
        *(("kind", ctypes.c_int32), ("flags", ctypes.c_int32), ("number", ctypes.c_int64), ("real", ctypes.c_double)),
        *(("list", ctypes.c_void_p), ("count", ctypes.c_int64), ("text", ctypes.c_char_p)),
    ]


class _TensorView(ctypes.Structure):
    _fields_ = [
        *(("data", ctypes.c_void_p), ("dimensions", ctypes.c_int64)),
        *(("sizes", ctypes.c_int64 * _MOST_DIMENSIONS), ("strides", ctypes.c_int64 * _MOST_DIMENSIONS)),
        *(("dtype", ctypes.c_int64), ("storage", ctypes.c_int64), ("storage_bytes", ctypes.c_int64)),
        ("requires_grad", ctypes.c_int64),
    ]


_CALL = ctypes.CFUNCTYPE(
    *(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(_Value), ctypes.c_int),
    *(ctypes.POINTER(_Value), ctypes.c_int, ctypes.c_void_p, ctypes.c_int),
)
_DESCRIBE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, ctypes.POINTER(_TensorView))
_RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_int64)


class _Torch(ctypes.Structure):
    _fields_ = [("call", _CALL), ("describe", _DESCRIBE), ("release", _RELEASE)]


_runtime: ctypes.CDLL | None = None
_order = itertools.count()


def set_emulator(path: str) -> None:
    """Load the emulator's runtime; products find its functions by name."""
    global _runtime
    library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    library.kw_message.restype = ctypes.c_char_p
    library.kw_launches.restype = ctypes.c_ulonglong
    library.kw_launch_seen.restype = ctypes.c_char_p
    library.kw_allow.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    library.kw_forget.argtypes = [ctypes.c_void_p]
    library.kw_know_module.argtypes = [ctypes.c_void_p]
    _runtime = library


def idle_emulated() -> None:
    """From now on, launches of emulated kernels do nothing."""
    if _runtime is not None:
        _runtime.kw_idle(1)


def seen_launches() -> list[dict[str, Any]]:
    """The different launches of this process so far: ``{"kernel", "block" (threads), "dynamic_bytes"}`` each."""
    if _runtime is None:
        return []
    found: list[dict[str, Any]] = []
    block, dynamic = ctypes.c_uint(), ctypes.c_ulonglong()
    while name := _runtime.kw_launch_seen(len(found), ctypes.byref(block), ctypes.byref(dynamic)):
        kernel = name.decode(errors="replace")
        found.append({"kernel": kernel, "block": block.value, "dynamic_bytes": dynamic.value})
    return found


def next_order() -> None:
    """From now on, run blocks and threads in another order. A kernel whose result depends on it lacks a barrier."""
    if _runtime is not None:
        _runtime.kw_order(next(_order) % _ORDERS)


def is_emulated(path: str) -> bool:
    """Whether a product holds kernels for the emulator. Only those name the anchor."""
    with open(path, "rb") as product:
        return _ANCHOR.encode() in product.read()


def _load(path: str) -> tuple[ctypes.CDLL, ctypes.CDLL]:
    if _runtime is None:
        raise BuildError("this product runs in the referee's emulator only")
    library = ctypes.CDLL(path)
    library.kw_product_anchor.restype = ctypes.c_void_p
    _runtime.kw_know_module(library.kw_product_anchor())
    return _runtime, library


class EmulationError(RuntimeError):
    """An emulated kernel did something forbidden on a device. The message begins with the fault: ``OutOfBounds`` ..."""


class NotCheckable(RuntimeError):
    """A kernel uses a feature that the emulator lacks. The kernel may well be right."""


def _raise(text: str) -> None:
    if "NotCheckable: " in text:
        raise NotCheckable(text.partition("NotCheckable: ")[2])
    raise EmulationError(text) if text.startswith(_FAULTS) else RuntimeError(text)


# ------------------------------------------------------------------------------------------------------- kernels


def emulated_kernel(path: str) -> Callable[[Sequence[int], int, Sequence[Any], Sequence[tuple[str, Any]]], None]:
    """The kernel of a product that ``inline.cuda`` requested.

    Its arguments are grid and block (six numbers), bytes of dynamic shared memory, the kernel's arguments as ctypes
    values, and the tensors among these by name.
    """
    runtime, library = _load(path)

    def launch(shape: Sequence[int], shared: int, values: Sequence[Any], tensors: Sequence[tuple[str, Any]]) -> None:
        packed = (ctypes.c_void_p * max(len(values), 1))(*(ctypes.addressof(value) for value in values))
        spans = [(tensor.untyped_storage(), name.encode()) for name, tensor in tensors]
        for storage, name in spans:
            runtime.kw_allow(storage.data_ptr(), storage.nbytes(), name)
        try:
            failed = library.kw_kernel_launch((ctypes.c_uint * 6)(*shape), ctypes.c_size_t(shared), packed)
        finally:
            for storage, _ in spans:
                runtime.kw_forget(storage.data_ptr())
        if failed:
            _raise(runtime.kw_message().decode(errors="replace"))

    return launch


# -------------------------------------------------------------------------------------- modules of load_inline


class EmulatedModule:
    """The functions that a source binds by ``PYBIND11_MODULE``, over the small stand-in for torch's headers."""

    def __init__(self, path: str) -> None:
        self._runtime, self._library = _load(path)
        self._tensors: dict[int, Any] = {}
        self._next = itertools.count(1)
        self._error: BaseException | None = None
        self._host = _Torch(_CALL(self._call_torch), _DESCRIBE(self._describe), _RELEASE(self._release))
        library = self._library
        library.kw_product_name.restype = ctypes.c_char_p
        library.kw_product_parameter.restype = ctypes.c_char_p
        count = library.kw_product_open(ctypes.byref(self._host))
        self.functions = {
            library.kw_product_name(i).decode(): self._bound(i, library.kw_product_name(i).decode())
            for i in range(count)
        }

    def _bound(self, number: int, name: str) -> Callable[..., Any]:
        parameters = list(
            itertools.takewhile(bool, (self._library.kw_product_parameter(number, j) for j in range(_MOST_RESULTS)))
        )

        def call(*arguments: Any, **named: Any) -> Any:
            for parameter in parameters[len(arguments) :]:
                if parameter.decode() in named:
                    arguments = (*arguments, named.pop(parameter.decode()))
            if named:
                raise TypeError(f"{name}() got an unexpected keyword argument {next(iter(named))!r}")
            return self._call(number, arguments)

        call.__name__ = call.__qualname__ = name
        return call

    def _call(self, number: int, arguments: Sequence[Any]) -> Any:
        kept: list[Any] = []
        values = (_Value * max(len(arguments), 1))(*(self._packed(argument, kept) for argument in arguments))
        results, error = (_Value * _MOST_RESULTS)(), ctypes.create_string_buffer(_TEXT_BYTES)
        self._error = None
        count = self._library.kw_product_call(
            number, values, len(arguments), results, _MOST_RESULTS, error, _TEXT_BYTES
        )
        if count < 0:
            if self._error is not None:
                raise self._error
            text = error.value.decode(errors="replace")
            if "incompatible function arguments" in text:
                raise TypeError(text)
            _raise(text)
        found = tuple(self._unpacked(results[i]) for i in range(count))
        return found if count != 1 or results[0].flags & _SEVERAL else found[0]

    # -- values

    def _handle(self, tensor: Any) -> int:
        handle = next(self._next)
        self._tensors[handle] = tensor
        return handle

    def _packed(self, value: Any, kept: list[Any]) -> _Value:
        import torch

        if value is None:
            return _Value(_NONE)
        if isinstance(value, bool):
            return _Value(_BOOL, 0, int(value), float(value))
        if isinstance(value, int):
            return _Value(_INT, 0, value, float(value))
        if isinstance(value, float):
            return _Value(_DOUBLE, 0, int(value) if abs(value) < 2**62 else 0, value)
        if isinstance(value, torch.Tensor):
            return _Value(_TENSOR, 0, self._handle(value))
        if isinstance(value, torch.dtype):
            return _Value(_DTYPE, 0, next(code for code, name in _DTYPES.items() if getattr(torch, name) == value))
        if isinstance(value, str):
            return _Value(_TEXT, 0, 0, 0.0, None, len(value), value.encode())
        if isinstance(value, list | tuple) and all(isinstance(item, torch.Tensor) for item in value) and value:
            return self._packed_list(_TENSORS, ctypes.c_int64, [self._handle(item) for item in value], kept)
        if isinstance(value, list | tuple) and all(isinstance(item, int) for item in value):
            return self._packed_list(_INTS, ctypes.c_int64, value, kept)
        if isinstance(value, list | tuple) and all(isinstance(item, int | float) for item in value):
            return self._packed_list(_DOUBLES, ctypes.c_double, value, kept)
        raise TypeError(f"incompatible function arguments: {type(value).__name__} cannot be handed to a C++ function")

    @staticmethod
    def _packed_list(kind: int, ctype: Any, items: Sequence[Any], kept: list[Any]) -> _Value:
        array = (ctype * max(len(items), 1))(*items)
        kept.append(array)
        return _Value(kind, 0, 0, 0.0, ctypes.addressof(array), len(items))

    def _unpacked(self, value: _Value) -> Any:
        import torch

        if value.kind == _TENSOR:
            return self._tensors[value.number]
        if value.kind in (_INT, _DEVICE):
            return int(value.number)
        if value.kind == _BOOL:
            return bool(value.number)
        if value.kind == _DOUBLE:
            return float(value.real)
        if value.kind in (_INTS, _TENSORS):
            items = ctypes.cast(value.list, ctypes.POINTER(ctypes.c_int64))[: value.count] if value.count else []
            return [self._tensors[item] for item in items] if value.kind == _TENSORS else list(items)
        if value.kind in (_DTYPE, _OPTIONS):
            return getattr(torch, _DTYPES.get(value.number, "float32"))
        if value.kind == _TEXT:
            return (value.text or b"").decode(errors="replace")
        return None

    # -- calls of the product to torch

    def _call_torch(
        self, name: bytes, arguments: Any, count: int, results: Any, capacity: int, error: int, error_bytes: int
    ) -> int:
        try:
            positional, named = [], {}
            for i in range(count):
                value = arguments[i]
                if value.kind != _OPTIONS:
                    positional.append(self._unpacked(value))
                elif value.number in _DTYPES:
                    named["dtype"] = self._unpacked(value)
            found = self._operator(name.decode(), positional)(*positional, **named)
            several = list(found) if isinstance(found, tuple | list) else [found]
            kept: list[Any] = []
            for i, item in enumerate(several[:capacity]):
                results[i] = self._packed(item, kept)
            return min(len(several), capacity)
        except BaseException as raised:  # noqa: BLE001 - must not pass through C++; it is raised where the call returns
            self._error = raised
            text = f"{type(raised).__name__}: {raised}".encode()[: error_bytes - 1] + b"\0"
            ctypes.memmove(error, text, len(text))
            return -1

    @staticmethod
    def _operator(name: str, positional: Sequence[Any]) -> Callable[..., Any]:
        import torch

        if positional and isinstance(positional[0], torch.Tensor) and hasattr(torch.Tensor, name):
            method: Callable[..., Any] = getattr(torch.Tensor, name)
            return method
        for place in (torch, torch.nn.functional):
            if hasattr(place, name):
                function: Callable[..., Any] = getattr(place, name)
                return function
        raise NotCheckable(f"torch has no operator {name}")

    def _describe(self, handle: int, view: Any) -> int:
        import torch

        tensor = self._tensors.get(handle)
        if tensor is None or tensor.layout is not torch.strided or tensor.dim() > _MOST_DIMENSIONS:
            return 1
        code = next((code for code, name in _DTYPES.items() if getattr(torch, name) == tensor.dtype), None)
        if code is None:
            return 1
        storage, seen = tensor.untyped_storage(), view.contents
        seen.data, seen.dimensions = tensor.data_ptr(), tensor.dim()
        for i, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
            seen.sizes[i], seen.strides[i] = size, stride
        seen.dtype, seen.storage, seen.storage_bytes = code, storage.data_ptr(), storage.nbytes()
        seen.requires_grad = int(tensor.requires_grad)
        return 0

    def _release(self, handle: int) -> None:
        self._tensors.pop(handle, None)


def emulated_module(name: str, path: str) -> ModuleType:
    """The product of a ``load_inline`` with CUDA sources, as a Python module."""
    held = EmulatedModule(path)
    module = ModuleType(name)
    vars(module).update(held.functions, __kernelwright__=held)
    sys.modules.setdefault(name, module)
    return module


@contextlib.contextmanager
def count_launches() -> Iterator[list[int]]:
    """Count kernel launches while active. At the end, the yielded list holds the count as its only number."""
    count, before = [0], _launches()
    try:
        yield count
    finally:
        count[0] = _launches() - before


def _launches() -> int:
    return 0 if _runtime is None else int(_runtime.kw_launches())
