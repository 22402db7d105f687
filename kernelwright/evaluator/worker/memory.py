"""Shared memory in a worker, and tensors over it."""

from __future__ import annotations

import mmap
import os
import warnings

import torch

from kernelwright.evaluator.wire import tensors as wire


class Mapped:
    """A shared-memory file in this process, and tensors over it."""

    def __init__(self, fd: int, size: int, *, writable: bool) -> None:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self.view = mmap.mmap(fd, size, mmap.MAP_SHARED, protection)
        os.close(fd)

    def tensor(self, spec: wire.TensorSpec, base: int = 0) -> torch.Tensor:
        """The tensor at ``base + spec.offset``. If the mapping is read-only, writing to the tensor is a crash."""
        import torch

        dtype = getattr(torch, spec.dtype)
        if spec.elements == 0:
            return torch.empty(spec.shape, dtype=dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            flat = torch.frombuffer(self.view, dtype=dtype, count=spec.elements, offset=base + spec.offset)
        return flat.as_strided(spec.shape, spec.stride)

    def bytes(self, size: int) -> torch.Tensor:
        """The first ``size`` bytes, (size,) uint8."""
        import torch

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.frombuffer(self.view, dtype=torch.uint8, count=size)

    def touch(self) -> None:
        """Fault every page in, so that no call pays for that."""
        self.bytes(len(self.view))[::4096].sum()


def unfit(output: torch.Tensor) -> TypeError:
    """The error for an output without strides or without one shape: it is sparse, nested, or not on this CPU."""
    from kernelwright.datasets.runtime import tensor_objection

    return TypeError(f"an output {tensor_objection(output, 'output') or 'is no dense tensor'}")
