"""The interface of input slots, wherever they lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from kernelwright.evaluator.accuracy.trials import Trial, Variant

# (count, slot bytes) of fresh inputs
Draw = Callable[[int], np.ndarray]


class Slots(Protocol):
    """Input slots of one variant."""

    variant: Variant
    slots: int

    @property
    def size(self) -> int:
        """Bytes of all slots."""
        ...

    def close(self) -> None:
        """Free the slots."""
        ...

    def refill(self, slots: Sequence[int] | np.ndarray) -> object:
        """Put fresh data into ``slots``. No worker that has mapped them may be running."""
        ...

    def place(self, trials: Mapping[int, Trial]) -> None:
        """Put the data of trials into slots."""
        ...

    def label(self, slot: int) -> str:
        """The distribution that a slot holds."""
        ...
