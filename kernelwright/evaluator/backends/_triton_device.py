"""A CUDA device that is the CPU: enough of ``torch.cuda`` for code that allocates, launches and synchronises."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["pretended_device"]

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
    """Stands for a stream, an event or a device guard: everything returns at once."""

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


def _on_cpu(device: Any) -> Any:
    """``device`` with CUDA (by name, object or index) replaced by the CPU; anything else as it is."""
    if isinstance(device, torch.device):
        return torch.device("cpu") if device.type == "cuda" else device
    if isinstance(device, str):
        return "cpu" if device.split(":")[0] == "cuda" else device
    return "cpu" if type(device) is int else device


class _DeviceMode(TorchFunctionMode):  # type: ignore[misc]
    """Reports tensors as CUDA tensors and sends requests for the device to the CPU."""

    def __init__(self) -> None:
        super().__init__()
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
        if "device" in named:
            named["device"] = _on_cpu(named["device"])
        named.pop("pin_memory", None)
        if function is torch.Tensor.to:
            args = (args[0], *(_on_cpu(argument) for argument in args[1:]))
        return function(*args, **named)


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
    """See ``cuda_as_cpu``."""
    with contextlib.ExitStack() as stack:
        for name, value in _stand_ins().items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        stack.enter_context(mock.patch.object(torch, "set_default_device"))
        stack.enter_context(_DeviceMode())
        yield
