"""Ways in which a worker runs a candidate's kernels: as they are, interpreted, emulated, on a device, or not at all.

Each way has a class, by its name in ``load``. Everything that stands in for a GPU in a worker is in this module.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from kernelwright import inline
from kernelwright.inline import emulation, requests

Forward = Callable[..., Any]


class Native:
    """Kernels run as they are, on this CPU."""

    pretends = False  # whether the candidate sees a GPU although there is only a CPU

    def provide(self, fds: Sequence[int], *, ghost: bool) -> None:
        """Get ready before the candidate is imported.

        Args:
            fds: file descriptors of ``load`` besides source and door.
            ghost: kernels do nothing.
        """

    def view(self) -> AbstractContextManager[None]:
        """A context that decides which devices the candidate's code sees."""
        return contextlib.nullcontext()

    def order(self, forward: Forward) -> Forward:
        """A forward that runs the programs of a launch in another order at each call, if they have an order."""
        return forward

    def launches(self, forward: Forward, arguments: Sequence[Any]) -> int:
        """Do one call; the number of kernels that it launched, or 0 if launches are not counted."""
        forward(*arguments)
        return 0


class _Pretended(Native, ABC):
    """A GPU's kernels on this CPU; the candidate sees a GPU."""

    pretends = True

    def view(self) -> AbstractContextManager[None]:
        """See :meth:`Native.view`."""
        from kernelwright.datasets.runtime import pretended_device

        return pretended_device()

    def order(self, forward: Forward) -> Forward:
        """See :meth:`Native.order`."""
        next_order = self._next_order()

        def call(*arguments: Any) -> Any:
            next_order()
            with self.view():
                return forward(*arguments)

        return call

    def launches(self, forward: Forward, arguments: Sequence[Any]) -> int:
        """See :meth:`Native.launches`."""
        with self._count() as count:
            forward(*arguments)
        return count[0]

    @abstractmethod
    def _next_order(self) -> Callable[[], None]:
        """What changes the order of blocks and threads before a call."""

    @abstractmethod
    def _count(self) -> AbstractContextManager[list[int]]:
        """Counts launches inside; the list's only element is their number."""


class Interpreted(_Pretended):
    """Triton's interpreter."""

    def provide(self, fds: Sequence[int], *, ghost: bool) -> None:
        """See :meth:`Native.provide`."""
        from kernelwright.evaluator.worker.triton import interpreter

        interpreter.install()
        if ghost:
            interpreter.idle()

    def _next_order(self) -> Callable[[], None]:
        from kernelwright.evaluator.worker.triton import interpreter

        return interpreter.next_order

    def _count(self) -> AbstractContextManager[list[int]]:
        from kernelwright.evaluator.worker.triton import interpreter

        return interpreter.count_launches()


class Emulated(_Pretended):
    """The CUDA emulator."""

    def provide(self, fds: Sequence[int], *, ghost: bool) -> None:
        """See :meth:`Native.provide`; ``fds`` begins with the emulator's runtime."""
        emulation.set_emulator(f"/proc/self/fd/{fds[0]}")
        if ghost:
            inline.make_idle()

    def _next_order(self) -> Callable[[], None]:
        return emulation.next_order

    def _count(self) -> AbstractContextManager[list[int]]:
        return emulation.count_launches()


class OnDevice(Native):
    """Kernels run as they are, on a device."""

    def provide(self, fds: Sequence[int], *, ghost: bool) -> None:
        """See :meth:`Native.provide`; ``fds``: Triton's compiled code for the candidate, if there is some."""
        from kernelwright.evaluator.worker.triton import launches

        if ghost:
            launches.idle()
            inline.make_idle()
        if fds:
            with contextlib.suppress(Exception):  # it is a candidate's text, and only saves time
                launches.lay_down(f"/proc/self/fd/{fds[0]}")


class BuildOnly(Native):
    """Kernels are built and not run. The candidate sees a GPU, so it builds the same kernels as on a GPU."""

    def provide(self, fds: Sequence[int], *, ghost: bool) -> None:
        """See :meth:`Native.provide`."""
        requests.only_build()

    def view(self) -> AbstractContextManager[None]:
        """See :meth:`Native.view`."""
        from kernelwright.datasets.runtime import pretended_device

        return pretended_device()


HOSTS: dict[str, type[Native]] = {
    "": Native,
    "interpreter": Interpreted,
    "emulator": Emulated,
    "device": OnDevice,
    "builder": BuildOnly,
}
