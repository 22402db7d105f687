"""The knowledge from other problems and earlier runs that a problem's Coders get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kernelwright.agents.roles import StepContext
from kernelwright.prompts import KernelView


class Memory(Protocol):
    """Knowledge for Coders. Answers depend on the context alone, so a resumed run gets the killed run's answers."""

    def paid(self, context: StepContext) -> Sequence[str]:
        """Moves that paid on similar problems, a line each, the most promising first."""
        ...

    def insights(self, context: StepContext) -> Sequence[str]:
        """Judges' insights on this problem and similar ones, a line each, the most severe first."""
        ...

    def contrasts(self, context: StepContext, count: int) -> Sequence[KernelView]:
        """At most ``count`` kernels of earlier runs for this problem, of different speeds, the slower ones first."""
        ...


class NoMemory:
    """A memory without any knowledge."""

    def paid(self, context: StepContext) -> Sequence[str]:
        """No moves."""
        return ()

    def insights(self, context: StepContext) -> Sequence[str]:
        """No insights."""
        return ()

    def contrasts(self, context: StepContext, count: int) -> Sequence[KernelView]:
        """No kernels."""
        return ()
