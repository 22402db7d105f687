"""Stage 8 on a GPU: turn the profilers' reports into a candidate's limit, and the few numbers that a Judge needs.

The ladder: ``ncu`` (hardware counters), ``torch.profiler`` (times of kernels), ``static`` (machine code), ``none``.
A profile's rung is the best one that gave evidence; evidence of lower rungs is kept, too. The candidate's limit is
decided first, by arithmetic alone (:func:`classify`).

Numbers of single kernels are keyed by the kernel's name: ``row_softmax/memory_pct``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from kernelwright.evaluator.profile.events import EventsRejectedError, KernelEvents
from kernelwright.evaluator.profile.gpu_ceilings import GpuCeilings
from kernelwright.evaluator.profile.ncu import (
    DRAM_THROUGHPUT,
    MEMORY_THROUGHPUT,
    SM_THROUGHPUT,
    STALLS,
    KernelCounters,
    NcuFailedError,
    function_name,
)
from kernelwright.evaluator.profile.placement import Placement, place, placement_metrics
from kernelwright.evaluator.profile.text import plain, plural
from kernelwright.records import KernelResources, Profile

__all__ = ["Classification", "GpuWork", "classify", "profile_gpu"]

Bound = Literal["memory", "compute", "latency", "launch", "unknown"]
Limiter = Literal["registers", "shared memory", "warps", "blocks"]

# From the rule of speed of light in Nsight Compute.
_BUSY_PCT = 60.0
_FULL_WAVES = 1.0
# Below this share, kernels do not explain the time that the host measures.
_SHARE_IN_KERNELS = 0.5
_OVERHEAD_THAT_EXPLAINS = 1 / 3
# Shares of all kernels' time. Own kernels need the first to represent the candidate, and the second to need no note.
_SHARE_THAT_SPEAKS = 0.5
_OWN_SHARE_WORTH_A_NOTE = 0.9

_MAX_KERNELS = 8
_STALLS_SHOWN = 3
_STALL_WORTH_A_NOTE_PCT = 10.0
_SHARE_WORTH_A_NOTE = 0.05
_TRAFFIC_WORTH_A_NOTE = 1.5
_LOW_HIT_PCT = 50.0
_LOW_COALESCING_PCT = 60.0
_LOW_OCCUPANCY_PCT = 50.0
_STATIC_NOTES = 6

# The short list of metrics that a Judge can act on. Of each the first name that the chip has counts.
_SHOWN: Final[Mapping[str, tuple[str, ...]]] = {
    "sm_pct": (SM_THROUGHPUT,),
    "memory_pct": (MEMORY_THROUGHPUT,),
    "dram_pct": (DRAM_THROUGHPUT, "dram__throughput.avg.pct_of_peak_sustained_elapsed"),
    "l2_pct": ("lts__throughput.avg.pct_of_peak_sustained_active",),
    "l1_pct": ("l1tex__throughput.avg.pct_of_peak_sustained_active",),
    "l2_hit_pct": ("lts__t_sector_hit_rate.pct",),
    "l1_hit_pct": ("l1tex__t_sector_hit_rate.pct",),
    "load_bytes_used_pct": ("smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",),
    "uniform_branches_pct": ("smsp__sass_average_branch_targets_threads_uniform.pct",),
    "matrix_units_pct": (
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    ),
    "float32_units_pct": (
        "sm__inst_executed_pipe_fp32.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    ),
    "occupancy_pct": ("sm__warps_active.avg.pct_of_peak_sustained_active",),
    "occupancy_bound_pct": ("sm__maximum_warps_per_active_cycle_pct",),
    "registers": ("launch__registers_per_thread",),
    "waves": ("launch__waves_per_multiprocessor",),
}
_LIMITS: Final[Mapping[str, Limiter]] = {  # in the order of `occupancy`, which decides between equal limits
    "launch__occupancy_limit_warps": "warps",
    "launch__occupancy_limit_blocks": "blocks",
    "launch__occupancy_limit_registers": "registers",
    "launch__occupancy_limit_shared_mem": "shared memory",
}


class GpuWork(NamedTuple):
    """One forward of the candidate on the timed variant.

    Attributes:
        latency_ms: by the referee's clock.
        bytes_moved: bytes that it must read and write at least. ``working_set_bytes``: bytes that repeated forwards
            cycle through; None for ``bytes_moved``.
        flops: floating-point operations it needs, and ``dtype`` of their inputs, as ``GpuCeilings`` names them.
        profiled: number of forwards that the profilers saw.
    """

    latency_ms: float
    bytes_moved: float
    flops: float
    dtype: str = "float32"
    working_set_bytes: float | None = None
    profiled: int = 1


class Classification(NamedTuple):
    """A candidate's limit, and a sentence with the numbers that show it."""

    bound: Bound
    reason: str


