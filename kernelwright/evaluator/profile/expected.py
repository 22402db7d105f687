"""The expected time of a Triton candidate on a GPU, from its compiled kernels alone. It is never a measurement.

A model with few constants adds the times of the steps of one forward. A kernel's time is that of its launch, and the
longest of its limits (memory, caches, instructions, shared memory, matrix units, spilled registers, waiting), where
limits that are near each other add up in part. Operators of torch are bytes and flops only. The constants were fitted
to measured times by ``benchmarks/gpu_model.py``, whose record says how well the order of schedules is foretold. The
limits follow the roofline (Williams, Waterman and Patterson, CACM 52(4), 2009); waiting follows Little's law.

It uses no device and no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from kernelwright.evaluator.builds.gpu_resources import access_bytes
from kernelwright.records import KernelResources

__all__ = [
    "EXPECTED",
    "H100",
    "TOLD_APART",
    "Device",
    "Estimate",
    "Facts",
    "KernelFacts",
    "OperatorFacts",
    "expected_us",
    "facts_from",
    "facts_of",
    "level",
    "order",
]

Limit = Literal[
    "memory", "caches", "instructions", "shared memory", "matrix units", "spills", "waiting", "launches", "library"
]

EXPECTED: Final = "expected by a model, not measured"  # what a note of a profile begins with
TOLD_APART: Final = 0.05  # of two expected times: nearer ones count as equal

_WARP = 32
_SCHEDULERS = 4  # of a multiprocessor; each issues one instruction of a warp in a cycle
_MOST = 1e15
_MATRIX_BITS = 16  # torch's products of at most so many bits are done on matrix units
# Operators of torch that move their bytes as fast as memory allows: copies, and products with vectors.
_WHOLE_SPEED = frozenset(
    {"add", "addmv", "cat", "clone", "constant_pad_nd", "copy_", "div", "dot", "fill_", "flip", "full", "mul", "mv"}
    | {"relu", "sub", "zeros", "_to_copy"}
)
_ASYNCHRONOUS = ("LDGSTS", "UTMALDG", "UBLKCP")
_STAGES = 3  # Triton's default


@dataclass(frozen=True)
class KernelFacts:
    """One launch of a kernel.

    Attributes:
        programs: blocks of the grid, of ``threads`` threads; ``resident`` of them fit on a multiprocessor at once.
        instructions: that a thread executes; ``shared_bytes`` that it loads from and stores to shared memory, of which
            the share ``crossed`` collides in the banks; ``spilled_bytes`` that it stores for lack of registers.
        waits: how often a program waits for loads.
        bytes_read, bytes_written: of the launch's tensors; ``bytes_asked``: that all programs load and store.
        matrix_flops: operations on matrix units. Those of wider types count as often as halves would be done meanwhile.
    """

    kernel: str
    programs: int
    threads: int
    resident: int
    instructions: float
    shared_bytes: float
    crossed: float
    spilled_bytes: int
    waits: float
    bytes_read: float
    bytes_written: float
    bytes_asked: float
    matrix_flops: float


@dataclass(frozen=True)
class OperatorFacts:
    """One call of an operator of torch: bytes of its tensors, flops, and bits of an element."""

    operator: str
    bytes: float
    flops: float
    bits: int


Facts = tuple[KernelFacts | OperatorFacts, ...]


class Device(NamedTuple):
    """A GPU as the model sees it: what it has, and the fitted constants.

    Attributes:
        processors: multiprocessors; ``clock_ghz``: of their cycles.
        call_us: of a call, whatever it does; ``launch_us``: of each launch.
        memory_tb_s: memory's rate; ``cache_tb_s``: that of the caches, for all that programs ask for.
        shared_bytes: of shared memory that a multiprocessor moves in a cycle; ``collision``: how much longer those
            take that collide in the banks.
        spill_tb_s: rate of spilled registers, stored and loaded.
        wait_us: of one load that waits for memory; ``instruction_cycles``: of one instruction in a warp that is alone.
        product_tflops, convolution_tflops: of torch's operators in float32; ``library_tb_s``: of its operators that do
            more than copy.
        matrix_tflops: of products on matrix units, which are not fitted.
        sharpness: exponent of the sum of limits; without end, the longest limit alone counts.
    """

    name: str
    processors: int
    clock_ghz: float
    call_us: float
    launch_us: float
    memory_tb_s: float
    cache_tb_s: float
    shared_bytes: float
    collision: float
    spill_tb_s: float
    wait_us: float
    instruction_cycles: float
    product_tflops: float
    convolution_tflops: float
    library_tb_s: float
    matrix_tflops: float = 600.0
    sharpness: float = 3.0


# Fitted by benchmarks/gpu_model.py to benchmarks/results/h100/gpu_model_facts.jsonl: 481 candidates of 95 built-in
# problems, timed on an H100 80GB HBM3 by events with flushed caches. A test fits them again.
H100: Final = Device(
    name="H100",
    processors=132,
    clock_ghz=1.98,
    call_us=3.48,
    launch_us=3.399,
    memory_tb_s=3.078,
    cache_tb_s=9.638,
    shared_bytes=152.0,
    collision=10.53,
    spill_tb_s=0.8412,
    wait_us=0.623,
    instruction_cycles=2.801,
    product_tflops=47.39,
    convolution_tflops=33.02,
    library_tb_s=0.7418,
)


class Estimate(NamedTuple):
    """Expected microseconds of one call, the limit that takes the most of them, and why in one sentence."""

    us: float
    bound: Limit
    reason: str


def expected_us(facts: Facts, device: Device = H100) -> Estimate:
    """The model's expectation for one call of a candidate."""
    steps = [(step_us(step, device), step) for step in facts]
    total = device.call_us + sum(us for us, _ in steps)
    if not steps:
        return Estimate(total, "launches", "nothing is launched")
    us, step = max(steps, key=lambda pair: pair[0])
    if device.call_us + device.launch_us * len(steps) > total / 2:
        return Estimate(total, "launches", f"launches: {len(steps)} of them take most of the time")
    share = f"{step.kernel if isinstance(step, KernelFacts) else step.operator} takes {us / total:.0%}: "
    bound, reason = _why(step, device)
    return Estimate(total, bound, (share if len(steps) > 1 else "") + reason)


