"""The axes that distinguish kernels: numbers that are measured on them, never guessed from their text.

Each backend has its table of axes. A kernel's cell in an archive is its bin on each axis of the archive. The bins span
the values seen so far, and they are cut again when a value lies outside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from kernelwright.errors import UsageError
from kernelwright.records import Backend, KernelResources, Verdict

Value = float | str
Descriptor = Mapping[str, Value]  # by axis; axes with an unknown value are left out
Cell = tuple[int | str, ...]

UNKNOWN = "?"  # the bin of kernels whose value on an axis is unknown
_ARCHITECTURE = "sm_90"  # read the machine code of this architecture if kernels are compiled for several


class Axis(NamedTuple):
    """One property in which kernels differ.

    ``scale``: ``classes`` has a bin for each value; ``linear`` and ``log`` cut the range seen into ``bins`` equal parts
    (of the logarithm; values below 1 count as 1).
    """

    name: str
    meaning: str
    scale: Literal["classes", "linear", "log"]
    read: Callable[[Verdict], Value | None]
    bins: int = 3

    def bin(self, value: Value | None, low: float, high: float) -> int | str:
        """The bin of a value on an axis that spans ``low`` to ``high``."""
        if value is None:
            return UNKNOWN
        if self.scale == "classes" or isinstance(value, str):
            return value if isinstance(value, str) else int(value)
        at, first, last = (self.position(number) for number in (value, low, high))
        if last <= first:
            return 0
        return min(max(int(self.bins * (at - first) / (last - first)), 0), self.bins - 1)

    def position(self, value: float) -> float:
        """The position of a value on the axis's scale."""
        return math.log(max(value, 1.0)) if self.scale == "log" else value


def _metric(name: str) -> Callable[[Verdict], Value | None]:
    return lambda verdict: None if verdict.profile is None else verdict.profile.metrics.get(name)


def _bound(verdict: Verdict) -> Value | None:
    found = None if verdict.profile is None else verdict.profile.bound
    return None if found == "unknown" else found


def _own_share(verdict: Verdict) -> Value | None:
    return verdict.own_kernel_share


def _of_kernels(read: Callable[[Sequence[KernelResources]], float | None]) -> Callable[[Verdict], Value | None]:
    """An axis value that is read from all GPU kernels of a candidate together; None if none was compiled."""

    def found(verdict: Verdict) -> Value | None:
        kernels = () if verdict.profile is None else verdict.profile.kernels
        compiled = [kernel for kernel in kernels if kernel.registers is not None]
        wanted = [kernel for kernel in compiled if kernel.architecture == _ARCHITECTURE] or compiled
        return read(wanted) if wanted else None

    return found


def _least_occupancy(kernels: Sequence[KernelResources]) -> float | None:
    return min((kernel.occupancy for kernel in kernels if kernel.occupancy is not None), default=None)


def _kernel_names(kernels: Sequence[KernelResources]) -> float:
    return float(len({kernel.kernel for kernel in kernels}))


_EVERYWHERE = (
    Axis("bound", "what limits it", "classes", _bound),
    Axis("roofline", "time over the least that the machine's ceilings allow", "log", _metric("distance_to_roofline")),
    Axis("own_share", "share of the time in its own kernels", "linear", _own_share),
)
_GPU = (
    *_EVERYWHERE,
    Axis("kernels", "kernels of its own", "log", _of_kernels(_kernel_names)),
    Axis("occupancy", "bound on resident warps over the most that fit", "linear", _of_kernels(_least_occupancy)),
    Axis("registers", "registers a thread", "linear", _of_kernels(lambda ks: max(k.registers or 0 for k in ks))),
    Axis("spills", "bytes of spilled registers", "log", _of_kernels(lambda ks: sum(k.spilled_bytes or 0 for k in ks))),
    Axis("code", "instructions", "log", _of_kernels(lambda ks: sum(k.instructions or 0 for k in ks))),
)
AXES: Mapping[Backend, tuple[Axis, ...]] = {
    "cpp": (
        *_EVERYWHERE,
        Axis("calls", "calls of its kernels in one forward", "log", _metric("kernel_calls")),
        Axis("vector_bits", "widest vector registers", "classes", _metric("vector_bits")),
        Axis("spills", "moves from and to the stack", "log", _metric("stack_accesses")),
        Axis("code", "bytes of machine code", "log", _metric("code_bytes")),
    ),
    "triton": _GPU,
    "cuda": _GPU,
}
DEFAULT_AXES: Mapping[Backend, tuple[str, ...]] = {
    "cpp": ("bound", "calls", "vector_bits", "code"),
    "triton": ("bound", "kernels", "occupancy", "code"),
    "cuda": ("bound", "kernels", "occupancy", "code"),
}


def axes_named(names: Sequence[str], backend: Backend) -> tuple[Axis, ...]:
    """The axes of a backend by name; its default axes if no names are given.

    Raises:
        UsageError: the backend has no such axis.
    """
    known = {axis.name: axis for axis in AXES[backend]}
    wanted = tuple(names) or DEFAULT_AXES[backend]
    for name in wanted:
        if name not in known:
            raise UsageError(f"kernels of {backend} have no axis {name!r}", hint=f"they have {', '.join(known)}")
    return tuple(known[name] for name in wanted)


def describe(verdict: Verdict, axes: Sequence[Axis]) -> dict[str, Value]:
    """A kernel's known values on the axes."""
    found = ((axis.name, axis.read(verdict)) for axis in axes)
    return {name: value for name, value in found if value is not None}


class Grid:
    """The bins of some axes, which span the values seen so far."""

    def __init__(self, axes: Sequence[Axis]) -> None:
        self.axes = tuple(axes)
        self._ranges: dict[str, tuple[float, float]] = {}

    def stretch(self, descriptor: Descriptor) -> bool:
        """Extend the ranges by a kernel's values; returns whether the bins changed."""
        cut = False
        for axis in self.axes:
            value = descriptor.get(axis.name)
            if axis.scale == "classes" or value is None or isinstance(value, str):
                continue
            low, high = self._ranges.get(axis.name, (value, value))
            if axis.name not in self._ranges or not low <= value <= high:
                self._ranges[axis.name] = min(low, value), max(high, value)
                cut = True
        return cut

    def cell(self, descriptor: Descriptor) -> Cell:
        """The cell of a kernel whose values are within the ranges."""
        return tuple(
            axis.bin(descriptor.get(axis.name), *self._ranges.get(axis.name, (0.0, 0.0))) for axis in self.axes
        )
