"""The plan and the result of a search over one kernel's knobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from kernelwright.campaign._results import RunStatus
from kernelwright.evolution import Sampler, in_words
from kernelwright.records import Interval, KnobValue, Record, Speedup, Status

Outcome = Literal["improved", "default", "undecided", "failed", "unfinished"]


class TunePlan(Record):
    """What to tune and for how long. ``candidate``: hash of the kernel to tune; its own setting is the default."""

    candidate: str
    sampler: Sampler = "tpe"
    max_evaluations: int = Field(24, ge=1)
    max_seconds: float = Field(60.0, gt=0)
    cost_model: bool = True


class TunedSetting(Record):
    """A setting that was tried.

    Attributes:
        changes: its values that differ from the default.
        speedup: over the default, multiplied along the chain of races back to it; None if the setting failed.
        beside: hash of the kernel that it was raced with. ``ratio``: its speed over that kernel's.
        twin: hash of a judged kernel with the same machine code; such a setting is not judged again.
    """

    candidate: str
    setting: Mapping[str, KnobValue]
    changes: Mapping[str, KnobValue]
    status: Status | None
    reason: str = ""
    speedup: float | None = None
    beside: str = ""
    ratio: Speedup | None = None
    twin: str = ""


class CostModelUse(Record):
    """The use of the learned cost model: whether it ordered the settings, and how good it is.

    ``rank_correlation`` is Spearman's on held-out problems, with its 95% interval; None if there is too little data.
    """

    used: bool = False
    rank_correlation: Interval | None = None
    kernels: int = 0
    problems: int = 0
    reason: str = ""


class TuneResult(Record):
    """The outcome of tuning one kernel.

    ``improved``: ``best`` is faster than the default, by the confirmation. ``default``: no setting is faster than the
    default by more than the noise. ``undecided``: neither could be shown. ``failed``: the default does not pass, or a
    confirmation refused it. ``unfinished``: the run stopped before its end and can be resumed.

    Attributes:
        best: hash of the kernel to use; the default's if no other kernel is known to be faster.
        nearest: hash of the kernel, other than the default's, that ``ratio`` is about.
        ratio: its speed over the default's, from one confirmation in fresh processes.
        evaluation: id of the best kernel's evaluation.
    """

    run_id: str
    status: RunStatus
    reason: str = ""
    problem: str
    default: str
    default_setting: Mapping[str, KnobValue]
    outcome: Outcome
    best: str | None = None
    setting: Mapping[str, KnobValue] = {}
    nearest: str | None = None
    nearest_changes: Mapping[str, KnobValue] = {}
    ratio: Interval | None = None
    evaluation: str | None = None
    space: int = 0
    exhaustive: bool = False
    sampler: Sampler = "tpe"
    judged: int = 0
    tried: tuple[TunedSetting, ...] = ()
    cost_model: CostModelUse = CostModelUse()
    seconds: float = 0.0

    @property
    def summary(self) -> str:
        """The outcome in a sentence."""
        default = f"the default ({in_words(self.default_setting)})"
        if self.outcome in ("failed", "unfinished"):
            return self.reason
        if self.ratio is None:
            return f"{default} was best of {self._looked_at}: no other setting passed"
        nearest = in_words(self.nearest_changes)
        ratio = f"{self.ratio.median:.2f}x [{self.ratio.low:.2f}, {self.ratio.high:.2f}] of"
        if self.outcome == "improved":
            return f"{nearest} is {ratio} {default}"
        fine = f"{self.ratio.median:.3f}x [{self.ratio.low:.3f}, {self.ratio.high:.3f}] of it"
        if self.outcome == "default":
            most = max(self.ratio.high - 1, 0.0)
            return (
                f"{default} was best of {self._looked_at}: the nearest, {nearest}, is {fine}, at most {most:.1%} faster"
            )
        return f"of {self._looked_at} none was proved faster than {default}; the nearest, {nearest}, is {fine}"

    @property
    def _looked_at(self) -> str:
        """The number of settings that were tried, in words; the result claims nothing about the others."""
        twins = sum(bool(setting.twin) for setting in self.tried)
        known = self.judged + twins
        return (
            f"all {self.space} settings" if known >= self.space else f"the {known} settings looked at, of {self.space}"
        )
