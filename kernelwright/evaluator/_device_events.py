"""What a worker can say itself of its time on a GPU: kernels by torch's profiler, calls by events. Claims, all of it.

Worker side. The candidate lives in the same process and can forge every number; the referee shows them as what they are
and decides by its own clock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelwright.evaluator._device_memory import DeviceMemory

_MOST_KERNELS = 64
_NAME_CHARS = 200
_FLUSH_BYTES = 256 << 20  # more than twice any L2 cache


def kernels_of(forward: Callable[..., Any], inputs: Sequence[Any], memory: DeviceMemory) -> list[dict[str, Any]] | None:
    """The kernels of one call: ``{"name", "device_us", "calls"}`` each, longest first; None where nothing is seen."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    memory.synchronize()
    try:
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            forward(*inputs)
            memory.synchronize()
        averages = profiler.key_averages()
    except RuntimeError:  # no CUPTI, or no permission
        return None
    found: list[dict[str, Any]] = [
        {"name": str(event.key)[:_NAME_CHARS], "device_us": float(event.device_time_total), "calls": int(event.count)}
        for event in averages
        if event.device_type == torch.autograd.DeviceType.CUDA and not str(event.key).startswith(("Memcpy", "Memset"))
    ]
    return sorted(found, key=lambda kernel: -float(kernel["device_us"]))[:_MOST_KERNELS]


def event_times(
    forward: Callable[..., Any], slots: Sequence[Sequence[Any]], memory: DeviceMemory, calls: int
) -> list[float]:
    """Milliseconds of each of some calls, from an event before to an event after it; caches are flushed before each.

    The second event comes when all streams are idle, so that a few microseconds of waiting are part of it.
    """
    import torch

    flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device=memory.device)
    times = []
    with torch.no_grad():
        for call in range(calls):
            before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            flush.zero_()
            with contextlib.suppress(RuntimeError, AttributeError):
                torch.cuda.cudart().cudaCtxResetPersistingL2Cache()
            memory.synchronize()
            before.record()
            forward(*slots[call % len(slots)])
            memory.synchronize()
            after.record()
            memory.synchronize()
            times.append(float(before.elapsed_time(after)))
    return times
