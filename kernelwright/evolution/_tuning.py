"""The search for a candidate's best knob setting by races: each new setting is timed beside the best one so far.

Like the evolutionary search, its state is a fold over the evaluations that it is told. The same evaluations in the
same order give the same state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from kernelwright import inline
from kernelwright.agents import MACHINE_CODE, Attempt, Duplicate
from kernelwright.agents.duplicates import surroundings_of
from kernelwright.errors import UsageError
from kernelwright.evolution._knobs import KnobSearch, KnobSpace, Rank, Sampler, Setting, key_of
from kernelwright.records import Candidate, KnobValue, Speedup


class Tried(NamedTuple):
    """A setting that was judged, or that gives the same kernel as a judged setting.

    Attributes:
        value: logarithm of its speed over the default's, summed along the chain of races; None if it failed.
        beside: hash of the kernel that it was timed beside; empty for the default.
        ratio: its speed over that kernel's.
        twin: hash of the judged kernel that it equals; empty if it was judged itself.
    """

    candidate: Candidate
    setting: Setting
    value: float | None
    beside: str = ""
    ratio: Speedup | None = None
    twin: str = ""


class Tuning:
    """Chooses the settings of a candidate to judge and their rivals, and keeps the best setting.

    Args:
        given: the candidate; its knobs, or else its text, give the default setting.
        baseline: settings that were not raced are compared by their speedups over this baseline.
        sampler, most, rank: as in :class:`KnobSearch`.

    Raises:
        UsageError: the candidate declares no knobs with a choice, or the sampler cannot search them.
    """

    def __init__(
        self,
        given: Candidate,
        *,
        baseline: str,
        sampler: Sampler = "tpe",
        most: int,
        rank: Rank | None = None,
    ) -> None:
        self.space = KnobSpace.of(given.source, given.knobs)
        if not self.space.free:
            raise UsageError(
                "the candidate declares no knobs that have a choice",
                hint='it needs KNOBS = {"BLOCK": [64, 128]} at module level, and to read BLOCK',
            )
        said = inline.knob_settings(given.source, given.knobs)
        complete = all(name in said for name in self.space.default)
        self.default = given if complete else given.model_copy(update={"knobs": {**self.space.default, **given.knobs}})
        seed = f"{self.default.sha256}/{given.problem_id}"
        self.search = KnobSearch(self.space, sampler=sampler, seed=seed, most=most, rank=rank)
        self.tried: dict[str, Tried] = {}
        self.best: Candidate | None = None
        self._baseline = baseline
        self._given = given
        self._speeds: dict[str, float] = {}  # over the baseline, as logarithms
        self._machine_codes: dict[str, str] = {}

    def setting_of(self, candidate: Candidate) -> dict[str, KnobValue]:
        """The values of a candidate's knobs."""
        return {**self.space.default, **inline.knob_settings(candidate.source, candidate.knobs)}

    def candidate_of(self, setting: Setting) -> Candidate:
        """The candidate with a setting."""
        if key_of(setting) == key_of(self.space.default):
            return self.default
        return Candidate(
            problem_id=self._given.problem_id,
            source=self._given.source,
            backend=self._given.backend,
            knobs={**self._given.knobs, **setting},
            parents=(self.default.sha256,),
            operator="tune",
            author=self._given.author,
            note=in_words(self.changes(setting)),
        )

    def changes(self, setting: Setting) -> dict[str, KnobValue]:
        """The values of a setting that differ from the default."""
        default = self.space.default
        return {name: value for name, value in setting.items() if repr(value) != repr(default.get(name))}

    def ask(self) -> tuple[Candidate, ...]:
        """The candidates to build and judge next; empty if the search is done or the default does not pass."""
        if self.tried and self.best is None:
            return ()
        return tuple(self.candidate_of(setting) for setting in self.search.ask())

    def rivals(self) -> tuple[Candidate, ...]:
        """The kernel that the next candidate is timed beside: the best so far, if any."""
        return () if self.best is None else (self.best,)

    def tell(self, attempt: Attempt) -> None:
        """Record an evaluation. Evaluations must be told in the order in which they were made."""
        candidate, setting = attempt.candidate, self.setting_of(attempt.candidate)
        beside = attempt.rivals[0] if attempt.rivals else ""
        timing = attempt.verdict.timing if attempt.verdict.passed else None
        ratio = None if timing is None else timing.rivals.get(beside)
        value = self._value(attempt, beside, ratio)
        self.tried[candidate.sha256] = Tried(candidate, setting, value, beside, ratio)
        if value is not None and (self.best is None or (ratio is not None and ratio.faster)):
            self.best = candidate
        self._machine_codes[candidate.sha256] = str(attempt.action.get(MACHINE_CODE) or "")
        self.search.tell(setting, value)

    def twin_of(self, candidate: Candidate, machine_code: str) -> Tried | None:
        """The judged setting with the same machine code and the same Python, or None."""
        if not machine_code:
            return None
        around = surroundings_of(candidate)
        alike = (self.tried[sha256] for sha256, code in self._machine_codes.items() if code == machine_code)
        return next((known for known in alike if surroundings_of(known.candidate) == around), None)

    def tell_duplicate(self, duplicate: Duplicate) -> None:
        """Record a setting that gives a judged kernel: it has the same worth."""
        setting: Mapping[str, KnobValue] = duplicate.action.get("setting") or {}
        known = self.tried.get(duplicate.twin)
        value = None if known is None else known.value
        candidate = self.candidate_of(setting)
        self.tried[candidate.sha256] = Tried(candidate, setting, value, twin=duplicate.twin)
        self.search.tell(setting, value, judged=False)

    @property
    def finalists(self) -> list[Candidate]:
        """Settings that may be faster than the default, the most promising first. The winner of the races leads."""
        timed = {
            sha256: tried.value for sha256, tried in self.tried.items() if tried.value is not None and not tried.twin
        }
        timed.pop(self.default.sha256, None)
        ranked = sorted(timed, key=lambda sha256: -timed[sha256])
        best = "" if self.best is None else self.best.sha256
        ranked.sort(key=lambda sha256: sha256 != best)
        return [self.tried[sha256].candidate for sha256 in ranked]

    @property
    def improved(self) -> bool:
        """Whether another setting than the default won the races."""
        return self.best is not None and self.best.sha256 != self.default.sha256

    def _value(self, attempt: Attempt, beside: str, ratio: Speedup | None) -> float | None:
        """The log of a setting's speed over the default's; None without a time."""
        speedup = attempt.verdict.speedup(self._baseline) if attempt.verdict.passed else None
        if speedup is None:
            return None
        sha256, default = attempt.candidate.sha256, self.default.sha256
        self._speeds[sha256] = math.log(max(speedup.median, 1e-9))
        over = self.tried.get(beside)
        if ratio is not None and over is not None and over.value is not None:
            return over.value + math.log(max(ratio.median, 1e-9))
        return self._speeds[sha256] - self._speeds.get(default, self._speeds[sha256])


def in_words(setting: Setting) -> str:
    """A setting in words: ``BLOCK = 64, UNROLL = 4``."""
    return ", ".join(f"{name} = {value}" for name, value in setting.items())
