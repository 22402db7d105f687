"""Strategies: the next assignments for Coders and their parents, decided by measurements."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from kernelwright.agents.roles import Assignment, Attempt, Mode, Purpose, StepContext, best_attempt
from kernelwright.records import Candidate

EDITED_CHARACTERS = 6000  # a longer source is changed by edits, since writing it anew costs more than it gains


class Strategy(Protocol):
    """Decides what to try next. It depends on the context only, so that a resumed run continues like the killed one.

    Attributes:
        heeds_stops: whether a Judge's advice to stop ends the loop.
    """

    heeds_stops: bool

    def assign(self, context: StepContext) -> tuple[Assignment, ...]:
        """The assignments of this round's Coders, who work side by side; their ``sample`` numbers differ."""
        ...

    def focus(self, context: StepContext) -> Attempt | None:
        """The attempt that the Judge advises on, from which the next round will begin.

        None if no Coder would read the advice.
        """
        ...

    def rivals(self, context: StepContext, candidate: Candidate) -> tuple[str, ...]:
        """Hashes of earlier candidates to time a new one beside."""
        ...

    def again(self, context: StepContext) -> Again | None:
        """The known candidate to judge again before anything new is tried, or None."""
        ...

    def ranking(self, context: StepContext) -> list[Attempt]:
        """The attempts that passed, the best first, one for each candidate."""
        ...


class Again(NamedTuple):
    """A request to judge a known candidate again, beside ``rivals`` if there are any."""

    candidate: str
    rivals: tuple[str, ...]
    purpose: Purpose


class OneLine:
    """Base of strategies that judge every candidate once, without rivals."""

    heeds_stops = True

    def rivals(self, context: StepContext, candidate: Candidate) -> tuple[str, ...]:
        """No rivals."""
        return ()

    def again(self, context: StepContext) -> Again | None:
        """No candidate to judge again."""
        return None

    def ranking(self, context: StepContext) -> list[Attempt]:
        """The attempts by :meth:`Attempt.rank`; of several attempts with one candidate, the best one."""
        passed = [(attempt, attempt.rank(context.baseline)) for attempt in context.attempts]
        ranked = sorted(((a, rank) for a, rank in passed if rank is not None), key=lambda pair: pair[1], reverse=True)
        return list({attempt.candidate.sha256: attempt for attempt, _ in reversed(ranked)}.values())[::-1]


class OneAtATime(OneLine):
    """One candidate a round, which the Judge advises on. The Coder itself chooses the parents."""

    def assign(self, context: StepContext) -> tuple[Assignment, ...]:
        """One assignment."""
        return (Assignment(mode="improve" if context.attempts else "new"),)

    def focus(self, context: StepContext) -> Attempt:
        """The last attempt."""
        return context.attempts[-1]


class BranchFromBest(OneLine):
    """Repairs failed kernels a few times, and otherwise continues from the best kernel or from the latest one.

    With several samples, the second one crosses the best kernel with the next best unrelated one, and further ones
    start anew, so that the samples of a round are different ideas.

    Args:
        samples: number of candidates in a round.
        repairs: how often a failed kernel and its repairs are repaired before it is given up.
        latest: continue from the latest kernel instead of the best one, and repair it without a limit.
    """

    def __init__(self, samples: int = 1, repairs: int = 3, *, latest: bool = False) -> None:
        self._samples = samples
        self._repairs = repairs
        self._latest = latest

    def assign(self, context: StepContext) -> tuple[Assignment, ...]:
        """One assignment for each sample."""
        first = self._first(context)
        others = [self._other(context, sample) for sample in range(1, self._samples)]
        return tuple(made.model_copy(update={"sample": sample}) for sample, made in enumerate((first, *others)))

    def focus(self, context: StepContext) -> Attempt:
        """The parent of the first next assignment; the last attempt if that one has no parent."""
        parents = self._first(context).parents
        found = [attempt for attempt in context.attempts if attempt.candidate.sha256 in parents]
        return found[-1] if found else context.attempts[-1]

    def _first(self, context: StepContext) -> Assignment:
        failed = self._to_repair(context)
        if failed is not None:
            return Assignment(mode="repair", parents=(failed.candidate.sha256,))
        best = self._base(context)
        if best is None:
            return Assignment(mode="new")
        return Assignment(mode=_going_on(best), parents=(best.candidate.sha256,))

    def _other(self, context: StepContext, sample: int) -> Assignment:
        best = self._base(context)
        second = next((a for a in self.ranking(context)[1:] if best and not _related(a, best)), None)
        if sample == 1 and best is not None and second is not None:
            return Assignment(mode="cross", parents=(best.candidate.sha256, second.candidate.sha256))
        if sample == 1 and best is not None:
            return Assignment(mode="improve", parents=(best.candidate.sha256,))
        return Assignment(mode="new")

    def _base(self, context: StepContext) -> Attempt | None:
        """The kernel to improve: the best of all, or the best of the latest round in which one passed."""
        if not self._latest:
            return context.best
        passed = [attempt for attempt in context.attempts if attempt.verdict.passed]
        newest = tuple(attempt for attempt in passed if attempt.round == passed[-1].round)
        return best_attempt(newest, context.baseline)

    def _to_repair(self, context: StepContext) -> Attempt | None:
        """The attempt of the latest round that got furthest, if all failed and it was not repaired too often."""
        latest = [attempt for attempt in context.attempts if attempt.round == context.attempts[-1].round]
        failed = [attempt for attempt in latest if not attempt.verdict.passed]
        if not failed or len(failed) < len(latest):
            return None
        by_hash = {attempt.candidate.sha256: attempt for attempt in context.attempts}
        furthest = max(failed, key=lambda attempt: (_progress(attempt), -int(attempt.action.get("sample") or 0)))
        return furthest if self._latest or _repairs_before(furthest, by_hash) < self._repairs else None


