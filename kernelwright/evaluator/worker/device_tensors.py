"""Torch tensors over device memory that torch has not allocated: inputs, weights and results in a keeper's memory.

Where the driver is a stand-in, device memory is memory of this process, and the tensors are torch's own for the CPU.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from kernelwright.evaluator.driver.cuda import DeviceMapping, Driver
from kernelwright.evaluator.wire import tensors as wire

if TYPE_CHECKING:
    import torch


class MappedOnDevice:
    """Memory of a keeper's in this process, and tensors over it, with the face of ``memory.Mapped``."""

    def __init__(self, mapping: DeviceMapping, device: torch.device) -> None:
        self.mapping = mapping
        self._device = device

    @classmethod
    def adopt(cls, driver: Driver, fd: int, size: int, device: torch.device) -> MappedOnDevice:
        """Map memory by its descriptor, which the caller closes."""
        return cls(driver.adopt(fd, size), device)

    def tensor(self, spec: wire.TensorSpec, base: int = 0) -> torch.Tensor:
        """The tensor at ``base + spec.offset``.

        Raises:
            ValueError: it does not lie in this memory.
        """
        import torch

        dtype = getattr(torch, spec.dtype)
        if spec.elements == 0:
            return torch.empty(spec.shape, dtype=dtype, device=self._device)
        flat = self.bytes(base + spec.offset, spec.span_bytes).view(dtype)
        return flat.as_strided(spec.shape, spec.stride)

    def bytes(self, at: int, size: int) -> torch.Tensor:
        """(size,) uint8 from ``at`` on.

        Raises:
            ValueError: they do not lie in this memory.
        """
        if at < 0 or at + size > self.mapping.size:
            raise ValueError(f"{size} bytes from {at} on do not lie in {self.mapping.size} bytes")
        return over_memory(self.mapping.address + at, size, self._device)


def over_memory(address: int, size: int, device: torch.device) -> torch.Tensor:
    """A tensor of ``size`` bytes, uint8, over memory at an address of ``device``. It does not own the memory."""
    import torch

    if device.type == "cpu":
        return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)
    return torch.as_tensor(_Array(address, size), device=device)


class _Array:
    """What torch takes for an array of another library."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }
