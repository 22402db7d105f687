"""One population: its archive, the number of children of each kernel, and the steps since the last find."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from kernelwright.agents import Attempt
from kernelwright.evolution._archive import Admission, Archive
from kernelwright.evolution._axes import axes_named
from kernelwright.evolution._book import Book, Member
from kernelwright.evolution._plan import IslandPlan
from kernelwright.evolution._selection import Choice, selector
from kernelwright.records import Backend, Stage

_FURTHEST = [None, *Stage]
FOUND: frozenset[Admission] = frozenset({"new", "replaced"})


class Island:
    """A population of one problem's kernels.

    Attributes:
        plan: its settings.
        backend: the language of its kernels.
        archive: its elites.
        restarts: how often it began anew.
    """

    def __init__(self, plan: IslandPlan, backend: Backend, book: Book, *, races: bool) -> None:
        """``backend``: the run's backend, used if the plan names none."""
        self.plan = plan
        self.backend: Backend = plan.backend or backend
        self.archive = Archive(axes_named(plan.axes, self.backend), book, races=races)
        self.restarts = 0
        self._book = book
        self._select = selector(plan.selection)
        self._attempts: list[Attempt] = []
        self._children: Counter[str] = Counter()
        self._finds: Counter[str] = Counter()
        self._since_find = 0
        self._founded = 0

    def tell(self, attempt: Attempt, admission: Admission | None) -> None:
        """Record a candidate of this island and its admission to the archive; None if the candidate failed."""
        self._attempts.append(attempt)
        self._founded += not attempt.candidate.parents
        self._children.update(attempt.candidate.parents)
        if admission in FOUND:
            self.found(attempt)
        else:
            self.found_nothing()

    def found_nothing(self) -> None:
        """Record a step of this island that brought nothing new."""
        self._since_find += 1

    def found(self, attempt: Attempt) -> None:
        """Record that a candidate got a place in the archive."""
        self._finds.update(attempt.candidate.parents)
        self._since_find = 0

    def tried(self, sha256: str) -> bool:
        """Whether a candidate of this island was recorded since its last restart."""
        return any(attempt.candidate.sha256 == sha256 for attempt in self._attempts)

    @property
    def wants_founders(self) -> bool:
        """Whether the island still needs kernels from nothing."""
        return self._founded < self.plan.founders

    @property
    def steps_without_find(self) -> int:
        """The number of steps since a candidate last got a place."""
        return self._since_find

    def restart(self) -> None:
        """Begin anew with an empty archive and new founders."""
        self.archive.clear()
        self._attempts, self._since_find, self._founded = [], 0, 0
        self.restarts += 1

    def parent(self, rng: random.Random, *, but: Sequence[str] = ()) -> Member | None:
        """A parent, chosen by the island's selection; None if there are no elites except those in ``but``."""
        elites = [member for member in self.archive.elites if member.sha256 not in but]
        if not elites:
            return None
        ranked = sorted(elites, key=lambda member: member.level)
        choices = [
            Choice(
                member.sha256,
                member.standing.value if member.standing is not None else float(ranked.index(member)),
                self._children[member.sha256],
                self._finds[member.sha256],
            )
            for member in elites
        ]
        return self._book[self._select(choices, rng).sha256]

    def to_repair(self, most: int) -> Attempt | None:
        """The failed candidate to repair: the last one of the latest round, unless it was given up.

        A candidate is given up after ``most`` repairs. If the archive is empty, the candidate that got furthest is
        repaired. Settings of knobs are not repaired; another setting is tried instead.
        """
        failed = [a for a in self._attempts if not (a.verdict.passed or _set_by_search(a))]
        failed = [a for a in failed if self._repairs_before(a) < most]
        if not failed:
            return None
        if self.archive.cells:
            latest = self._attempts[-1].round
            fresh = [a for a in failed if a.round == latest and not self._children[a.candidate.sha256]]
            return fresh[-1] if fresh else None
        return max(failed, key=lambda a: (_FURTHEST.index(a.verdict.stage), -self._children[a.candidate.sha256]))

    def _repairs_before(self, attempt: Attempt) -> int:
        """The number of repairs that led to an attempt, plus its children."""
        by_hash = {known.candidate.sha256: known for known in self._attempts}
        count, at = self._children[attempt.candidate.sha256], attempt
        while at.candidate.operator == "repair" and at.candidate.parents and at.candidate.parents[0] in by_hash:
            count, at = count + 1, by_hash[at.candidate.parents[0]]
        return count


def _set_by_search(attempt: Attempt) -> bool:
    """Whether the attempt is a known kernel with knobs that the search chose, without a Coder."""
    asked = attempt.action.get("assignment") or {}
    return bool(asked.get("knobs"))