class Trajectories(OneLine):
    """Independent lines of kernels side by side: each sample continues from its own latest kernel.

    A latest kernel that failed is repaired, without a limit. One that passed is improved, even if it is no better than
    the one before. No line branches from another one (Kevin, arXiv:2507.11948).

    Args:
        samples: number of lines.
    """

    def __init__(self, samples: int = 1) -> None:
        self._samples = samples

    def assign(self, context: StepContext) -> tuple[Assignment, ...]:
        """The next turn of every line."""
        return tuple(self._turn(context, sample) for sample in range(self._samples))

    def _turn(self, context: StepContext, sample: int) -> Assignment:
        line = [a for a in context.attempts if int(a.action.get("sample") or 0) == sample]
        if not line:
            return Assignment(mode="new", sample=sample, own_line=True)
        return Assignment(mode=_going_on(line[-1]), parents=(line[-1].candidate.sha256,), sample=sample, own_line=True)

    def focus(self, context: StepContext) -> Attempt:
        """The last attempt. Only its line gets the Judge's advice."""
        return context.attempts[-1]


def _going_on(attempt: Attempt) -> Mode:
    """The mode for the next kernel of a line after an attempt."""
    if not attempt.verdict.passed:
        return "repair"
    return "edit" if len(attempt.candidate.source) > EDITED_CHARACTERS else "improve"


GAIN = 0.02  # least relative gain of the lower bound that counts


def rounds_without_gain(context: StepContext) -> int:
    """Rounds since the best lower bound of the speedup last rose by more than 2%; 0 while nothing has passed."""
    best, since, competing = 0.0, 0, context.competing
    for number in range(context.round + 1):
        bounds = [attempt.lower_bound(context.baseline) for attempt in competing if attempt.round == number]
        bound = max((found for found in bounds if found is not None), default=0.0)
        since = 0 if bound > best * (1 + GAIN) or not best else since + 1
        best = max(best, bound)
    return since


def share_of_roofline(context: StepContext) -> float | None:
    """The least time that the machine's ceilings allow over the best kernel's time; 1 is on the roofline.

    It comes from the referee's profile of that kernel. None if the kernel was not profiled or nothing passed.
    """
    best = context.best
    profile = None if best is None else best.verdict.profile
    distance = 0.0 if profile is None else profile.metrics.get("distance_to_roofline", 0.0)
    return 1.0 / distance if distance > 0 else None


def _progress(attempt: Attempt) -> int:
    """The number of stages that a failed attempt completed."""
    order = [None, "screened", "compiled", "checked", "timed", "confirmed"]
    return order.index(attempt.verdict.stage.value if attempt.verdict.stage else None)


def _repairs_before(attempt: Attempt, by_hash: dict[str, Attempt]) -> int:
    count, at = 0, attempt
    while at.candidate.operator == "repair" and at.candidate.parents and at.candidate.parents[0] in by_hash:
        count, at = count + 1, by_hash[at.candidate.parents[0]]
    return count


def _related(a: Attempt, b: Attempt) -> bool:
    """Whether one of two attempts is a parent of the other."""
    return a.candidate.sha256 in b.candidate.parents or b.candidate.sha256 in a.candidate.parents
