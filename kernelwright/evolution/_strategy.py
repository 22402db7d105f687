"""The search as a strategy of the step: it is told the context's evaluations and asked for assignments."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernelwright.agents import Again, Assignment, Attempt, Duplicate, Fruitless, StepContext, Unjudged
from kernelwright.evolution._search import Search
from kernelwright.records import Candidate

MOST_AGAIN = 2  # evaluations of known kernels for each new one; the rest waits for the next round


class Evolution:
    """Evolves the kernels of one problem.

    The search is told every attempt once, in order. If the context does not continue what the search was told (a
    resumed run, another problem), a new search is told all attempts.

    Args:
        make: makes a new search without any evaluations.
        samples: number of candidates in a round.
    """

    heeds_stops = False

    def __init__(self, make: Callable[[], Search], *, samples: int = 1) -> None:
        self._make = make
        self._samples = samples
        self._kept = make()
        self._told: list[str | Unjudged] = []  # ids of evaluations, and unjudged steps
        self._asked: dict[int, tuple[Assignment, ...]] = {}  # by round, for the current state of the search

    def search(self, context: StepContext) -> Search:
        """The search after the attempts of a context."""
        return self.told(context.attempts, (*context.duplicates, *context.fruitless))

    def told(self, attempts: Sequence[Attempt], unjudged: Sequence[Unjudged] = ()) -> Search:
        """The search after exactly these attempts and unjudged steps."""
        rows = _in_order(attempts, unjudged)
        if rows == self._told:
            return self._kept
        self._asked = {}
        if rows[: len(self._told)] != self._told:
            self._kept, self._told = self._make(), []
        by_id = {attempt.evaluation_id: attempt for attempt in attempts}
        for row in rows[len(self._told) :]:
            if isinstance(row, Duplicate):
                self._kept.tell_duplicate(row)
            elif isinstance(row, Fruitless):
                self._kept.tell_fruitless(row)
            else:
                self._kept.tell(by_id[row])
        self._told = rows
        return self._kept

    def assign(self, context: StepContext) -> tuple[Assignment, ...]:
        """The assignments of the search for this round."""
        return self._ask(context, context.round)

    def _ask(self, context: StepContext, number: int) -> tuple[Assignment, ...]:
        """The assignments for a round in the current state, computed once."""
        search = self.search(context)
        if number not in self._asked:
            self._asked[number] = search.ask(number, self._samples)
        return self._asked[number]

    def focus(self, context: StepContext) -> Attempt | None:
        """The latest attempt with a parent of the next assignment; the last attempt if that one has no parents.

        None if the next assignment only sets knobs.
        """
        asked = self._ask(context, context.round + 1)[0]
        if asked.knobs:
            return None
        found = [attempt for attempt in context.attempts if attempt.candidate.sha256 in asked.parents]
        return found[-1] if found else context.attempts[-1]

    def rivals(self, context: StepContext, candidate: Candidate) -> tuple[str, ...]:
        """The parent whose place the candidate will probably compete for."""
        return self.search(context).rivals_of(candidate.parents)

    def again(self, context: StepContext) -> Again | None:
        """The first evaluation that the search wants of a known kernel."""
        done = sum(attempt.round == context.round and attempt.purpose != "search" for attempt in context.attempts)
        if done >= MOST_AGAIN * self._samples:
            return None
        wanted = self.search(context).contests()
        return wanted[0] if wanted else None

    def ranking(self, context: StepContext) -> list[Attempt]:
        """The attempts, ranked by all measurements of each kernel."""
        return [member.attempt for member in self.search(context).ranking]


def _in_order(attempts: Sequence[Attempt], unjudged: Sequence[Unjudged]) -> list[str | Unjudged]:
    """Ids of evaluations in order, with each unjudged step placed after the number of evaluations in its ``after``."""
    after: dict[int, list[str | Unjudged]] = {}
    for row in sorted(unjudged, key=lambda row: row.round):
        after.setdefault(row.after, []).append(row)
    rows = after.get(0, [])
    for number, attempt in enumerate(attempts, 1):
        rows += [attempt.evaluation_id, *after.get(number, ())]
    return rows
