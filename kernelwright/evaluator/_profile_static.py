"""The profile of GPU kernels where there is no GPU: what their machine code takes and does, for several architectures.

Compiled by the build service from the text alone, each text once for each architecture. No time is known here, and none
is guessed; what limits a kernel is said by how many of its blocks fit on a multiprocessor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from kernelwright import inline
from kernelwright.evaluator._build import BuildService
from kernelwright.evaluator.backends import ARCHITECTURES, Launch, parse_machine_code, parse_ptxas, resources
from kernelwright.records import KernelResources, Profile

__all__ = ["profile_static"]

_SHOWN = "sm_90"  # the architecture that notes are about
_MOST_KERNELS = 64
_AT_ONCE = 2


def profile_static(
    builds: BuildService, requests: Sequence[inline.BuildRequest], launches: Iterable[Launch]
) -> Profile | None:
    """The resources of all kernels that a candidate had built; None where it had none built.

    Args:
        launches: what was seen of their launches; occupancy is known for these alone.
    """
    wanted = [
        (request, architecture)
        for request in {request.key: request for request in requests if "cuda" in request.language}.values()
        for architecture in ARCHITECTURES
    ]
    seen = list(launches)
    found: list[KernelResources] = []
    notes: list[str] = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        compiled = pool.map(lambda pair: builds.machine_code(*pair), wanted)
        for (_, architecture), code in zip(wanted, compiled, strict=True):
            if code is None:
                notes.append(f"it does not compile for {architecture}")
                continue
            said, listing = code
            found += resources(architecture, parse_ptxas(said), parse_machine_code(listing), seen)
    if not wanted:
        return None
    shown = [kernel for kernel in found if kernel.architecture == _SHOWN][:_MOST_KERNELS]
    return Profile(
        rung="static",
        metrics=_metrics(shown),
        notes=(*dict.fromkeys(notes), *(_note(kernel) for kernel in shown)),
        kernels=tuple(found[: _MOST_KERNELS * len(ARCHITECTURES)]),
    )


def _metrics(kernels: Sequence[KernelResources]) -> dict[str, float]:
    """The worst of each over all kernels of one architecture."""
    if not kernels:
        return {}
    known = [kernel.occupancy for kernel in kernels if kernel.occupancy is not None]
    return {
        "registers": max(kernel.registers for kernel in kernels),
        "spilled_bytes": max(kernel.spilled_bytes for kernel in kernels),
        "shared_bytes": max(kernel.shared_bytes for kernel in kernels),
        **({"occupancy": min(known)} if known else {}),
    }


def _note(kernel: KernelResources) -> str:
    parts = [f"{kernel.registers} registers"]
    parts.append(f"{kernel.spilled_bytes} bytes spilled" if kernel.spilled_bytes else "nothing spilled")
    if kernel.shared_bytes:
        parts.append(f"{kernel.shared_bytes} bytes of shared memory")
    if kernel.occupancy is not None:
        parts.append(f"occupancy at most {kernel.occupancy:.0%} with {kernel.block} threads a block ({kernel.limiter})")
    if kernel.matrix_instructions:
        parts.append("matrix units: " + ", ".join(sorted(kernel.matrix_instructions))[:100])
    wide = [name for name in kernel.global_accesses if ".128" in name]
    parts.append("loads and stores of 16 bytes" if wide else "no load or store of 16 bytes")
    if kernel.problem:
        parts.append(f"cannot be launched: {kernel.problem}")
    return f"{kernel.kernel} on {kernel.architecture}: {'; '.join(parts)}"