def order(candidates: Sequence[Facts], device: Device = H100) -> list[int]:
    """The places of candidates, the fastest first. Those that the model cannot tell apart stay in their order."""
    expected = [level(expected_us(facts, device).us) for facts in candidates]
    return sorted(range(len(candidates)), key=lambda place: expected[place])


def level(us: float) -> int:
    """An expected time on a scale whose steps are what the model can tell apart."""
    return round(math.log(us) / TOLD_APART)


# ---------------------------------------------------------------------------------------------------- the limits


def step_us(step: KernelFacts | OperatorFacts, device: Device) -> float:
    """Expected microseconds of one step."""
    found = limits_us(step, device)
    longest = max(found.values())
    if longest <= 0:
        return device.launch_us
    together = math.fsum(math.pow(us / longest, device.sharpness) for us in found.values())
    return device.launch_us + longest * math.pow(together, 1.0 / device.sharpness)


def limits_us(step: KernelFacts | OperatorFacts, device: Device) -> dict[Limit, float]:
    """Microseconds that each limit alone allows."""
    if isinstance(step, OperatorFacts):
        convolves = "conv" in step.operator
        if not (step.flops or convolves or step.operator in _WHOLE_SPEED):
            return {"library": step.bytes / device.library_tb_s / 1e6}
        rate = device.convolution_tflops if convolves else device.product_tflops
        rate = rate if step.bits > _MATRIX_BITS else device.matrix_tflops
        return {"library": max(step.bytes / device.memory_tb_s, step.flops / rate) / 1e6}
    warps = math.ceil(step.threads / _WARP)
    busiest = math.ceil(step.programs / device.processors)  # blocks of the multiprocessor with the most
    cycles_a_us = device.clock_ghz * 1e3
    waves = max(step.programs / (device.processors * max(step.resident, 1)), 1.0)
    return {
        "memory": (step.bytes_read + step.bytes_written) / device.memory_tb_s / 1e6,
        "caches": busiest * device.processors * step.bytes_asked / max(step.programs, 1) / device.cache_tb_s / 1e6,
        "instructions": busiest * warps * step.instructions / _SCHEDULERS / cycles_a_us,
        "shared memory": busiest
        * step.threads
        * step.shared_bytes
        * (1.0 + step.crossed * device.collision)
        / device.shared_bytes
        / cycles_a_us,
        "matrix units": step.matrix_flops / device.matrix_tflops / 1e6,
        "spills": 2.0 * step.spilled_bytes * step.threads * step.programs / device.spill_tb_s / 1e6,
        "waiting": waves * (step.waits * device.wait_us + step.instructions * device.instruction_cycles / cycles_a_us),
    }


