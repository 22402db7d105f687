"""One population: its archive, who has how many children, and how long ago anything was found."""

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
        plan: how it is set up.
        backend: what its kernels are written in.
        archive: its elites.
        restarts: how often it began anew.
    """

    def __init__(self, plan: IslandPlan, backend: Backend, book: Book, *, races: bool) -> None:
        """``backend``: the run's, for an island that names none."""
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
        """Take in a candidate of this island, and how its archive received it; None where it failed."""
        self._attempts.append(attempt)
        self._founded += not attempt.candidate.parents
        self._children.update(attempt.candidate.parents)
        if admission in FOUND:
            self.found(attempt)
        else:
            self.found_nothing()

    def found_nothing(self) -> None:
        """A step of this island brought nothing new."""
        self._since_find += 1

    def found(self, attempt: Attempt) -> None:
        """A candidate got a place in the archive."""
        self._finds.update(attempt.candidate.parents)
        self._since_find = 0

    def tried(self, sha256: str) -> bool:
        """Whether a candidate was told of this island since it last began anew."""
        return any(attempt.candidate.sha256 == sha256 for attempt in self._attempts)

    @property
    def wants_founders(self) -> bool:
        """Whether it is still to begin some kernels from nothing."""
        return self._founded < self.plan.founders

    @property
    def steps_without_find(self) -> int:
        """Its candidates since one last got a place."""
        return self._since_find

    def restart(self) -> None:
        """Begin anew, with an empty archive and founders to come."""
        self.archive.clear()
        self._attempts, self._since_find, self._founded = [], 0, 0
        self.restarts += 1

    def parent(self, rng: random.Random, *, but: Sequence[str] = ()) -> Member | None:
        """A kernel to go on from, as the island selects; None where there is none besides ``but``."""
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
        """The failed candidate to repair: the last one of the latest round, unless that was tried often enough.

        Where nothing has passed yet, the one that got furthest of all that were not given up. A setting of knobs is not
        repaired: another one is tried.
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
        """How many repairs led here and how many began here."""
        by_hash = {known.candidate.sha256: known for known in self._attempts}
        count, at = self._children[attempt.candidate.sha256], attempt
        while at.candidate.operator == "repair" and at.candidate.parents and at.candidate.parents[0] in by_hash:
            count, at = count + 1, by_hash[at.candidate.parents[0]]
        return count


def _set_by_search(attempt: Attempt) -> bool:
    """Whether the search chose a known kernel's knobs, and nobody wrote anything."""
    asked = attempt.action.get("assignment") or {}
    return bool(asked.get("knobs"))