def profile_gpu(
    work: GpuWork,
    ceilings: GpuCeilings | None,
    *,
    counters: Sequence[KernelCounters] | NcuFailedError,
    events: Sequence[KernelEvents] | EventsRejectedError,
    static: Profile | None = None,
) -> Profile:
    """The profile of a winner, from the best rung that gave evidence.

    Args:
        counters: from ncu, or the error. They are assumed to be of the candidate's own kernels.
        events: of all kernels, including foreign ones, from torch.profiler, or the error.
        static: the profile of the machine code (``profile_cuda``, ``profile_triton``); its resources are kept.
    """
    counted = [] if isinstance(counters, NcuFailedError) else list(counters)
    timed = [] if isinstance(events, EventsRejectedError) else list(events)
    placement = _place(work, ceilings, sum(kernel.launches for kernel in timed or counted))
    verdict = classify(work, placement, counted, timed)
    machine_code = static.kernels if static is not None else ()
    if counted:
        rung, details = "ncu", _counter_notes(counted, work)
    elif timed:
        rung, details = "torch.profiler", _event_notes(timed)
    elif machine_code:
        rung, details = "static", []
    else:
        rung, details = "none", []
    own = _own_share(counted, timed)
    if own is not None and own < _OWN_SHARE_WORTH_A_NOTE:
        details.append(f"its own kernels take {own:.0%} of the time of all kernels")
    missing = [f"no hardware counters: {counters}"] if isinstance(counters, NcuFailedError) else []
    missing += [f"no times of kernels: {events}"] if isinstance(events, EventsRejectedError) else []
    known = [] if static is None else list(static.notes[:_STATIC_NOTES] if counted else static.notes)
    return Profile(
        rung=rung,
        bound=verdict.bound,
        metrics=_metrics(work, ceilings, placement, verdict, counted, timed),
        notes=(verdict.reason, *details, *known, *missing),
        kernels=_resources(counted, machine_code),
    )


# -------------------------------------------------------------------------------------------------- what limits it


def classify(
    work: GpuWork, placement: Placement, counters: Sequence[KernelCounters], events: Sequence[KernelEvents]
) -> Classification:
    """Decide what limits a candidate, by arithmetic alone.

    1. "launch" if kernels take less than half of the latency that the host measures.
    2. Else its own kernel with the most time decides, unless foreign kernels are known to take more time than its own.
       The result is "memory" or "compute", the busier one, if it reaches 60% of its peak ("memory" if both are equal);
       "latency" if neither does. Memory is any of its levels; the reason says which.
    3. Else :func:`place` decides, by bytes and operations against the measured ceilings. The result is "launch" if
       launches take the longest and explain a third of the latency.
    """
    share = _share_in_kernels(work, counters, events)
    if share is not None and share < _SHARE_IN_KERNELS:
        launches = sum(kernel.launches for kernel in events or counters) / work.profiled
        return Classification(
            "launch", f"launch-bound: kernels run for {share:.0%} of its time ({launches:g} launches)"
        )
    own = _own_share(counters, events)
    for kernel in counters[:1] if own is None or own >= _SHARE_THAT_SPEAKS else ():
        sm, memory = kernel.metrics.get(SM_THROUGHPUT), kernel.metrics.get(MEMORY_THROUGHPUT)
        if sm is not None and memory is not None:
            return _by_speed_of_light(kernel, sm, memory)
    return _by_ceilings(work, placement)


