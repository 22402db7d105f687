"""The profile of GPU kernels without a GPU: resources and instructions of their machine code, for some architectures.

The build service compiles each text once for each architecture, from the text alone. No time is known. The number of
blocks that fit on a multiprocessor shows what limits a kernel. Of a Triton candidate whose every step is known, a model
says how long it expects one forward to take; that is a metric and a note of its own, and no speedup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from kernelwright import inline
from kernelwright.errors import SandboxError
from kernelwright.evaluator.builds.builder import BuildService
from kernelwright.evaluator.builds.gpu_resources import (
    ARCHITECTURES,
    Launch,
    captured_resources,
    fits,
    parse_machine_code,
    parse_ptxas,
    resources,
)
from kernelwright.evaluator.profile.expected import EXPECTED, H100, expected_us, facts_of
from kernelwright.evaluator.wire.claims import readable
from kernelwright.records import KernelResources, KnobValue, Problem, Profile, sha256_text
from kernelwright.sandbox import Limits, Sandbox, WorkerFailed

__all__ = ["fingerprint", "objection", "profile_cuda", "profile_triton", "read_machine_code"]

_SHOWN = "sm_90"  # the architecture that notes are about
_MOST_KERNELS = 64
_NOTE_CHARS = 300
_CAPTURE = "kernelwright.evaluator.worker.triton.capture:capture"
_AT_ONCE = 2
_MOST_STEPS = 4096  # of a forward, that a model is asked about


def profile_cuda(
    builds: BuildService, requests: Sequence[inline.BuildRequest], launches: Iterable[Launch]
) -> Profile | None:
    """The resources of all kernels that a candidate had built; None if it had none built.

    Args:
        launches: their observed launches; occupancy is known for these alone.
    """
    seen = list(launches)
    found: list[KernelResources] = []
    notes: list[str] = []
    compiled = _compiled(builds, requests)
    for architecture, code in compiled:
        if code is None:
            notes.append(f"it does not compile for {architecture}")
        else:
            said, listing = code
            found += resources(architecture, parse_ptxas(said), parse_machine_code(listing), seen)
    return _profile(found, notes) if compiled else None


def read_machine_code(builds: BuildService, requests: Sequence[inline.BuildRequest]) -> None:
    """Compile the kernels for a later :func:`profile_cuda`, and keep the results."""
    _compiled(builds, requests)


def fingerprint(builds: BuildService, requests: Sequence[inline.BuildRequest], host: str) -> str:
    """A hash of the kernels' machine code for all architectures and of ``host``, the hash of the host's code.

    Empty if ``host`` is empty, or if an architecture's code is not known.
    """
    codes = [code for _, code in _compiled(builds, requests)]
    listings = [code[1] for code in codes if code is not None and code[1]]
    return sha256_text("\n".join([host, *listings])) if host and listings and len(listings) == len(codes) else ""


def _compiled(
    builds: BuildService, requests: Sequence[inline.BuildRequest]
) -> list[tuple[str, tuple[str, str] | None]]:
    """For each request's kernels the architecture, the assembler's messages and the machine code."""
    wanted = [
        (request, architecture)
        for request in {request.key: request for request in requests if "cuda" in request.language}.values()
        for architecture in ARCHITECTURES
    ]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        codes = pool.map(lambda pair: builds.machine_code(*pair), wanted)
        return [(architecture, code) for (_, architecture), code in zip(wanted, codes, strict=True)]


def profile_triton(sandbox: Sandbox, builds: BuildService, source: str, problem: Problem, *, limits: Limits) -> Profile:
    """The resources of all kernels that one forward launches, at the problem's size for a GPU.

    Each configuration of an autotuned kernel is compiled. A note reports launches that cannot be captured.
    """
    payload = {
        "source": source,
        "problem": problem.source,
        "variant": dict(problem.meta.variants_for("gpu")[0]),
        "mode": problem.meta.mode,
        "architectures": [int(name.removeprefix("sm_")) for name in ARCHITECTURES],
    }
    try:
        reply = sandbox.call(_CAPTURE, payload, limits=limits)
    except (SandboxError, WorkerFailed) as error:  # the candidate's own code runs there, and may end its process
        return Profile(
            rung="static", notes=(f"launches could not be captured: {readable(error.message)}"[:_NOTE_CHARS],)
        )
    claimed = [launch for launch in map(_launch, reply.get("launches") or ()) if launch is not None]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = list(pool.map(lambda launch: _captured(builds, launch), claimed))
    fault = readable(reply.get("fault") or "")[:_NOTE_CHARS]
    if fault:
        return _profile(found, [f"launches could not all be captured: {fault}"])
    shown = {
        launch.number: kernel for launch, kernel in zip(claimed, found, strict=True) if launch.architecture == _SHOWN
    }
    return _with_expectation(_profile(found, []), reply.get("steps") or (), shown)


def _with_expectation(profile: Profile, steps: Any, kernels: Mapping[int, KernelResources]) -> Profile:
    """The profile with the time that a model expects of the claimed steps, or as it is where one is not known."""
    facts = facts_of(steps, kernels) if isinstance(steps, list) and len(steps) <= _MOST_STEPS else None
    if facts is None:
        return profile
    us, _, reason = expected_us(facts)
    note = f"{EXPECTED}: {us:.0f} us a forward on an {H100.name}; {readable(reason)}"[:_NOTE_CHARS]
    metrics = {**profile.metrics, "expected_us": round(us, 1)}
    return profile.model_copy(update={"metrics": metrics, "notes": (note, *profile.notes)})


class TritonLaunch(NamedTuple):
    """One captured launch, as claimed by the candidate's process."""

    kernel: str
    architecture: str
    knobs: dict[str, KnobValue]
    shared_bytes: int
    ptx: str
    error: str
    number: int  # the same for all architectures


