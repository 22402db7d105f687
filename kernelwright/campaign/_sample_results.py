"""The plan of a bench."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kernelwright.records import Record


class SamplePlan(Record):
    """Independent samples of each problem; no sample knows of another.

    Attributes:
        name: the name of the bench; unique in its store.
        samples: number of samples of each problem.
        seed: random seed of the Coder, together with the problem and the sample's number.
        origin: ``written`` by a Coder, ``imported`` from a folder of kernels, or ``references``: the references
            themselves, as controls.
    """

    name: str = Field(pattern=r"^[\w][\w .+-]{0,79}$")
    samples: int = Field(default=1, ge=1)
    seed: int = 0
    origin: Literal["written", "imported", "references"] = "written"

    @property
    def control(self) -> bool:
        """Whether the samples are controls instead of candidates."""
        return self.origin == "references"
