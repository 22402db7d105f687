"""Finds what limits a kernel, by comparing its time with the times that each limit alone would allow."""

from __future__ import annotations

from typing import Literal, NamedTuple

from kernelwright.evaluator.profile.ceilings import Ceilings

Bound = Literal["memory", "compute", "latency", "unknown"]

_SHARE_THAT_EXPLAINS = 1 / 3


class Placement(NamedTuple):
    """The times that each limit alone would allow, in ms, and the limit that decides."""

    bound: Bound
    memory_ms: float
    compute_ms: float
    overhead_ms: float
    instructions_ms: float


def place(
    latency_ms: float,
    bytes_moved: float,
    flops: float,
    ceilings: Ceilings | None,
    *,
    working_set_bytes: float | None = None,
    calls: int = 1,
    instructions: float = 0.0,
) -> Placement:
    """Decide what limits a kernel of a measured latency, by arithmetic alone.

    - memory = ``bytes_moved`` / bandwidth of the working set; compute = ``flops`` / peak; overhead = an empty call,
      times ``calls``; instructions = ``instructions`` / peak instruction rate.
    - "unknown" without ceilings or a latency.
    - "latency" if the overhead is longer than memory and compute.
    - The longer one of memory and compute, "memory" if both are equal, if it explains a third of the latency.
    - If neither does: "compute" if the counted instructions explain a third (there are too many for the work), else
      "latency": the kernel waits, for data that depends on other data, or for an unknown reason.

    Args:
        latency_ms: one forward.
        bytes_moved: bytes that one forward must read and write at least.
        flops: floating-point operations of one forward.
        ceilings: None if they are not known.
        working_set_bytes: bytes that repeated forwards cycle through; None for ``bytes_moved``.
        calls: C functions called in one forward.
        instructions: executed in one forward; 0 if they were not counted.
    """
    if ceilings is None or not min(latency_ms, ceilings.bandwidth_gb_s, ceilings.peak_gflops) > 0:
        return Placement("unknown", 0.0, 0.0, 0.0, 0.0)
    bandwidth = ceilings.bandwidth_for(bytes_moved if working_set_bytes is None else working_set_bytes)
    memory_ms = bytes_moved / bandwidth / 1e6
    compute_ms = flops / ceilings.peak_gflops / 1e6
    overhead_ms = ceilings.null_ms * calls
    instructions_ms = instructions / ceilings.peak_gips / 1e6 if ceilings.peak_gips > 0 else 0.0
    explains = latency_ms * _SHARE_THAT_EXPLAINS
    bound: Bound = "latency"
    if overhead_ms > max(memory_ms, compute_ms):
        bound = "latency"
    elif max(memory_ms, compute_ms) >= explains:
        bound = "memory" if memory_ms >= compute_ms else "compute"
    elif instructions_ms >= explains:
        bound = "compute"
    return Placement(bound, memory_ms, compute_ms, overhead_ms, instructions_ms)


def placement_metrics(placement: Placement, latency_ms: float, bytes_moved: float, flops: float) -> dict[str, float]:
    """Rates achieved, the times of :class:`Placement`, and the distance to the roofline (1 is on it)."""
    found: dict[str, float] = {}
    if bytes_moved > 0:
        found["arithmetic_intensity"] = flops / bytes_moved
    if latency_ms > 0:
        found |= {"gflops": flops / latency_ms / 1e6, "gbytes_per_s": bytes_moved / latency_ms / 1e6}
    if placement.bound == "unknown":
        return found
    found |= {"time_memory_ms": placement.memory_ms, "time_compute_ms": placement.compute_ms}
    found["overhead_ms"] = placement.overhead_ms
    if placement.instructions_ms > 0:
        found["time_instructions_ms"] = placement.instructions_ms
    longest = max(placement.memory_ms, placement.compute_ms)
    if longest > 0:
        found["distance_to_roofline"] = latency_ms / longest
    return found


def placement_note(placement: Placement, latency_ms: float) -> str:
    """A note of the limit, with the numbers behind it."""
    if placement.bound == "unknown":
        return "what limits it is unknown: the ceilings of this machine are"
    shares = [
        f"{what} {needed_ms / latency_ms:.0%}"
        for what, needed_ms in (
            ("necessary memory traffic", placement.memory_ms),
            ("arithmetic", placement.compute_ms),
            ("issuing its instructions", placement.instructions_ms),
            ("calls", placement.overhead_ms),
        )
        if needed_ms > 0
    ]
    return f"{placement.bound}-bound; at this machine's ceilings, of its time {', '.join(shares)}"
