"""A worker's arguments and outputs on a device: copies of the pool, digests of outputs, outputs kept for delivery.

Worker side. The device may be ``cpu``. Then everything happens as on a GPU, in memory of its own. Tests use this on
machines without a GPU.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kernelwright.evaluator.wire import tensors as wire
from kernelwright.evaluator.worker.memory import unfit

if TYPE_CHECKING:
    import torch

    from kernelwright.evaluator.worker.memory import Mapped

_BLOCK = 256  # threads, as in digest.cu
_MOST_BLOCKS = 1056  # eight for each of 132 processors
_BYTES_A_BLOCK = 1 << 14
_POISON_BLOCKS = (1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24)  # sizes that allocators round to
_POISON_BYTES = 1 << 26  # of each size

HostDigest = Callable[[int, int, int], int]  # address, bytes, key


class DeviceMemory:
    """The memory of one worker on ``device``.

    Attributes:
        device: the ``torch.device``.
        digests: of the last call's outputs, (MAX_OUTPUTS,) int64 in host memory.
    """

    def __init__(self, device: str, host_digest: HostDigest, digest_code: str) -> None:
        """``digest_code``: path of the machine code of ``digest.cu``, for a GPU."""
        import torch

        self.device = torch.device(device)
        self._on_gpu = self.device.type == "cuda"
        self._host: list[torch.Tensor] = []
        self._copies: list[torch.Tensor] = []
        self._host_digest = host_digest
        self.digests = torch.zeros(wire.MAX_OUTPUTS, dtype=torch.int64, pin_memory=self._on_gpu)
        if self._on_gpu:
            from kernelwright.inline.cuda_driver import driver_kernel

            torch.cuda.set_device(self.device)
            self._sums = torch.zeros(wire.MAX_OUTPUTS, dtype=torch.int64, device=self.device)
            self._kernel = driver_kernel(digest_code, "kw_digest", ours=True)
            self._synchronize = torch.cuda.synchronize  # kept before a candidate could replace it

    def keep_precision(self, *, tf32: bool) -> None:
        """Set whether torch's own kernels may compute float32 products in TF32. By default its convolutions do."""
        import torch

        if self._on_gpu:
            torch.backends.cuda.matmul.allow_tf32 = tf32
            torch.backends.cudnn.allow_tf32 = tf32

    def map(self, memories: Sequence[tuple[Mapped, int]]) -> None:
        """Allocate copies of some memory files, each given with its size in bytes."""
        import torch

        self._host = [mapped.bytes(size) for mapped, size in memories]
        self._copies = [torch.empty(size, dtype=torch.uint8, device=self.device) for _, size in memories]

    def tensor(self, which: int, spec: wire.TensorSpec, base: int) -> torch.Tensor:
        """The tensor that lies ``base + spec.offset`` bytes into the copy of memory ``which``."""
        import torch

        first = base + spec.offset
        flat = self._copies[which][first : first + spec.span_bytes].view(getattr(torch, spec.dtype))
        return flat.as_strided(spec.shape, spec.stride) if spec.elements else flat.reshape(spec.shape)

    def refresh(self) -> None:
        """Copy everything from the host and wait for the copies. Afterwards nothing is pinned in the cache."""
        self.forget_persisting_lines()
        for copy, host in zip(self._copies, self._host, strict=True):
            copy.copy_(host)
        self.synchronize()

    def synchronize(self) -> None:
        """Wait for all streams of the device."""
        if self._on_gpu:
            self._synchronize(self.device)

    def event(self) -> Any:
        """A mark in the device's own time; on the CPU, the process's clock."""
        import torch

        if not self._on_gpu:
            return time.perf_counter()
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        return mark

    def ms_since(self, before: Any) -> float:
        """Milliseconds from a mark to the end of all work so far."""
        after = self.event()
        if not self._on_gpu:
            return 1e3 * float(after - before)
        self.synchronize()
        return float(before.elapsed_time(after))

    def forget_persisting_lines(self) -> None:
        """Release the lines that a kernel asked the L2 cache to keep."""
        if self._on_gpu:
            from kernelwright.inline.cuda_driver import reset_persisting_cache

            reset_persisting_cache()

    def see_it_works(self) -> None:
        """Test the device by a computation with a known result.

        Raises:
            RuntimeError: the device does not answer, or its result is wrong.
        """
        import torch

        numbers = torch.arange(1 << 16, dtype=torch.float64, device=self.device)
        found = float((numbers * 2).sum())
        if found != float((1 << 16) * ((1 << 16) - 1)):
            raise RuntimeError(f"a sum came out as {found}")

    def digest(self, outputs: Sequence[torch.Tensor], key: int) -> None:
        """Wait until all of a call's outputs are complete, then put the digest of each into ``digests``."""
        raw = [raw_bytes(output, self.device) for output in outputs]
        if not self._on_gpu:
            for j, data in enumerate(raw):
                self.digests[j] = _signed(self._host_digest(data.data_ptr(), data.numel(), wire.output_key(key, j)))
            return
        self.synchronize()
        self._sums.zero_()
        for j, data in enumerate(raw):
            values = (
                ctypes.c_void_p(data.data_ptr()),
                ctypes.c_longlong(data.numel()),
                ctypes.c_uint64(wire.output_key(key, j)),
                ctypes.c_void_p(self._sums.data_ptr() + 8 * j),
            )
            blocks = min(max(data.numel() // _BYTES_A_BLOCK, 1), _MOST_BLOCKS)
            self._kernel((blocks, 1, 1, _BLOCK, 1, 1), 0, values, ())
        self.digests.copy_(self._sums)

    def poison(self, byte: int) -> None:
        """Fill the memory that the allocator will hand out next with ``byte``, as far as it reuses freed blocks."""
        import torch

        if self._on_gpu:
            blocks = [
                torch.full((size,), byte, dtype=torch.uint8, device=self.device)
                for size in _POISON_BLOCKS
                for _ in range(min(_POISON_BYTES // size, 256))
            ]
            self.synchronize()
            blocks.clear()


def raw_bytes(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """(span,) uint8: the memory that a tensor's elements span, gaps of its strides included.

    Raises:
        TypeError: the tensor does not lie on ``device``, or is not dense.
    """
    import torch

    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        raise unfit(tensor)
    if tensor.device.type != device.type:
        raise TypeError(f"an output lies on {tensor.device}; a tensor on {device} is expected")
    if tensor.numel() == 0:
        return torch.empty(0, dtype=torch.uint8, device=device)
    span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.detach().as_strided((span,), (1,)).view(torch.uint8)


def _signed(value: int) -> int:
    return ctypes.c_int64(value).value
