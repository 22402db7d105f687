"""A ranking of GPU kernels by their compiler's data, for machines that cannot time them.

It orders candidates but does not say how much faster one is. The time that a model expects comes first, in steps as
wide as what the model can tell apart. Then come spilled registers, since they cause extra memory traffic, the traffic
that the generator counted, and the number of kernels. Then comes occupancy, which counts up to one half, since more
does not hide memory latency better. Last come access width and instructions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from kernelwright.evaluator.profile.expected import EXPECTED, level
from kernelwright.records import KernelResources, Profile

Score = tuple[float, ...]  # the larger, the better

_ARCHITECTURE = "sm_90"
_ENOUGH_OCCUPANCY = 0.5
_BITS_OF_AN_ACCESS = 32  # if an instruction does not say


def static_score(profile: Profile | None, bytes_moved: float) -> Score:
    """The score of a candidate in this ranking; empty if nothing is known.

    Args:
        bytes_moved: bytes that its kernels read and write in one call, as the generator counts them; 0 if unknown.
    """
    kernels = _of_one_architecture(() if profile is None else profile.kernels)
    if not kernels:
        return ()
    expected = 0.0 if profile is None else profile.metrics.get("expected_us", 0.0)
    return (
        -level(expected) if expected > 0 else -math.inf,
        -float(sum(kernel.spilled_bytes or 0 for kernel in kernels)),
        -bytes_moved,
        -float(len({kernel.kernel for kernel in kernels})),
        min(min(kernel.occupancy or 0.0, _ENOUGH_OCCUPANCY) for kernel in kernels),
        _mean_width(kernels),
        -float(sum(kernel.instructions or 0 for kernel in kernels)),
    )


def describe_static(profile: Profile | None) -> str:
    """The compiler's data on a candidate's kernels and what a model expects of them, in one line.

    Empty if nothing is known.
    """
    kernels = _of_one_architecture(() if profile is None else profile.kernels)
    if not kernels:
        return ""
    registers = max(kernel.registers or 0 for kernel in kernels)
    spilled = sum(kernel.spilled_bytes or 0 for kernel in kernels)
    occupancy = [kernel.occupancy for kernel in kernels if kernel.occupancy is not None]
    names = {kernel.kernel for kernel in kernels}
    parts = [f"{len(names)} kernel{'s' * (len(names) != 1)}", f"{registers} registers"]
    parts += [f"{spilled} B spilled"] if spilled else []
    parts += [f"occupancy {min(occupancy):.0%}"] if occupancy else []
    notes = () if profile is None else profile.notes
    expected = next((f"; {note}" for note in notes if note.startswith(EXPECTED)), "")
    return f"{kernels[0].architecture}: {', '.join(parts)}{expected}"


def _of_one_architecture(kernels: Sequence[KernelResources]) -> list[KernelResources]:
    assembled = [kernel for kernel in kernels if kernel.registers is not None]
    wanted = [kernel for kernel in assembled if kernel.architecture == _ARCHITECTURE]
    return wanted or [kernel for kernel in assembled if kernel.architecture == assembled[0].architecture]


def _mean_width(kernels: Sequence[KernelResources]) -> float:
    """The mean bits of an access to global memory."""
    counts = [(_bits(name), count) for kernel in kernels for name, count in kernel.global_accesses.items()]
    total = sum(count for _, count in counts)
    return sum(bits * count for bits, count in counts) / total if total else 0.0


def _bits(access: str) -> int:
    found = re.search(r"\.(?:U|S)?(8|16|32|64|128)\b", access)
    return int(found[1]) if found else _BITS_OF_AN_ACCESS
