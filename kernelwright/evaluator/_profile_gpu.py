"""Stage 8 on a GPU: what limits a winner, from the best rung of a ladder that gave evidence.

The rungs: ``ncu`` (hardware counters), ``torch.profiler`` (which kernels took how long), ``static`` (registers, shared
memory, occupancy, by the compiler). What decides is arithmetic over them, and comes first; then the few numbers that a
Judge can act on, each with the kernel that it belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from kernelwright.evaluator._gpu_ceilings import GpuCeilings
from kernelwright.evaluator._profile_ncu import KernelCounters
from kernelwright.records import Profile

__all__ = ["TimedKernel", "bound_by_counters", "bound_by_roofline", "occupancy_limiter", "profile_gpu"]

Bound = Literal["memory", "compute", "latency", "launch", "unknown"]

_COMPUTE: Final = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
_MEMORY: Final = (
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
)
_BUSY = 60.0  # per cent of a unit's peak from which on that unit limits, as Nsight Compute's own rules have it
_LAUNCHING = 0.5  # kernels that take less than this share of a call's time wait for launches
_FULL_WAVE = 1.0
_WORTH_A_NOTE = 10.0  # per cent of a warp's time
_MOST_KERNELS = 4
_STALLS = {
    "smsp__warp_issue_stalled_memory_dependency_per_warp_active.pct": "data from memory",
    "smsp__warp_issue_stalled_long_scoreboard_per_warp_active.pct": "data from global or local memory",
    "smsp__warp_issue_stalled_short_scoreboard_per_warp_active.pct": "data from shared memory or special functions",
    "smsp__warp_issue_stalled_barrier_per_warp_active.pct": "other warps at a barrier",
    "smsp__warp_issue_stalled_branch_resolving_per_warp_active.pct": "branches",
}
_LIMITS = {
    "launch__occupancy_limit_registers": "registers",
    "launch__occupancy_limit_shared_mem": "shared memory",
    "launch__occupancy_limit_blocks": "blocks",
    "launch__occupancy_limit_warps": "warps",
}
# By what short name a Judge sees a counter.
_SHORT = {
    "gpu__time_duration.sum": "duration_s",
    _COMPUTE: "compute_pct",
    _MEMORY[0]: "memory_pct",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "dram_pct",
    "dram__bytes_read.sum": "dram_read_bytes",
    "dram__bytes_write.sum": "dram_write_bytes",
    "l1tex__t_sector_hit_rate.pct": "l1_hit_pct",
    "lts__t_sector_hit_rate.pct": "l2_hit_pct",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "warps_active_pct",
    "sm__inst_executed.sum": "instructions",
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active": "tensor_pct",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct": "load_sector_use_pct",
    "launch__registers_per_thread": "registers",
    "launch__waves_per_multiprocessor": "waves",
}


class TimedKernel(NamedTuple):
    """A kernel by torch's profiler: all of its launches in one call."""

    name: str
    us: float
    launches: int


def profile_gpu(
    counters: Sequence[KernelCounters],
    timed: Sequence[TimedKernel],
    static: Profile | None,
    *,
    latency_ms: float,
    bytes_moved: float,
    flops: float,
    dtype: str,
    ceilings: GpuCeilings | None,
    working_set_bytes: float,
    missing: Sequence[str] = (),
) -> Profile:
    """What is known of a winner, by the best rung that has something to say.

    Args:
        counters: of its own kernels, by ncu. timed: all kernels of one call, by torch's profiler.
        static: what the compiler says, kept beside whatever else there is.
        latency_ms: of a call, by the referee's clock. bytes_moved, flops, dtype, working_set_bytes: of the problem.
        missing: why rungs gave nothing, in words.
    """
    busy_ms = sum(kernel.us for kernel in timed) / 1e3
    roof = bound_by_roofline(latency_ms, bytes_moved, flops, dtype, ceilings, working_set_bytes)
    waits = 0 < busy_ms < _LAUNCHING * latency_ms
    bound: Bound = roof
    if counters:
        bound = bound_by_counters(counters[0].values)
    rung = "ncu" if counters else "torch.profiler" if timed else "static" if static and static.kernels else "none"
    if waits:
        bound = "launch"
    metrics = _roofline_metrics(latency_ms, bytes_moved, flops, dtype, ceilings, working_set_bytes)
    if timed:
        metrics |= {"kernels_ms": busy_ms, "kernel_launches": float(sum(kernel.launches for kernel in timed))}
    for kernel in counters[:_MOST_KERNELS]:
        metrics |= {f"{_plain(kernel.name)}.{_SHORT[n]}": v for n, v in kernel.values.items() if n in _SHORT}
    notes = [_first_note(bound, latency_ms, busy_ms, metrics)]
    notes += [note for kernel in counters[:_MOST_KERNELS] for note in _counter_notes(kernel)]
    notes += _time_notes(timed)
    notes += [*(static.notes if static is not None and not counters else ()), *missing]
    kernels = static.kernels if static is not None else ()
    return Profile(rung=rung, bound=bound, metrics=metrics, notes=tuple(notes), kernels=kernels)


