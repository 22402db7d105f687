"""Measures a GPU's ceilings; runs in a worker, alone on the device, and takes some seconds.

Times are the device's (events), around a graph of many equal kernels. So they contain no launches from the host. Every
rate is the best of several rounds, because other work and low clocks only lower it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernelwright.evaluator.profile.gpu_ceilings import (
    DTYPES,
    SIZES,
    GpuCeilings,
    best_rates,
    rate_gb_s,
    rate_tflops,
    repeats_for,
)

_ROUNDS = 5
_MATRIX = 8192
_MATRIX_ORDINARY = 4096
_NULL_LAUNCHES = 2000


def measure(payload: dict[str, Any]) -> dict[str, Any]:
    """Measure the ceilings of the first device, in the form that ``gpu_ceilings.parse_ceilings`` reads.

    Args:
        payload: unused.
    """
    import torch

    device = torch.cuda.get_device_properties(0)
    fitting = [size for size in SIZES if size * 4 <= device.total_memory]
    found = GpuCeilings(
        device=device.name,
        architecture=f"sm_{device.major}{device.minor}",
        processors=device.multi_processor_count,
        l2_bytes=device.L2_cache_size,
        bandwidth_by_bytes=best_rates([pair for size in fitting for pair in _bandwidths(torch, size)]),
        tflops_by_dtype={dtype: rate for dtype in DTYPES if (rate := _matrix_rate(torch, dtype)) > 0},
        launch_us=_launch_us(torch),
    )
    return found.as_claim()


def _bandwidths(torch: Any, size: int) -> list[tuple[int, float]]:
    """Rates of copying, writing and reading a working set of ``size`` bytes. The highest rate is the ceiling."""
    half = torch.zeros(size // 8, dtype=torch.float32, device="cuda")
    other = torch.empty_like(half)
    whole = torch.zeros(size // 4, dtype=torch.float32, device="cuda")
    result = torch.empty((), dtype=torch.float32, device="cuda")
    ways: tuple[Callable[[], Any], ...] = (
        lambda: other.copy_(half),
        lambda: torch.add(half, 1.0, out=other),
        lambda: whole.fill_(1.0),
        lambda: torch.amax(whole, dim=(0,), out=result),
    )
    return [(size, rate_gb_s(size, _best_ms(torch, way, expected_ms=size / 1e9))) for way in ways]


def _matrix_rate(torch: Any, dtype: str) -> float:
    """1e12 operations a second of a large product; 0 if the device or torch has no product of this dtype."""
    try:
        size, multiply = _product(torch, dtype)
        return rate_tflops(size, _best_ms(torch, multiply, expected_ms=2.0 * size**3 / 1e11))
    except (RuntimeError, AttributeError, NotImplementedError):  # no such units, or no such operator
        return 0.0
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def _product(torch: Any, dtype: str) -> tuple[int, Callable[[], Any]]:
    """A product of square matrices that fills the device: its size, and the call."""
    size = _MATRIX_ORDINARY if dtype == "float32" else _MATRIX
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    if dtype == "float8":
        a = torch.randn(size, size, device="cuda").to(torch.float8_e4m3fn)
        b = torch.randn(size, size, device="cuda").to(torch.float8_e4m3fn).t()  # columns of the second one are dense
        one = torch.ones((), device="cuda")
        return size, lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    kind = {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(dtype, torch.float32)
    a = torch.randn(size, size, device="cuda", dtype=kind)
    b = torch.randn(size, size, device="cuda", dtype=kind)
    out = torch.empty_like(a)
    return size, lambda: torch.mm(a, b, out=out)


def _best_ms(torch: Any, call: Callable[[], Any], *, expected_ms: float) -> float:
    """One call's time on the device, the least mean of several rounds."""
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()  # the call's inputs were written on another stream
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    stream.synchronize()
    repeats = repeats_for(expected_ms)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(repeats):
            call()
    graph.replay()
    return min(_event_ms(torch, graph.replay) / repeats for _ in range(_ROUNDS))


def _launch_us(torch: Any) -> float:
    """The time of one launch of a nearly empty kernel, in a series of launches from the host."""
    tiny = torch.zeros(1, device="cuda")

    def launches() -> None:
        for _ in range(_NULL_LAUNCHES):
            tiny.add_(1.0)

    launches()
    return min(_event_ms(torch, launches) for _ in range(_ROUNDS)) * 1e3 / _NULL_LAUNCHES


def _event_ms(torch: Any, work: Callable[[], Any]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))