def _why(step: KernelFacts | OperatorFacts, device: Device) -> tuple[Limit, str]:
    """The limit that a step meets first, and a sentence."""
    found = limits_us(step, device)
    bound = max(found, key=lambda limit: found[limit])
    if isinstance(step, OperatorFacts):
        return bound, f"library: {step.bytes / 1e6:.0f} MB and {step.flops / 1e9:.1f} GFLOP in torch"
    moved = (step.bytes_read + step.bytes_written) / 1e6
    waves = step.programs / (device.processors * max(step.resident, 1))
    said: dict[Limit, str] = {
        "memory": f"{moved:.0f} MB at {device.memory_tb_s:.1f} TB/s",
        "caches": f"{step.bytes_asked / 1e6:.0f} MB asked for, {moved:.0f} MB of them from memory",
        "instructions": f"{step.instructions:.0f} instructions a thread",
        "shared memory": f"{step.shared_bytes:.0f} bytes a thread through shared memory",
        "matrix units": f"{step.matrix_flops / 1e9:.1f} GFLOP on matrix units",
        "spills": f"{step.spilled_bytes} bytes a thread stored for lack of registers",
        "waiting": f"{step.waits:.0f} times for loads in each block",
    }
    return bound, f"{bound}: {said[bound]}, {waves:.1f} waves of {device.processors} multiprocessors"


# ------------------------------------------------------------------------------------- from a capture's message


def facts_of(steps: Sequence[Any], kernels: Mapping[int, KernelResources]) -> Facts | None:
    """The facts of one forward; None if a step is unknown, or if a kernel cannot be launched.

    Args:
        steps: of ``worker.triton.capture``, as claimed by the candidate's process.
        kernels: what the assembler says of the compiled launches, by their number.
    """
    try:
        found = tuple(_kernel(step, kernels) if "launch" in step else _operator(step) for step in steps)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return found or None


def facts_from(rows: Sequence[Mapping[str, Any]]) -> Facts:
    """Facts from their fields, as ``dataclasses.asdict`` gives them.

    Raises:
        TypeError: fields are missing or unknown.
    """
    return tuple(OperatorFacts(**row) if "operator" in row else KernelFacts(**row) for row in rows)


def _kernel(step: Mapping[str, Any], kernels: Mapping[int, KernelResources]) -> KernelFacts:
    used, work = kernels[step["launch"]], step["work"]
    if used.problem or not used.block or not used.blocks_per_processor or used.instructions is None:
        raise ValueError("no kernel that can be launched")
    programs = math.prod(_number(size) for size in step["grid"])
    times = _times(used, _number(work["trips"]), _number(work["bytes_asked"]) / max(programs * used.block, 1))
    return KernelFacts(
        kernel=used.kernel,
        programs=int(programs),
        threads=used.block,
        resident=used.blocks_per_processor,
        instructions=round(used.instructions * times),
        shared_bytes=round(times * sum(access_bytes(name) * count for name, count in used.shared_accesses.items())),
        crossed=_number(work["crossed"]),
        spilled_bytes=used.spilled_bytes or 0,
        waits=_waits(used, _number(work["waits"])),
        bytes_read=_number(work["bytes_read"]),
        bytes_written=_number(work["bytes_written"]),
        bytes_asked=_number(work["bytes_asked"]),
        matrix_flops=_number(work["matrix_flops"]),
    )


def _times(used: KernelResources, trips: float, bytes_asked: float) -> float:
    """How often an instruction is executed, on the average. A loop that the compiler unrolls makes fewer trips.

    Args:
        trips: of the loop in the source; ``bytes_asked``: that a thread loads and stores.
    """
    if used.looped_bytes:
        trips = min(trips, bytes_asked / used.looped_bytes)
    instructions = used.instructions or 0
    return (instructions + (used.looped_instructions or 0) * (trips - 1.0)) / max(instructions, 1)


def _waits(used: KernelResources, waits: float) -> float:
    """How often a program waits for loads. Asynchronous loads of a loop are some trips ahead, and wait together."""
    if any(name.startswith(_ASYNCHRONOUS) for name in used.global_accesses):
        stages = used.knobs.get("num_stages", _STAGES)
        return waits / max(stages if isinstance(stages, int) else _STAGES, 1)
    return waits


def _operator(step: Mapping[str, Any]) -> OperatorFacts:
    name = "".join(c for c in str(step["operator"])[:60] if c.isalnum() or c in "_.")
    return OperatorFacts(name, _number(step["bytes"]), _number(step["flops"]), int(_number(step["bits"])))


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < _MOST:
        raise ValueError("no plain number")
    return float(value)