def _by_speed_of_light(kernel: KernelCounters, sm: float, memory: float) -> Classification:
    name = plain(kernel.kernel, 60)
    said = f"{name} reaches {memory:.0f}% of the memory's peak and {sm:.0f}% of the multiprocessors'"
    if max(sm, memory) < _BUSY_PCT:
        waves = kernel.metrics.get("launch__waves_per_multiprocessor")
        if waves is not None and waves < _FULL_WAVES:
            return Classification("latency", f"latency-bound: {said}; its grid fills {waves:.2g} of one wave")
        return Classification("latency", f"latency-bound: {said}")
    if memory >= sm:
        return Classification("memory", f"memory-bound: {said}{_busiest_level(kernel)}")
    return Classification("compute", f"compute-bound: {said}")


def _busiest_level(kernel: KernelCounters) -> str:
    levels = {"DRAM": "dram_pct", "the L2 cache": "l2_pct", "the L1 cache and shared memory": "l1_pct"}
    shown = _short_list(kernel)
    known = {level: shown[name] for level, name in levels.items() if name in shown}
    busiest = max(known, key=lambda level: known[level], default="")
    return f"; of its levels {busiest} is the busiest, {known[busiest]:.0f}%" if busiest else ""


def _by_ceilings(work: GpuWork, placement: Placement) -> Classification:
    if placement.bound == "unknown":
        return Classification("unknown", f"what limits it is unknown: this GPU's ceilings in {work.dtype} are")
    longest = max(placement.memory_ms, placement.compute_ms)
    explains = work.latency_ms * _OVERHEAD_THAT_EXPLAINS
    launch = placement.bound == "latency" and placement.overhead_ms > max(longest, explains)
    bound: Bound = "launch" if launch else placement.bound
    shares = [
        f"{what} {needed_ms / work.latency_ms:.0%}"
        for what, needed_ms in (
            ("necessary memory traffic", placement.memory_ms),
            ("arithmetic", placement.compute_ms),
            ("launches", placement.overhead_ms),
        )
        if needed_ms > 0
    ]
    return Classification(bound, f"{bound}-bound; at this GPU's ceilings, of its time {', '.join(shares)}")


def _share_in_kernels(
    work: GpuWork, counters: Sequence[KernelCounters], events: Sequence[KernelEvents]
) -> float | None:
    """Device time over latency; None without events, which time all kernels of a forward.

    The times of ncu are not used, because it counts own kernels alone, on cold caches.
    """
    if not events or not (work.latency_ms > 0 and work.profiled > 0):
        return None
    return sum(kernel.device_ms for kernel in events) / work.profiled / work.latency_ms


def _own_share(counters: Sequence[KernelCounters], events: Sequence[KernelEvents]) -> float | None:
    """The share of all kernels' time in kernels with counters; None if counters or events are missing."""
    if not (counters and events):
        return None
    names = {kernel.kernel for kernel in counters}
    return sum(event.share for event in events if event.kernel in names)


def _place(work: GpuWork, ceilings: GpuCeilings | None, launches: int) -> Placement:
    return place(
        work.latency_ms,
        work.bytes_moved,
        work.flops,
        None if ceilings is None else ceilings.for_placement(work.dtype),
        working_set_bytes=work.working_set_bytes,
        calls=max(1, round(launches / max(1, work.profiled))),
    )


# --------------------------------------------------------------------------------------------------------- numbers


def _metrics(
    work: GpuWork,
    ceilings: GpuCeilings | None,
    placement: Placement,
    verdict: Classification,
    counters: Sequence[KernelCounters],
    events: Sequence[KernelEvents],
) -> dict[str, float]:
    found = placement_metrics(placement, work.latency_ms, work.bytes_moved, work.flops)
    found |= _roofline(work, ceilings, found)
    share = _share_in_kernels(work, counters, events)
    if share is not None:
        found["share_in_kernels"] = share
    moved = _dram_bytes(counters, work)
    if moved is not None:
        found["dram_bytes"] = moved
        if work.bytes_moved > 0:
            found["traffic_ratio"] = moved / work.bytes_moved
    for name, kernel in _named(counters):
        found |= {f"{name}/{key}": value for key, value in _short_list(kernel).items()}
    if not counters:
        for number, event in enumerate(events[:_MAX_KERNELS]):
            name = _unique(event.kernel, [other.kernel for other in events[:number]])
            found |= {f"{name}/time_ms": event.device_ms / work.profiled, f"{name}/share": event.share}
    return found


