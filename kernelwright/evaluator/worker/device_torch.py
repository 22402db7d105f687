"""Torch on a device, as a worker uses it around its calls: waiting, marks in time, precision, fresh memory.

The device may be ``cpu``, where the driver is a stand-in: torch then computes on this CPU, in the stand-in's memory.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import TorchDispatchMode

from kernelwright.evaluator.driver.cuda import Driver
from kernelwright.evaluator.worker.memory import unfit
from kernelwright.evaluator.worker.plan import computes
from kernelwright.inline import cuda_driver

if TYPE_CHECKING:
    import torch

_GRAPHED, _REPLAYS, _BATCHES, _WARM_S = 20, 10, 7, 0.02
_POISON_BLOCKS = (1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24)  # sizes that allocators round to
_POISON_BYTES = 1 << 26  # of each size


class DeviceTorch:
    """Torch on ``device``, a ``torch.device``, beside a driver of our own on the same context."""

    def __init__(
        self, device: str, library: str, *, tf32: bool, before: Callable[[Driver, bool], None] | None = None
    ) -> None:
        """Open the device.

        Args:
            library: the driver.
            tf32: whether torch's own float32 products and convolutions may use TF32.
            before: called with the driver, and whether torch has kernels for it, before torch allocates there.

        Raises:
            DriverError: the device cannot be opened.
        """
        import torch

        self.device = torch.device(device)
        self.has_cuda = self.device.type == "cuda"
        self._made: list[Any] = []  # by torch, and perhaps still used by a stand-in's stream
        self.driver = Driver(library)  # opens the context that torch's runtime uses as well
        if before is not None:
            before(self.driver, self.has_cuda)
        if self.has_cuda:
            torch.cuda.set_device(self.device)
            torch.zeros(1, device=self.device)
            torch.backends.cuda.matmul.allow_tf32 = tf32
            torch.backends.cudnn.allow_tf32 = tf32
        else:
            cuda_driver.use_stand_in(library, self._made)

    def synchronize(self) -> None:
        """Wait for all streams of the device."""
        self.driver.synchronize()
        self._made.clear()

    def in_stream(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """A forward whose work comes after what is enqueued before it.

        Torch's own kernels are enqueued, too. Where the driver is a stand-in, torch and C++ compute at once. There a
        call waits for what is enqueued, or only torch's operators do, if there are kernels for the driver.
        """
        if self.has_cuda:
            return forward

        def wait_and_call(*arguments: Any) -> Any:
            if cuda_driver.has_loaded():
                with _InStream(self.driver, self._made):
                    return forward(*arguments)
            self.driver.synchronize(0)
            return forward(*arguments)

        return wait_and_call

    def event(self) -> Any:
        """A mark in the device's own time; on the CPU, the process's clock."""
        import torch

        if not self.has_cuda:
            return time.perf_counter()
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        return mark

    def ms_since(self, before: Any) -> float:
        """Milliseconds from a mark to the end of all work so far."""
        after = self.event()
        if not self.has_cuda:
            return 1e3 * float(after - before)
        self.synchronize()
        return float(before.elapsed_time(after))

    def graph_ms(self, work: Callable[[], Any]) -> float | None:
        """Milliseconds of ``work`` in a CUDA graph of many, the median of some batches; None on the CPU.

        Before, graphs run until the clock is as high as under load.
        """
        import torch

        if not self.has_cuda:
            return None
        graph = torch.cuda.CUDAGraph()
        work()
        self.synchronize()
        with torch.cuda.graph(graph):
            for _ in range(_GRAPHED):
                work()
        until, times = time.monotonic() + _WARM_S, []
        while time.monotonic() < until:
            graph.replay()
            self.synchronize()
        for _ in range(_BATCHES):
            before = self.event()
            for _ in range(_REPLAYS):
                graph.replay()
            times.append(self.ms_since(before) / (_GRAPHED * _REPLAYS))
        return statistics.median(times)

    def forget_persisting_lines(self) -> None:
        """Release the lines that a kernel asked the L2 cache to keep. No effect on devices without that feature."""
        self.driver.result("cuCtxResetPersistingL2Cache")

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

    def poison(self, byte: int) -> None:
        """Fill the memory that the allocator will hand out next with ``byte``, as far as it reuses freed blocks."""
        import torch

        if self.has_cuda:
            blocks = [
                torch.full((size,), byte, dtype=torch.uint8, device=self.device)
                for size in _POISON_BLOCKS
                for _ in range(min(_POISON_BYTES // size, 256))
            ]
            self.synchronize()
            blocks.clear()


class _InStream(TorchDispatchMode):  # type: ignore[misc]
    """Torch on the CPU as if it computed in a stand-in's stream.

    Operators that compute wait for the stream. Memory is kept until the stream is done, as GPU's allocators do.
    """

    def __init__(self, driver: Driver, made: list[Any]) -> None:
        super().__init__()
        self._driver = driver
        self._made = made

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operator imports torch._dynamo

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if computes(func):
            self._driver.synchronize(0)
        result = func(*args, **(kwargs or {}))
        self._made.append(result)
        return result


def span_of(tensor: torch.Tensor, device: torch.device) -> int:
    """Bytes from a tensor's first element to the end of its last one, gaps of its strides included.

    Raises:
        TypeError: the tensor does not lie on ``device``, or is not dense.
    """
    import torch

    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        raise unfit(tensor)
    if tensor.device.type != device.type:
        raise TypeError(f"an output lies on {tensor.device}; a tensor on {device} is expected")
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return int((last + 1) * tensor.element_size())
