"""The operator that sets declared knobs: the next setting of a parent's text, by all that its settings were worth.

No model is asked. What a text's knobs were tried at is what a run's rows say, whoever wrote them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from kernelwright.agents import Attempt, Duplicate
from kernelwright.evolution._knobs import KnobSearch, KnobSpace, Rank, Setting, key_of
from kernelwright.inline import declared_knobs, knob_settings
from kernelwright.records import Candidate, KnobValue, sha256_text

Ranks = Callable[[Candidate], Rank | None]
_WALKED = 16  # settings of a space that is walked through, the near ones first


class KnobOperator:
    """Says which setting of a kernel's knobs to try next.

    Args:
        seed: what draws follow from, besides what is told.
        baseline: whose speedup counts.
        ranks: what says of a kernel's settings what they are expected to be worth; None where nothing does.
    """

    def __init__(self, seed: str, baseline: str, ranks: Ranks = lambda candidate: None) -> None:
        self._seed = seed
        self._ranks = ranks
        self._baseline = baseline
        self._spaces: dict[str, KnobSpace] = {}  # by text
        self._tried: dict[str, dict[str, tuple[Setting, float | None]]] = {}  # by text and setting
        self._sources: dict[str, str] = {}  # by kernel
        self._values: dict[str, float | None] = {}

    def tell(self, attempt: Attempt) -> None:
        """Take in a candidate's first evaluation."""
        candidate, verdict = attempt.candidate, attempt.verdict
        speedup = verdict.speedup(self._baseline) if verdict.passed else None
        value = None if speedup is None else math.log(max(speedup.median, 1e-9))
        self._sources[candidate.sha256], self._values[candidate.sha256] = candidate.source, value
        if declared_knobs(candidate.source):
            self._note(candidate.source, knob_settings(candidate.source, candidate.knobs), value)

    def tell_duplicate(self, duplicate: Duplicate) -> None:
        """Take in that a setting that was asked for gave a kernel that is known."""
        asked = duplicate.action.get("assignment") or {}
        parents = asked.get("parents") or [""]
        source = self._sources.get(parents[0])
        if asked.get("knobs") and source is not None:
            self._note(source, {**asked["knobs"]}, self._values.get(duplicate.twin))

    def _note(self, source: str, setting: Setting, value: float | None) -> None:
        space = self._space(source)
        whole = {**space.default, **setting}
        self._tried.setdefault(source, {})[key_of(whole)] = whole, value

    def applies(self, candidate: Candidate) -> bool:
        """Whether a kernel has knobs with a setting that was not tried."""
        if not declared_knobs(candidate.source):
            return False
        return self._search(candidate).left > 0

    def setting(self, candidate: Candidate, sample: int = 0, count: int = 1) -> dict[str, KnobValue]:
        """The next setting to try of a kernel to which it applies; another one for each ``sample`` below ``count``.

        The last one comes again where fewer are left than are asked for, and the default where that was not told yet.
        """
        settings = self._search(candidate, count).ask()
        return settings[min(sample, len(settings) - 1)]

    def _search(self, candidate: Candidate, batch: int = 1) -> KnobSearch:
        tried = self._tried.get(candidate.source, {})
        seed = f"{self._seed}/{sha256_text(candidate.source)}/{len(tried)}"
        rank = self._ranks(candidate)
        search = KnobSearch(self._space(candidate.source), seed=seed, most=_WALKED, batch=batch, rank=rank)
        for setting, value in tried.values():
            search.tell(setting, value, judged=False)
        return search

    def _space(self, source: str) -> KnobSpace:
        if source not in self._spaces:
            self._spaces[source] = KnobSpace.of(source, {})
        return self._spaces[source]