def _roofline(work: GpuWork, ceilings: GpuCeilings | None, rates: Mapping[str, float]) -> dict[str, float]:
    """The achieved rates as shares of the GPU's ceilings for the working set and the dtype."""
    if ceilings is None or not work.latency_ms > 0:
        return {}
    working_set = work.bytes_moved if work.working_set_bytes is None else work.working_set_bytes
    found = {"share_of_bandwidth": rates["gbytes_per_s"] / ceilings.bandwidth_for(working_set)}
    tflops = ceilings.tflops_by_dtype.get(work.dtype)
    return found if tflops is None else found | {"share_of_peak_flops": rates["gflops"] / tflops / 1e3}


def _dram_bytes(counters: Sequence[KernelCounters], work: GpuWork) -> float | None:
    """DRAM bytes of one forward, from every kernel's median launch times its launches; None if one is unknown."""
    total = 0.0
    for kernel in counters:
        ways = [kernel.metrics.get(f"dram__bytes_{way}.sum") for way in ("read", "write")]
        if None in ways:
            return None
        total += kernel.launches * sum(way for way in ways if way is not None)
    return total / work.profiled if counters else None


def _short_list(kernel: KernelCounters) -> dict[str, float]:
    found: dict[str, float] = {}
    if kernel.total_ms is not None:
        found["time_ms"] = kernel.total_ms / kernel.launches
    found["launches"] = float(kernel.launches)
    for name, metrics in _SHOWN.items():
        known = [kernel.metrics[metric] for metric in metrics if metric in kernel.metrics]
        found |= {name: known[0]} if known else {}
    return found | {f"stall_{reason}_pct": share for reason, share in _stalls(kernel)}


def _stalls(kernel: KernelCounters) -> list[tuple[str, float]]:
    """The longest waits of a kernel's warps, by reason, in per cent of the warps' lifetime."""
    shares = {reason: kernel.metrics.get(f"smsp__warp_issue_stalled_{reason}_per_warp_active.pct") for reason in STALLS}
    known = [(reason, share) for reason, share in shares.items() if share]
    return sorted(known, key=lambda stall: -stall[1])[:_STALLS_SHOWN]


def _named(counters: Sequence[KernelCounters]) -> list[tuple[str, KernelCounters]]:
    """The kernels with the most time, by unique names: instantiations of one template get numbers."""
    shown = counters[:_MAX_KERNELS]
    return [(_unique(kernel.kernel, [k.kernel for k in shown[:i]]), kernel) for i, kernel in enumerate(shown)]


def _unique(name: str, before: Sequence[str]) -> str:
    plain_name = plain(name, 60)
    again = before.count(name)
    return f"{plain_name}#{again + 1}" if again else plain_name


# ----------------------------------------------------------------------------------------------------------- notes


def _counter_notes(counters: Sequence[KernelCounters], work: GpuWork) -> list[str]:
    total_ms = sum(kernel.total_ms or 0.0 for kernel in counters)
    notes = []
    for name, kernel in _named(counters):
        share = (kernel.total_ms or 0.0) / total_ms if total_ms > 0 else 1.0
        if share >= _SHARE_WORTH_A_NOTE or kernel is counters[0]:
            notes.append(_kernel_note(name, kernel, share))
    more = len(counters) - _MAX_KERNELS
    if more > 0:
        notes.append(f"{plural(more, 'more kernel')} with less time")
    moved = _dram_bytes(counters, work)
    if moved is not None and work.bytes_moved > 0 and moved >= _TRAFFIC_WORTH_A_NOTE * work.bytes_moved:
        notes.append(f"from cold caches it moves {moved / work.bytes_moved:.1f} times the necessary bytes")
    return notes


