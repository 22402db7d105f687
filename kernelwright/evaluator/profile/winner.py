"""A timed kernel and the facts about it, as the input of profilers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kernelwright import inline
from kernelwright.evaluator.accuracy.trials import CheckSet
from kernelwright.evaluator.profile.events import KernelEvents
from kernelwright.records import Problem, Timing


class Faults(NamedTuple):
    """Faulty accesses to memory, in words, and reasons why there may be more."""

    faults: tuple[str, ...] = ()
    unsure: tuple[str, ...] = ()


class Winner(NamedTuple):
    """A timed kernel.

    source: with its knobs applied. built: its build requests; products: by the request's key. calls: one forward's
    calls of its own kernels, as its worker recorded them; None if they were not recorded. own_share: share of the time
    in its own kernels, None if unknown. device_kernels: kernels of one call on a device, by its worker's claim.
    """

    problem: Problem
    source: str
    check_set: CheckSet
    timing: Timing
    built: Sequence[inline.BuildRequest]
    products: Mapping[str, bytes]
    calls: Sequence[Mapping[str, Any]] | None
    own_share: float | None
    device_kernels: tuple[KernelEvents, ...]
