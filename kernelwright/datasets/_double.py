"""A reference's float64 twin: a newly built model with the same state, and a mode in which it stays in float64.

Worker side (torch, no pydantic). The twin is not a copy. A lambda over submodules is bound to the model whose
constructor made it; in a copy it would still refer to the float32 originals.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["LOW_FLOATS", "DispatchMode", "double_twin", "in_double"]

LOW_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class DispatchMode(TorchDispatchMode):  # type: ignore[misc]
    """A dispatch mode that does not import torch._dynamo (1 s) at its first operator only to be skipped by it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class _DoubleEverywhere(DispatchMode):
    """Replaces every lower float dtype to which tensors are converted, or in which they are made, by float64."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") in LOW_FLOATS:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


@contextmanager
def in_double() -> Iterator[None]:
    """Compute in float64 everything that would be computed in a lower float dtype, such as ``x.float()``."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _DoubleEverywhere():
            yield
    finally:
        torch.set_default_dtype(before)


def double_twin(model: nn.Module, build: Callable[[], nn.Module]) -> nn.Module:
    """The twin of ``model`` in float64.

    Args:
        build: runs the constructor again, with the same arguments and from the same seed.

    Raises:
        ValueError: the twin has other parameters or buffers.
    """
    twin = build()
    twin.train(model.training)
    own, theirs = dict(_tensors(twin)), dict(_tensors(model))
    differing = [name for name, value in _state(model) if name not in own or own[name].shape != value.shape]
    if differing:
        raise ValueError(f"the constructor makes another state when it is run again: {', '.join(differing[:5])}")
    with torch.no_grad():
        for name, tensor in own.items():
            value = theirs.get(name, tensor).detach()
            if value.dtype in LOW_FLOATS:
                tensor.data = value.double()  # in place, so that a closure over the tensor also sees float64
            elif value is not tensor and value.shape == tensor.shape:
                tensor.data = value.clone()
    return twin.double()


def _state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers by name, each once."""
    return itertools.chain(model.named_parameters(), model.named_buffers())


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters, buffers, and tensors that are plain attributes of modules, by name."""
    yield from _state(model)
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor):
                yield f"{path}.{name}", value