def _launch(claim: Any) -> TritonLaunch | None:
    if not isinstance(claim, dict) or f"sm_{claim.get('architecture')}" not in ARCHITECTURES:
        return None
    shared, knobs, number = claim.get("shared_bytes"), claim.get("knobs"), claim.get("launch")
    plain = knobs.items() if isinstance(knobs, dict) else ()
    return TritonLaunch(
        readable(claim.get("kernel"))[:80],
        f"sm_{claim['architecture']}",
        {readable(k)[:40]: v for k, v in plain if isinstance(v, int | float) or (isinstance(v, str) and len(v) < 80)},
        shared if type(shared) is int and 0 <= shared < 1 << 31 else 0,
        str(claim.get("ptx") or ""),
        readable(claim.get("error") or "")[:_NOTE_CHARS],
        number if type(number) is int else -1,
    )


def _captured(builds: BuildService, launch: TritonLaunch) -> KernelResources:
    """The resources of one launch. A launch that cannot fit is not assembled, which could take half a minute."""
    assembled = None
    if launch.ptx and fits(launch.architecture, launch.shared_bytes):
        assembled = builds.assemble(launch.ptx, launch.architecture)
    found = captured_resources(
        launch.architecture, launch.kernel, launch.shared_bytes, launch.knobs, launch.ptx, assembled
    )
    if launch.error or (assembled is None and not found.problem):
        said = f"it does not compile: {launch.error}" if launch.error else "the assembler refuses it"
        return found.model_copy(update={"problem": said})
    return found


def objection(profile: Profile) -> str:
    """Why a candidate cannot be launched on any of the architectures, or an empty string.

    One launchable configuration of an autotuned kernel is enough.
    """
    usable: dict[tuple[str, str], bool] = {}
    for kernel in profile.kernels:
        key = kernel.architecture, kernel.kernel
        usable[key] = usable.get(key, False) or not kernel.problem
    by_architecture = {a: [k for (b, k), right in usable.items() if a == b and not right] for a, _ in usable}
    if not by_architecture or not all(by_architecture.values()):
        return ""
    first = next(k for k in profile.kernels if k.architecture == _SHOWN or _SHOWN not in by_architecture)
    named = next((k for k in profile.kernels if k.architecture == first.architecture and k.problem), first)
    return f"{_named(named)} cannot run on any of {', '.join(by_architecture)}: {named.problem}"


def _profile(found: Sequence[KernelResources], notes: Sequence[str]) -> Profile:
    shown = [kernel for kernel in found if kernel.architecture == _SHOWN][:_MOST_KERNELS]
    ranked = sorted(shown, key=_rank)
    return Profile(
        rung="static",
        metrics=_metrics(shown),
        notes=(*dict.fromkeys(notes), *(_note(kernel) for kernel in ranked)),
        kernels=tuple(found[: _MOST_KERNELS * len(ARCHITECTURES)]),
    )


def _rank(kernel: KernelResources) -> tuple[bool, bool, float]:
    """Sort key: kernels that can be launched first, then those that spill nothing, then by occupancy."""
    return bool(kernel.problem), bool(kernel.spilled_bytes), -(kernel.occupancy or 0.0)


def _metrics(kernels: Sequence[KernelResources]) -> dict[str, float]:
    """The worst value of each figure over all kernels of one architecture."""
    if not kernels:
        return {}
    kernels = [kernel for kernel in kernels if not kernel.problem] or kernels
    known = [kernel.occupancy for kernel in kernels if kernel.occupancy is not None]
    return {
        "registers": max(kernel.registers or 0 for kernel in kernels),
        "spilled_bytes": max(kernel.spilled_bytes or 0 for kernel in kernels),
        "shared_bytes": max(kernel.shared_bytes for kernel in kernels),
        **({"occupancy": min(known)} if known else {}),
    }


def _named(kernel: KernelResources) -> str:
    knobs = ", ".join(f"{name}={value}" for name, value in kernel.knobs.items() if name != "num_ctas")
    return f"{kernel.kernel} ({knobs})" if knobs else kernel.kernel


def _note(kernel: KernelResources) -> str:
    head = f"{_named(kernel)} on {kernel.architecture}"
    if kernel.problem:
        return f"{head} cannot be launched: {kernel.problem}"
    parts = [f"{kernel.registers} registers"]
    parts.append(f"{kernel.spilled_bytes} bytes spilled" if kernel.spilled_bytes else "nothing spilled")
    if kernel.shared_bytes:
        parts.append(f"{kernel.shared_bytes} bytes of shared memory")
    if kernel.occupancy is not None:
        parts.append(f"occupancy at most {kernel.occupancy:.0%} with {kernel.block} threads a block ({kernel.limiter})")
    if kernel.matrix_instructions:
        parts.append("matrix units: " + ", ".join(sorted(kernel.matrix_instructions))[:100])
    wide = [name for name in kernel.global_accesses if ".128" in name or name.startswith("UTMA")]
    parts.append("loads or stores of 16 bytes" if wide else "no load or store of 16 bytes")
    return f"{head}: {'; '.join(parts)}"
