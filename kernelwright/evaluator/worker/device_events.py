"""A worker's own times on a GPU: kernels by torch's profiler, calls by events. All of them are claims.

Worker side. The candidate lives in the same process and can forge every number. The referee shows them as claims and
decides by its own clock.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kernelwright.evaluator.profile.events import claims

if TYPE_CHECKING:
    from kernelwright.evaluator.worker.device_torch import DeviceTorch

_MOST_KERNELS = 64  # of each call; two calls fit into one message
_FLUSH_BYTES = 256 << 20  # more than twice any L2 cache


def kernels_of(forward: Callable[..., Any], inputs: Sequence[Any], on: DeviceTorch) -> list[dict[str, Any]] | None:
    """The kernels of one call, longest first, in the form of ``profile.events.claims``; None if profiling fails."""
    from torch.profiler import ProfilerActivity, profile

    on.synchronize()
    try:
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            forward(*inputs)
            on.synchronize()
        with tempfile.NamedTemporaryFile(suffix=".json") as trace:
            profiler.export_chrome_trace(trace.name)
            return claims(json.load(trace))[:_MOST_KERNELS]
    except (AssertionError, RuntimeError, OSError, ValueError):  # no CUPTI, or no permission
        return None


def event_times(
    forward: Callable[..., Any], slots: Sequence[Sequence[Any]], on: DeviceTorch, calls: int
) -> list[float]:
    """Milliseconds of each of some calls, from an event before to an event after it; caches are flushed before each.

    Work on streams that the current one does not wait for is not seen.
    """
    import torch

    flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device=on.device)
    times = []
    with torch.no_grad():
        for call in range(calls):
            flush.zero_()
            on.forget_persisting_lines()
            on.synchronize()
            before = on.event()
            forward(*slots[call % len(slots)])
            times.append(on.ms_since(before))
    return times
