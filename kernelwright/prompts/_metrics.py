"""Selects the numbers of a profile to show for a kernel's bottleneck, and says what each of them means.

All numbers at once lead to worse advice than the few that are relevant to the bottleneck (CudaForge, arXiv 2511.01884:
1.41x with all of them, 1.77x with 24). The names are those of the referee's profiles. There, numbers of single GPU
kernels are keyed "kernel/name"; they are looked up by their last part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from kernelwright.records import Profile

__all__ = ["Metric", "metrics_for"]

Bound = Literal["memory", "compute", "latency", "launch", "unknown"]

MAX_METRICS = 16
_KERNELS_SHOWN = 3

MEANINGS: Final[Mapping[str, str]] = {
    # of a whole forward
    "arithmetic_intensity": "flop per byte that has to move",
    "branch_misses_per_call": "mispredicted branches (simulated)",
    "data_reads_per_call": "load instructions executed",
    "data_writes_per_call": "store instructions executed",
    "distance_to_roofline": "latency over the least that memory or arithmetic allows; 1 is on the roofline",
    "dram_bytes": "bytes moved from and to DRAM",
    "expected_us": "us a forward that a model of an H100 expects; it was not measured",
    "explicit_vector_loops": "loops written with vector types",
    "gbytes_per_s": "GB/s of necessary traffic achieved",
    "gflops": "GFLOP/s achieved",
    "instructions_per_call": "instructions executed",
    "instructions_per_flop": "instructions for each floating-point operation",
    "l1_misses_per_call": "misses of the L1 data cache (simulated)",
    "llc_misses_per_call": "misses of the last-level cache (simulated)",
    "mca_cycles_per_iteration": "cycles for an iteration of the innermost loop (llvm-mca)",
    "mca_instructions_per_cycle": "instructions a cycle in the innermost loop (llvm-mca)",
    "missed_loops": "loops that the compiler did not vectorise",
    "occupancy": "bound on resident warps, 0 to 1",
    "overhead_ms": "ms of calls or launches alone",
    "share_in_kernels": "share of the latency in which GPU kernels run, 0 to 1",
    "share_of_bandwidth": "share of the measured bandwidth, 0 to 1",
    "share_of_peak_flops": "share of the measured arithmetic peak, 0 to 1",
    "shared_bytes": "bytes of shared memory a block",
    "spilled_bytes": "bytes of spilled registers a thread",
    "time_compute_ms": "ms that the arithmetic takes at the measured peak",
    "time_instructions_ms": "ms that issuing its instructions takes at the measured rate",
    "time_memory_ms": "ms that the necessary traffic takes at the measured bandwidth",
    "traffic_ratio": "bytes moved from cold caches over the necessary ones; 1 is ideal",
    "vector_bytes": "bytes of the widest vectors that the compiler used",
    "vectorised_loops": "loops that the compiler vectorised",
    # of one GPU kernel
    "dram_pct": "% of DRAM's peak throughput",
    "float32_units_pct": "% of the float32 units' peak",
    "l1_hit_pct": "% of L1 accesses that hit",
    "l1_pct": "% of L1's and shared memory's peak throughput",
    "l2_hit_pct": "% of L2 accesses that hit",
    "l2_pct": "% of L2's peak throughput",
    "launches": "launches profiled",
    "load_bytes_used_pct": "% of the bytes of fetched sectors that loads use; less than 100 is uncoalesced",
    "matrix_units_pct": "% of the matrix units' peak",
    "memory_pct": "% of the peak throughput of the busiest memory level",
    "occupancy_bound_pct": "% of resident warps that registers, shared memory and block size allow",
    "occupancy_pct": "% of resident warps achieved",
    "registers": "registers a thread",
    "share": "share of the time of all kernels, 0 to 1",
    "sm_pct": "% of the multiprocessors' peak throughput",
    "time_ms": "ms of one launch (ncu, cold caches) or of one forward (torch.profiler)",
    "uniform_branches_pct": "% of branches on which all threads of a warp agree",
    "waves": "waves of blocks; below 1 the grid leaves multiprocessors idle",
}
_STALL_MEANING = "% of their time that warps wait for this reason"
_STALLS = "stall_*"

# In the order in which to look at them.
CPU: Final[Mapping[Bound, tuple[str, ...]]] = {
    "memory": (
        "distance_to_roofline", "time_memory_ms", "gbytes_per_s", "traffic_ratio", "llc_misses_per_call",
        "l1_misses_per_call", "data_writes_per_call", "arithmetic_intensity", "vectorised_loops", "missed_loops",
    ),
    "compute": (
        "distance_to_roofline", "time_compute_ms", "time_instructions_ms", "gflops", "instructions_per_flop",
        "mca_instructions_per_cycle", "mca_cycles_per_iteration", "data_reads_per_call", "l1_misses_per_call",
        "vector_bytes",
        "vectorised_loops", "explicit_vector_loops", "missed_loops",
    ),
    "latency": (
        "distance_to_roofline", "overhead_ms", "time_instructions_ms", "instructions_per_call",
        "branch_misses_per_call", "l1_misses_per_call", "mca_instructions_per_cycle", "missed_loops",
        "vectorised_loops",
    ),
    "launch": ("overhead_ms", "time_memory_ms", "time_compute_ms", "instructions_per_call"),
    "unknown": (
        "instructions_per_call", "instructions_per_flop", "traffic_ratio", "l1_misses_per_call", "vectorised_loops",
        "missed_loops", "vector_bytes",
    ),
}  # fmt: skip
GPU: Final[Mapping[Bound, tuple[str, ...]]] = {
    "memory": ("distance_to_roofline", "share_of_bandwidth", "gbytes_per_s", "traffic_ratio", "dram_bytes"),
    "compute": ("distance_to_roofline", "share_of_peak_flops", "gflops", "arithmetic_intensity"),
    "latency": ("distance_to_roofline", "share_in_kernels", "share_of_bandwidth", "share_of_peak_flops"),
    "launch": ("share_in_kernels", "overhead_ms", "time_memory_ms", "time_compute_ms"),
    "unknown": ("expected_us", "registers", "spilled_bytes", "shared_bytes", "occupancy", "gbytes_per_s", "gflops"),
}
GPU_KERNEL: Final[Mapping[Bound, tuple[str, ...]]] = {
    "memory": (
        "time_ms", "memory_pct", "dram_pct", "l2_pct", "l1_pct", "load_bytes_used_pct", "l2_hit_pct", "l1_hit_pct",
        "occupancy_pct", _STALLS,
    ),
    "compute": (
        "time_ms", "sm_pct", "matrix_units_pct", "float32_units_pct", "uniform_branches_pct", "occupancy_pct",
        "registers", _STALLS,
    ),
    "latency": (
        "time_ms", "sm_pct", "memory_pct", "occupancy_pct", "occupancy_bound_pct", "waves", "registers", _STALLS,
    ),
    "launch": ("time_ms", "launches", "waves", "share"),
    "unknown": ("time_ms", "share", "occupancy_pct", "registers"),
}  # fmt: skip
_CPU_RUNGS = frozenset({"callgrind", "compiler"})
_GPU_RUNGS = frozenset({"ncu", "torch.profiler", "static"})


class Metric(NamedTuple):
    """One number of a profile with its name there, its meaning and its unit."""

    name: str
    value: float
    meaning: str


def metrics_for(profile: Profile | None) -> tuple[Metric, ...]:
    """The numbers that are relevant to the kernel's bottleneck, most telling first; at most ``MAX_METRICS``."""
    if profile is None:
        return ()
    on_gpu = profile.rung in _GPU_RUNGS or (profile.rung not in _CPU_RUNGS and any("/" in m for m in profile.metrics))
    whole = (GPU if on_gpu else CPU)[profile.bound]
    found = [Metric(name, profile.metrics[name], MEANINGS[name]) for name in whole if name in profile.metrics]
    if on_gpu:
        found += _of_kernels(profile)
    return tuple(found[:MAX_METRICS])


def _of_kernels(profile: Profile) -> list[Metric]:
    """The numbers of the first few GPU kernels in a profile, which take the most time, in the order of the profile."""
    kernels = list(dict.fromkeys(name.rpartition("/")[0] for name in profile.metrics if "/" in name))[:_KERNELS_SHOWN]
    found = []
    for kernel in kernels:
        own = {name.rpartition("/")[2]: name for name in profile.metrics if name.rpartition("/")[0] == kernel}
        for wanted in GPU_KERNEL[profile.bound]:
            names = _stalls(own, profile) if wanted == _STALLS else [wanted]
            found += [
                Metric(own[name], profile.metrics[own[name]], MEANINGS.get(name, _STALL_MEANING))
                for name in names
                if name in own
            ]
    return found


def _stalls(own: Mapping[str, str], profile: Profile) -> list[str]:
    """The names of a kernel's stalls, the longest first."""
    return sorted((name for name in own if name.startswith("stall_")), key=lambda name: -profile.metrics[own[name]])
