"""Measures a GPU's ceilings; runs in a worker of the sandbox that holds no code but ours."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

_SIZES = tuple(1 << power for power in range(20, 31, 2))  # working sets of a copy, in bytes
_PRODUCT = 8192
_REPEATS = 20
_BEST_OF = 3


def measure(payload: dict[str, Any]) -> dict[str, Any]:
    """Copies by working set, matrix products by dtype, launches. ``payload``: ``device``, ``product`` (its size)."""
    import torch

    device, n = torch.device(payload["device"]), int(payload.get("product", _PRODUCT))
    timed = _timer(torch, device)
    copies = []
    for size in payload.get("sizes", _SIZES):
        source = torch.ones(size // 2 // 4, dtype=torch.float32, device=device)
        target = torch.empty_like(source)
        copies.append([size, size / timed(functools.partial(target.copy_, source)) / 1e9])
    rates = {}
    for name in ("float32", "tf32", "float16", "bfloat16"):
        dtype = torch.float32 if name == "tf32" else getattr(torch, name)
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
        rates[name] = 2.0 * n**3 / timed(functools.partial(torch.matmul, a, b)) / 1e9
    torch.backends.cuda.matmul.allow_tf32 = False
    one = torch.zeros(1, device=device)
    properties = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return {
        "bandwidth_gb_s": copies,
        "gflops": rates,
        "launch_ms": timed(functools.partial(one.add_, 1)) * 1e3,
        "l2_bytes": int(getattr(properties, "L2_cache_size", 0)),
    }


def _timer(torch: Any, device: Any) -> Callable[[Callable[[], Any]], float]:
    """Seconds of one call, the best of a few series."""

    def synchronise() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def timed(call: Callable[[], Any]) -> float:
        series = []
        for _ in range(_BEST_OF + 1):  # the first one warms up
            synchronise()
            began = time.perf_counter()
            for _ in range(_REPEATS):
                call()
            synchronise()
            series.append((time.perf_counter() - began) / _REPEATS)
        return min(series[1:])

    return timed
