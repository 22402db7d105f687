"""Constants of the method by which kernels are checked and timed.

They are one setting, not eleven: a change of ``looks``, say, changes how often a claim is false. The command line takes
the name of a method. A file may give single values, in a table ``[measurement]``, and so may Python.
"""

from __future__ import annotations

import itertools
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from kernelwright.config.values import Bytes, Count, Positive, Ratio, number, split_at_commas

_Pairs = Annotated[int, BeforeValidator(number), Field(ge=4, le=20)]


class Measurement(BaseModel):
    """How the referee checks and times. ``Measurement()`` is the standard one; docs/measurement.md explains each value.

    Attributes:
        check_trials: how many of the admitted distributions a correctness check draws from.
        looks: numbers of window pairs after which the search interval is read.
        target_half_width: half-width of an interval that ends timing, as a log-ratio.
        noise_bound: what a confirmation's lower bound must exceed to be called faster, as a ratio minus one.
        search_noise_bound: the same for a search, whose single process pair cannot see what differs between processes.
        race_noise_bound: what a candidate's lower bound must exceed to be faster than another one, ratio minus one.
        race_pairs: window pairs after which two candidates that are close count as equal.
        window_ms: least length of a timing window in milliseconds.
        pool_bytes: shared memory for input slots, in bytes.
        confirm_pairs: least number of process pairs of a confirmation.
        confirm_max_pairs: greatest number of process pairs of a confirmation.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    check_trials: Count = 11
    looks: Annotated[tuple[Count, ...], BeforeValidator(split_at_commas)] = (12, 24, 48, 96)
    target_half_width: Ratio = 0.02
    noise_bound: Ratio = 0.014
    search_noise_bound: Ratio = 0.03
    race_noise_bound: Ratio = 0.01
    race_pairs: Count = 96
    window_ms: Positive = 5.0
    pool_bytes: Bytes = 256 * 2**20
    confirm_pairs: _Pairs = 4
    confirm_max_pairs: _Pairs = 20

    @model_validator(mode="before")
    @classmethod
    def _of_name(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value not in NAMED:
            raise ValueError(f"choose {' or '.join(NAMED)}")
        return NAMED[value].model_dump()

    @field_validator("looks")
    @classmethod
    def _looks_increase(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or any(later <= earlier for earlier, later in itertools.pairwise(value)):
            raise ValueError("the numbers must increase, for example 12,24,48,96")
        return value

    @field_validator("confirm_max_pairs")
    @classmethod
    def _bounds_in_order(cls, value: int, info: ValidationInfo) -> int:
        least = info.data.get("confirm_pairs", 4)
        if value < least:
            raise ValueError(f"must be at least confirm_pairs, which is {least}")
        return value

    def with_values(self, **changes: Any) -> Measurement:
        """A copy with some values changed and validated again; raises pydantic's ValidationError."""
        return Measurement(**{**self.model_dump(), **changes})

    @property
    def name(self) -> str:
        """``standard``, ``quick``, or ``custom``."""
        return next((name for name, known in NAMED.items() if known == self), "custom")


# ``quick`` stops earlier: its claims are as safe, and its intervals are wider. Checks are the same.
NAMED = {"standard": Measurement(), "quick": Measurement(looks=(12,), race_pairs=12, confirm_max_pairs=5)}
