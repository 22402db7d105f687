"""A simple roofline: the nearest limit of a kernel (Williams, Waterman and Patterson, CACM 52(4), 2009)."""

from __future__ import annotations

import time
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

Bound = Literal["memory", "compute", "latency", "unknown"]

COPY_BYTES = 64 << 20
COPY_REPEATS = 3
FMA_PORTS = 2
FLOPS_PER_FMA = 2
DEFAULT_MHZ = 2500.0
LATENCY_BOUND_MS = 0.03  # below this, calls and allocation outweigh the loops
MEMORY_BOUND_SHARE = 0.5  # of the peak bandwidth


class Peaks(NamedTuple):
    """The peak bandwidth and throughput of this machine with the timed threads."""

    bandwidth_gb_s: float
    gflop_s: float


class Placement(NamedTuple):
    """A kernel's place on the roofline. ``efficiency`` is ideal time over measured time, in 0..1."""

    bound: Bound
    efficiency: float
    ideal_ms: float
    achieved_gb_s: float
    achieved_gflop_s: float


@lru_cache(maxsize=4)
def machine_peaks(threads: int = 1) -> Peaks:
    """Bandwidth of a plain copy beyond the caches (measured, about 0.1 s), and FMA throughput (from the CPU's name)."""
    return Peaks(_copy_bandwidth_gb_s(), _fma_gflop_s(threads))


def _copy_bandwidth_gb_s() -> float:
    import numpy as np

    source = np.ones(COPY_BYTES // 4, dtype=np.float32)
    target = np.zeros_like(source)
    best_s = float("inf")
    for _ in range(COPY_REPEATS):
        start = time.perf_counter()
        np.copyto(target, source)
        best_s = min(best_s, time.perf_counter() - start)
    return 2 * COPY_BYTES / best_s / 1e9


def _fma_gflop_s(threads: int, cpuinfo: Path = Path("/proc/cpuinfo")) -> float:
    """Peak float32 throughput: clock, vector width and FMA ports, times the threads."""
    fields: dict[str, str] = {}
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    lanes = 16 if "avx512f" in flags else 8 if "avx2" in flags else 4
    mhz = float(fields.get("cpu MHz") or DEFAULT_MHZ)
    return mhz / 1000 * lanes * FMA_PORTS * FLOPS_PER_FMA * threads


def place(latency_ms: float, bytes_moved: float, flops: float, peaks: Peaks) -> Placement:
    """Place a kernel on the roofline by its measured latency.

    A kernel that is near neither limit counts as compute-bound: it executes too many instructions for its traffic.
    """
    memory_ms = bytes_moved / peaks.bandwidth_gb_s / 1e6
    compute_ms = flops / peaks.gflop_s / 1e6
    ideal_ms = max(memory_ms, compute_ms)
    bound: Bound = "compute"
    if latency_ms < LATENCY_BOUND_MS and ideal_ms < MEMORY_BOUND_SHARE * latency_ms:
        bound = "latency"
    elif memory_ms >= compute_ms and memory_ms >= MEMORY_BOUND_SHARE * latency_ms:
        bound = "memory"
    return Placement(
        bound,
        min(1.0, ideal_ms / latency_ms) if latency_ms > 0 else 0.0,
        ideal_ms,
        bytes_moved / latency_ms / 1e6 if latency_ms > 0 else 0.0,
        flops / latency_ms / 1e6 if latency_ms > 0 else 0.0,
    )
