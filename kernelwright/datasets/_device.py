"""Redirects code that names a CUDA device: to the GPU in use, or to this CPU with enough of ``torch.cuda`` emulated.

Worker side. On a machine without a GPU, candidates for one run within :func:`pretended_device`. Problems run within
:func:`meant_device` if they fail without it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode

__all__ = ["default_device_kept", "meant_device", "pretended_device"]

_CUDA = torch.device("cuda", 0)
_PROPERTIES = SimpleNamespace(
    name="pretended CUDA device",
    major=9,
    minor=0,
    total_memory=80 << 30,
    multi_processor_count=132,
    warp_size=32,
    max_threads_per_multi_processor=2048,
    L2_cache_size=50 << 20,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
    regs_per_multiprocessor=65536,
)


class _Idle:
    """Replaces a stream, an event or a device guard. Every method returns at once."""

    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> _Idle:
        return self

    def __exit__(self, *exception: Any) -> None:
        pass

    def query(self) -> bool:
        return True

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        pass

    synchronize = record = wait = wait_event = wait_stream = _nothing


def _is_cuda(device: Any) -> bool:
    """Whether a device argument (a name, an object or an index) means CUDA."""
    if isinstance(device, torch.device):
        return bool(device.type == "cuda")
    if isinstance(device, str):
        return device.split(":")[0] == "cuda"
    return type(device) is int


class _Elsewhere(TorchFunctionMode):  # type: ignore[misc]
    """Replaces any CUDA device in the arguments of torch functions by ``target``."""

    def __init__(self, target: torch.device) -> None:
        super().__init__()
        self._target = target

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is torch.Tensor.cuda:
            return args[0].to(self._target)
        named = dict(kwargs or {})
        if "device" in named:
            named["device"] = self._instead(named["device"])
        if function is torch.Tensor.to:
            args = (args[0], *map(self._instead, args[1:]))
        return function(*args, **named)

    def _instead(self, device: Any) -> Any:
        return self._target if _is_cuda(device) else device


class _Pretending(_Elsewhere):
    """Also reports tensors as CUDA tensors, although ``target`` is not a CUDA device."""

    def __init__(self, target: torch.device) -> None:
        super().__init__(target)
        tensor = torch.Tensor
        self._answers: dict[Any, Any] = {
            tensor.is_cuda.__get__: True,
            tensor.is_cpu.__get__: False,
            tensor.device.__get__: _CUDA,
            tensor.get_device: 0,
            tensor.is_pinned: True,
        }
        self._identities = (tensor.cuda, tensor.pin_memory)

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in self._answers:
            return self._answers[function]
        if function in self._identities:
            return args[0]
        named = dict(kwargs or {})
        named.pop("pin_memory", None)
        return super().__torch_function__(function, types, args, named)


def _stand_ins() -> dict[str, Any]:
    def constant(value: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: value

    return {
        "is_available": constant(True),
        "device_count": constant(1),
        "current_device": constant(0),
        "is_initialized": constant(True),
        "init": constant(None),
        "set_device": constant(None),
        "synchronize": constant(None),
        "empty_cache": constant(None),
        "get_device_name": constant(_PROPERTIES.name),
        "get_device_capability": constant((9, 0)),
        "get_device_properties": constant(_PROPERTIES),
        "current_stream": constant(_Idle()),
        "default_stream": constant(_Idle()),
        "is_bf16_supported": constant(True),
        "Stream": _Idle,
        "Event": _Idle,
        "device": _Idle,
        "stream": _Idle,
        "device_of": _Idle,
        "manual_seed": constant(None),
        "manual_seed_all": constant(None),
    }


@contextlib.contextmanager
def pretended_device() -> Iterator[None]:
    """Run code for a CUDA device on the default device: device arguments, ``.cuda()``, ``torch.cuda``.

    Each call of a forward enters it anew and makes new patches. When calls shared stand-ins, or set them by other means
    than ``mock.patch``, workers of Triton's interpreter crashed during garbage collection (docs/log.md).
    """
    with contextlib.ExitStack() as stack:
        for name, value in _stand_ins().items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        stack.enter_context(mock.patch.object(torch, "set_default_device"))
        pretending = stack.enter_context(_Pretending(torch.get_default_device()))
        stack.enter_context(mock.patch.object(BackwardCFunction, "apply", _backward_within(pretending)))
        yield


def _backward_within(mode: TorchFunctionMode) -> Callable[..., Any]:
    """The backward pass of a ``torch.autograd.Function`` in a mode, which torch leaves during ``autograd.grad``."""
    plain = BackwardCFunction.apply

    def apply(node: Any, *gradients: Any) -> Any:
        with mode:
            return plain(node, *gradients)

    return apply


@contextlib.contextmanager
def meant_device() -> Iterator[None]:
    """Redirect every CUDA device that code names to the GPU in use, or to an emulated one if there is no GPU."""
    if not torch.cuda.is_available():
        with pretended_device():
            yield
        return
    with _Elsewhere(torch.device("cuda", torch.cuda.current_device())):
        yield


@contextlib.contextmanager
def default_device_kept() -> Iterator[None]:
    """Make ``torch.set_default_device`` do nothing on a machine without a GPU."""
    with _replaced(torch, {} if torch.cuda.is_available() else _DEFAULT):
        yield


@contextlib.contextmanager
def _replaced(module: Any, values: dict[str, Any]) -> Iterator[None]:
    before = {name: getattr(module, name) for name in values}
    vars(module).update(values)
    try:
        yield
    finally:
        vars(module).update(before)


_DEFAULT = {"set_default_device": lambda device: None}
