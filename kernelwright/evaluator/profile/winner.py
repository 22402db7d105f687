"""A kernel that was timed, and what is known of it: what profilers are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kernelwright import inline
from kernelwright.evaluator.accuracy.trials import CheckSet
from kernelwright.evaluator.profile.events import KernelEvents
from kernelwright.records import Problem, Timing


class Faults(NamedTuple):
    """Faulty accesses to memory, in words, and why one cannot be sure that these are all."""

    faults: tuple[str, ...] = ()
    unsure: tuple[str, ...] = ()


class Winner(NamedTuple):
    """A kernel that was timed.

    source: with its knobs applied. built, products: what it had built; products by the request's key. calls: one
    forward's calls of its own kernels, as its worker recorded them; None where it was not asked. own_share: of the time
    that own kernels take, None where it is not known. device_kernels: of one call on a device, as its worker claims.
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
