"""The operator that sets declared knobs: the next setting for a parent's text, by the worth of earlier settings.

No model is asked. The settings tried for a text come from the run's rows, whatever wrote the kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kernelwright.agents import Attempt, Duplicate
from kernelwright.evolution._knobs import KnobSearch, KnobSpace, Rank, Setting, key_of
from kernelwright.inline import declared_knobs, knob_settings
from kernelwright.records import Candidate, KnobValue, sha256_text

Ranks = Callable[[Candidate], Rank | None]
Score = tuple[float, ...]  # the compiler's score, larger is better
_STEP = 0.05  # log-ratio that the search assumes between neighbours in the order of untimed kernels
_WALKED = 16  # a space of at most this many settings is walked through, the near ones first


class _Worth(NamedTuple):
    """The worth of a setting: the log of its speedup, and its score if it passed untimed. None if it failed."""

    value: float | None
    score: Score | None


class KnobOperator:
    """Chooses the next setting of a kernel's knobs to try.

    Args:
        seed: random seed of the draws.
        baseline: the baseline of the speedups that count.
        ranks: returns a function that predicts the worth of a kernel's settings, or None.
    """

    def __init__(self, seed: str, baseline: str, ranks: Ranks = lambda candidate: None) -> None:
        self._seed = seed
        self._ranks = ranks
        self._baseline = baseline
        self._spaces: dict[str, KnobSpace] = {}  # by text
        self._tried: dict[str, dict[str, tuple[Setting, _Worth]]] = {}  # by text and setting
        self._sources: dict[str, str] = {}  # by kernel
        self._worth: dict[str, _Worth] = {}

    def tell(self, attempt: Attempt) -> None:
        """Record a candidate's first evaluation."""
        candidate, verdict = attempt.candidate, attempt.verdict
        speedup = verdict.speedup(self._baseline) if verdict.passed else None
        value = None if speedup is None else math.log(max(speedup.median, 1e-9))
        worth = _Worth(value, attempt.static_score if verdict.passed else None)
        self._sources[candidate.sha256], self._worth[candidate.sha256] = candidate.source, worth
        if declared_knobs(candidate.source):
            self._note(candidate.source, knob_settings(candidate.source, candidate.knobs), worth)

    def tell_duplicate(self, duplicate: Duplicate) -> None:
        """Record that a requested setting gave a known kernel."""
        asked = duplicate.action.get("assignment") or {}
        parents = asked.get("parents") or [""]
        source = self._sources.get(parents[0])
        if asked.get("knobs") and source is not None:
            self._note(source, {**asked["knobs"]}, self._worth.get(duplicate.twin, _Worth(None, None)))

    def _note(self, source: str, setting: Setting, worth: _Worth) -> None:
        space = self._space(source)
        whole = {**space.default, **setting}
        self._tried.setdefault(source, {})[key_of(whole)] = whole, worth

    def applies(self, candidate: Candidate) -> bool:
        """Whether a kernel has knobs with an untried setting."""
        if not declared_knobs(candidate.source):
            return False
        return self._search(candidate).left > 0

    def setting(self, candidate: Candidate, sample: int = 0, count: int = 1) -> dict[str, KnobValue]:
        """The next setting to try for a kernel to which the operator applies; each ``sample`` gets another setting.

        If fewer than ``count`` settings are left, the last one repeats. An untried default comes first, alone.
        """
        settings = self._search(candidate, count).ask()
        return settings[min(sample, len(settings) - 1)]

    def _search(self, candidate: Candidate, batch: int = 1) -> KnobSearch:
        tried = _valued(self._tried.get(candidate.source, {}).values())
        seed = f"{self._seed}/{sha256_text(candidate.source)}/{len(tried)}"
        rank = self._ranks(candidate)
        search = KnobSearch(self._space(candidate.source), seed=seed, most=_WALKED, batch=batch, rank=rank)
        for setting, value in tried:
            search.tell(setting, value, judged=False)
        return search

    def _space(self, source: str) -> KnobSpace:
        if source not in self._spaces:
            self._spaces[source] = KnobSpace.of(source, {})
        return self._spaces[source]


def _valued(tried: Iterable[tuple[Setting, _Worth]]) -> list[tuple[Setting, float | None]]:
    """Each setting with its worth. If nothing was timed, the worth is its place in the order of compiler scores."""
    told = list(tried)
    if any(worth.value is not None for _, worth in told):
        return [(setting, worth.value) for setting, worth in told]
    places = sorted({worth.score for _, worth in told if worth.score is not None})
    return [(setting, None if worth.score is None else _STEP * places.index(worth.score)) for setting, worth in told]
