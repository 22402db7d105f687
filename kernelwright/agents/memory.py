"""What a problem's Coders may know of other problems, of earlier runs, and of what was learned on it so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kernelwright.agents.roles import StepContext
from kernelwright.prompts import KernelView


class Memory(Protocol):
    """Answers by the context alone, and the same whenever it is asked: a resumed run sees what the killed one saw."""

    def paid(self, context: StepContext) -> Sequence[str]:
        """Moves that paid on similar problems, a line each, the most promising first."""
        ...

    def insights(self, context: StepContext) -> Sequence[str]:
        """What Judges found out about this problem and similar ones, a line each, the most severe first."""
        ...

    def contrasts(self, context: StepContext, count: int) -> Sequence[KernelView]:
        """At most so many kernels of earlier runs for this problem, of different speeds, the slower ones first."""
        ...


class NoMemory:
    """Knows nothing."""

    def paid(self, context: StepContext) -> Sequence[str]:
        """None."""
        return ()

    def insights(self, context: StepContext) -> Sequence[str]:
        """None."""
        return ()

    def contrasts(self, context: StepContext, count: int) -> Sequence[KernelView]:
        """None."""
        return ()