def bound_by_counters(values: Mapping[str, float]) -> Bound:
    """What limits one kernel, by how busy the units are: a unit at 60% of its peak limits; if none is, waiting does."""
    compute = values.get(_COMPUTE)
    memory = next((values[name] for name in _MEMORY if name in values), None)
    if compute is None or memory is None:
        return "unknown"
    if max(compute, memory) < _BUSY:
        return "latency"
    return "memory" if memory >= compute else "compute"


def bound_by_roofline(
    latency_ms: float,
    bytes_moved: float,
    flops: float,
    dtype: str,
    ceilings: GpuCeilings | None,
    working_set_bytes: float,
) -> Bound:
    """What limits a call, by the ceilings alone: the longer one of two times, if it explains a third of the call."""
    if ceilings is None or latency_ms <= 0:
        return "unknown"
    memory_ms, compute_ms = _needed_ms(bytes_moved, flops, dtype, ceilings, working_set_bytes)
    if max(memory_ms, compute_ms) < ceilings.launch_ms and latency_ms < 4 * ceilings.launch_ms:
        return "launch"
    if max(memory_ms, compute_ms) < latency_ms / 3:
        return "latency"
    return "memory" if memory_ms >= compute_ms else "compute"


def occupancy_limiter(values: Mapping[str, float]) -> str:
    """What keeps more blocks from residing on a processor; ``grid`` where there are not blocks enough to fill them."""
    if 0 < values.get("launch__waves_per_multiprocessor", _FULL_WAVE) < _FULL_WAVE:
        return "grid"
    limits = {what: values[name] for name, what in _LIMITS.items() if name in values}
    return min(limits, key=lambda what: limits[what]) if limits else ""


def _needed_ms(
    bytes_moved: float, flops: float, dtype: str, ceilings: GpuCeilings, working_set_bytes: float
) -> tuple[float, float]:
    rate = ceilings.gflops.get(dtype, 0.0)
    return bytes_moved / ceilings.bandwidth_for(working_set_bytes) / 1e6, flops / rate / 1e6 if rate > 0 else 0.0


def _roofline_metrics(
    latency_ms: float,
    bytes_moved: float,
    flops: float,
    dtype: str,
    ceilings: GpuCeilings | None,
    working_set_bytes: float,
) -> dict[str, float]:
    found: dict[str, float] = {}
    if bytes_moved > 0:
        found["arithmetic_intensity"] = flops / bytes_moved
    if latency_ms > 0:
        found |= {"gflops": flops / latency_ms / 1e6, "gbytes_per_s": bytes_moved / latency_ms / 1e6}
        if ceilings is not None:
            longest = max(_needed_ms(bytes_moved, flops, dtype, ceilings, working_set_bytes))
            found |= {"distance_to_roofline": latency_ms / longest} if longest > 0 else {}
    return found


def _first_note(bound: Bound, latency_ms: float, busy_ms: float, metrics: Mapping[str, float]) -> str:
    if bound == "unknown":
        return "what limits it is unknown: there are neither counters nor ceilings"
    if bound == "launch" and busy_ms > 0:
        return f"launch-bound: its kernels take {busy_ms / latency_ms:.0%} of a call's time"
    away = metrics.get("distance_to_roofline")
    return f"{bound}-bound" + (f"; {away:.1f} times the time that the roofline allows" if away is not None else "")


def _counter_notes(kernel: KernelCounters) -> list[str]:
    name, values = _plain(kernel.name), kernel.values
    notes = []
    if (compute := values.get(_COMPUTE)) is not None and (memory := values.get(_MEMORY[0])) is not None:
        notes.append(f"{name}: compute at {compute:.0f}% of its peak, memory at {memory:.0f}%")
    if limiter := occupancy_limiter(values):
        active = values.get("sm__warps_active.avg.pct_of_peak_sustained_active")
        share = f" ({active:.0f}% of warps active)" if active is not None else ""
        notes.append(f"{name}: occupancy limited by {limiter}{share}")
    stalls = sorted(((values[n], what) for n, what in _STALLS.items() if n in values), reverse=True)[:2]
    notes += [
        f"{name}: warps wait {part:.0f}% of the time for {what}" for part, what in stalls if part >= _WORTH_A_NOTE
    ]
    used = values.get("smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct")
    if used is not None and used < 75:
        notes.append(f"{name}: loads use {used:.0f}% of the bytes that they fetch; neighbouring threads read apart")
    return notes


def _time_notes(timed: Sequence[TimedKernel]) -> list[str]:
    total = sum(kernel.us for kernel in timed)
    longest = sorted(timed, key=lambda kernel: -kernel.us)[:_MOST_KERNELS]
    return [
        f"{_plain(kernel.name)}: {kernel.us / total:.0%} of the kernels' time in {kernel.launches} launches"
        for kernel in longest
        if total > 0
    ]


def _plain(name: str) -> str:
    """A kernel's name without its arguments, cut, in printable characters."""
    short = name.partition("(")[0].strip().removeprefix("void ") or name
    return "".join(c if c.isprintable() else " " for c in short)[:60]