def _kernel_note(name: str, kernel: KernelCounters, share: float) -> str:
    shown = _short_list(kernel)
    times = f", {kernel.launches} launches, that of median duration counted" if kernel.launches > 1 else ""
    parts = [f"{share:.0%} of the time of its own kernels{times}"]
    parts += [f"warps wait for {STALLS[reason]} {pct:.0f}% of their time" for reason, pct in _stalls(kernel)
              if pct >= _STALL_WORTH_A_NOTE_PCT]  # fmt: skip
    parts += _occupancy_parts(kernel, shown)
    for metric, limit, said in (
        ("load_bytes_used_pct", _LOW_COALESCING_PCT, "of the bytes that its loads fetch it uses"),
        ("l2_hit_pct", _LOW_HIT_PCT, "accesses find their data in the L2 cache in"),
    ):
        if metric in shown and shown[metric] < limit:
            parts.append(f"{said} {shown[metric]:.0f}%")
    return f"{name}: {'; '.join(parts)}"


def _occupancy_parts(kernel: KernelCounters, shown: Mapping[str, float]) -> list[str]:
    waves, achieved = shown.get("waves"), shown.get("occupancy_pct")
    if waves is not None and waves < _FULL_WAVES:
        return [f"its grid fills {waves:.2g} of one wave: more or smaller blocks would use more multiprocessors"]
    if achieved is None or achieved >= _LOW_OCCUPANCY_PCT:
        return []
    limiter = _limiter(kernel)
    return [f"occupancy {achieved:.0f}%" + (f", limited by {limiter}" if limiter else "")]


def _limiter(kernel: KernelCounters) -> Limiter | None:
    """The resource that limits the number of blocks on a multiprocessor."""
    known = [(kernel.metrics[metric], limiter) for metric, limiter in _LIMITS.items() if metric in kernel.metrics]
    return min(known, key=lambda limit: limit[0])[1] if known else None


def _event_notes(events: Sequence[KernelEvents]) -> list[str]:
    return [
        f"{plain(event.kernel, 60)}: {event.share:.0%} of the time of all kernels, {plural(event.launches, 'launch')}"
        for event in events[:_MAX_KERNELS]
        if event.share >= _SHARE_WORTH_A_NOTE
    ]


# ------------------------------------------------------------------------------------------------------- resources


def _resources(
    counters: Sequence[KernelCounters], machine_code: Sequence[KernelResources]
) -> tuple[KernelResources, ...]:
    """The machine code's records. Those of the device's architecture are completed by the launches' data."""
    found = list(machine_code)
    for kernel in counters[:_MAX_KERNELS]:
        if not kernel.architecture:
            continue
        same = [
            number
            for number, known in enumerate(found)
            if known.architecture == kernel.architecture and function_name(known.kernel) == kernel.kernel
        ]
        if len(same) > 1:  # several configurations, and ncu does not say which one it saw
            continue
        base = KernelResources(kernel=kernel.kernel, architecture=kernel.architecture)
        base = found[same[0]] if same else base
        launched = base.model_copy(update=_launched(kernel))
        if same:
            found[same[0]] = launched
        else:
            found.append(launched)
    return tuple(found)


def _launched(kernel: KernelCounters) -> dict[str, object]:
    """The known data of the launch itself."""
    metrics = kernel.metrics
    block = metrics.get("launch__block_size")
    shared = [metrics.get(f"launch__shared_mem_per_block_{part}") for part in ("static", "dynamic")]
    limits = [metrics[metric] for metric in _LIMITS if metric in metrics]
    occupancy = metrics.get("sm__maximum_warps_per_active_cycle_pct")
    registers = metrics.get("launch__registers_per_thread")
    found: dict[str, object | None] = {
        "registers": None if registers is None else int(registers),
        "shared_bytes": None if None in shared else int(sum(part for part in shared if part is not None)),
        "block": None if block is None else int(block),
        "blocks_per_processor": int(min(limits)) if limits else None,
        "occupancy": None if occupancy is None else round(occupancy / 100, 4),
        "limiter": _limiter(kernel),
    }
    return {name: value for name, value in found.items() if value is not None}
