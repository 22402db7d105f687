"""torch.profiler (CUPTI): which kernels a forward launches, and how the device's time is shared among them.

A worker records a trace, reduces it by :func:`claims` and sends the result. :func:`parse_claims` trusts no part of it.
Times are the device's own and need no permission. Counters are not included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from kernelwright.evaluator.profile.ncu import function_name
from kernelwright.evaluator.profile.text import plain

MAX_KERNELS = 256
_MAX_NAME = 4000
_DAY_US = 86_400e6


class EventsRejectedError(Exception):
    """A worker's claims about its kernels are invalid; the message says why, in words for a note."""


class KernelEvents(NamedTuple):
    """One kernel, by a worker's claim.

    Attributes:
        kernel: the function's own name; ``signature``: the name in the profiler's report.
        device_ms: of all its launches together; ``share``: of all kernels' time, from 0 to 1.
        grid, block: of the longest launch, by dimension; None if the profiler did not report it.
        registers: per thread; ``shared_bytes``: per block, static and dynamic. None if not reported.
    """

    kernel: str
    signature: str
    launches: int
    device_ms: float
    share: float
    grid: tuple[int, ...] | None
    block: tuple[int, ...] | None
    registers: int | None
    shared_bytes: int | None


_Size = Annotated[int, Field(ge=1, le=2**31 - 1)]
_Sizes = Annotated[list[_Size], Field(min_length=3, max_length=3)]


class _Claim(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=_MAX_NAME)
    device_us: float = Field(ge=0, le=_DAY_US, allow_inf_nan=False)
    calls: int = Field(ge=1, le=10**9)
    grid: _Sizes | None = None
    block: _Sizes | None = None
    registers: Annotated[int, Field(ge=0, le=255)] | None = None
    shared_bytes: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None


_CLAIMS = TypeAdapter(Annotated[list[_Claim], Field(max_length=MAX_KERNELS)])


def parse_claims(value: Any) -> tuple[KernelEvents, ...]:
    """The kernels of a worker's claims, the one with the most time first.

    Args:
        value: a list of dicts: ``name``, ``device_us`` and ``calls``, and if known ``grid``, ``block`` (three
            numbers each), ``registers`` and ``shared_bytes``.

    Raises:
        EventsRejectedError: the list is not of this form, too long, or empty.
    """
    try:
        found = _CLAIMS.validate_python(value)
    except (ValidationError, RecursionError) as error:
        first = error.errors(include_input=False, include_url=False)[0] if isinstance(error, ValidationError) else None
        where = ".".join(plain(str(part), 20) for part in first["loc"]) if first else ""
        raise EventsRejectedError(f"the profiler's claims are malformed{f' at {where}' if where else ''}") from None
    if not found:
        raise EventsRejectedError("the profiler saw no kernel")
    total_us = math.fsum(claim.device_us for claim in found)
    kernels = [
        KernelEvents(
            kernel=function_name(claim.name) or plain(claim.name, 60) or "unnamed",
            signature=plain(claim.name, 200),
            launches=claim.calls,
            device_ms=claim.device_us / 1e3,
            share=claim.device_us / total_us if total_us > 0 else 0.0,
            grid=tuple(claim.grid) if claim.grid else None,
            block=tuple(claim.block) if claim.block else None,
            registers=claim.registers,
            shared_bytes=claim.shared_bytes,
        )
        for claim in found
    ]
    return tuple(sorted(kernels, key=lambda kernel: -kernel.device_ms))


def claims(trace: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The worker's side: a trace of ``export_chrome_trace`` reduced to one claim for each kernel, longest first."""
    found: dict[str, dict[str, Any]] = {}
    longest: dict[str, float] = {}
    for event in trace.get("traceEvents", []):
        if event.get("cat") != "kernel" or event.get("ph") != "X":
            continue
        name, spent_us = str(event["name"])[:_MAX_NAME], float(event["dur"])
        claim = found.setdefault(name, {"name": name, "device_us": 0.0, "calls": 0})
        claim["device_us"] += spent_us
        claim["calls"] += 1
        if spent_us >= longest.get(name, 0.0):
            longest[name] = spent_us
            claim |= _geometry(event.get("args", {}))
    return sorted(found.values(), key=lambda claim: -claim["device_us"])[:MAX_KERNELS]


def _geometry(details: Mapping[str, Any]) -> dict[str, Any]:
    names = {
        "grid": "grid",
        "block": "block",
        "registers per thread": "registers",
        "shared memory": "shared_bytes",
    }
    return {ours: details[theirs] for theirs, ours in names.items() if theirs in details}
