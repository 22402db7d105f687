"""What the Coder is asked for next, and from which kernels: decided by what was measured, never by what came last."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from kernelwright.agents.roles import Assignment, Attempt, Mode, Purpose, StepContext, best_attempt
from kernelwright.records import Candidate

EDITED_CHARACTERS = 6000  # a source longer than this is changed by edits: writing it anew costs more than it teaches


class Strategy(Protocol):
    """Says what to try next. Must depend on the context only, so that a resumed run goes on as the killed one did.

    Attributes:
        heeds_stops: whether a Judge's word ends the loop.
    """

    heeds_stops: bool

    def assign(self, context: StepContext) -> tuple[Assignment, ...]:
        """What the Coders of this round are asked for, side by side; their ``sample`` numbers differ."""
        ...

    def focus(self, context: StepContext) -> Attempt | None:
        """The attempt that the Judge is to speak about: where the next round will begin.

        None where nobody would read it.
        """
        ...

    def rivals(self, context: StepContext, candidate: Candidate) -> tuple[str, ...]:
        """Hashes of earlier candidates that a new one is to be timed beside."""
        ...

    def again(self, context: StepContext) -> Again | None:
        """What is to be judged once more before anything new is tried; None where nothing is."""
        ...

    def ranking(self, context: StepContext) -> list[Attempt]:
        """What passed, the best first, each candidate once."""
        ...


class Again(NamedTuple):
    """An evaluation that is wanted of a candidate that was judged before: beside ``rivals``, or merely once more."""

    candidate: str
    rivals: tuple[str, ...]
    purpose: Purpose


class OneLine:
    """A strategy that judges every candidate once, for itself."""

    heeds_stops = True

    def rivals(self, context: StepContext, candidate: Candidate) -> tuple[str, ...]:
        """None."""
        return ()

    def again(self, context: StepContext) -> Again | None:
        """Nothing."""
        return None

    def ranking(self, context: StepContext) -> list[Attempt]:
        """By :meth:`Attempt.rank`; of several attempts with one candidate, the best."""
        passed = [(attempt, attempt.rank(context.baseline)) for attempt in context.attempts]
        ranked = sorted(((a, rank) for a, rank in passed if rank is not None), key=lambda pair: pair[1], reverse=True)
        return list({attempt.candidate.sha256: attempt for attempt, _ in reversed(ranked)}.values())[::-1]


class OneAtATime(OneLine):
    """One candidate a round, and the Judge speaks about it. What it is made from is the Coder's own affair."""

    def assign(self, context: StepContext) -> tuple[Assignment, ...]:
        """One assignment."""
        return (Assignment(mode="improve" if context.attempts else "new"),)

    def focus(self, context: StepContext) -> Attempt:
        """The last attempt."""
        return context.attempts[-1]


class BranchFromBest(OneLine):
    """Repairs what failed a few times, and otherwise goes on from the best kernel, or from the latest one.

    With several samples, the second one crosses the best with the next best of another parentage, and further ones
    start anew, so that a round is no four times the same idea.

    Args:
        samples: candidates a round.
        repairs: how often a failed kernel and its repairs are repaired before it is given up.
        latest: go on from the latest kernel instead of the best one, and repair it for as long as it takes.
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
        """Where the first of the next assignments begins; the last attempt where it begins anew."""
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
        """The kernel that is improved: the best one of all, or of the latest round in which one passed."""
        if not self._latest:
            return context.best
        passed = [attempt for attempt in context.attempts if attempt.verdict.passed]
        newest = tuple(attempt for attempt in passed if attempt.round == passed[-1].round)
        return best_attempt(newest, context.baseline)

    def _to_repair(self, context: StepContext) -> Attempt | None:
        """The failed attempt of the latest round that got furthest, unless it was repaired often enough."""
        latest = [attempt for attempt in context.attempts if attempt.round == context.attempts[-1].round]
        failed = [attempt for attempt in latest if not attempt.verdict.passed]
        if not failed or len(failed) < len(latest):
            return None
        by_hash = {attempt.candidate.sha256: attempt for attempt in context.attempts}
        furthest = max(failed, key=lambda attempt: (_progress(attempt), -int(attempt.action.get("sample") or 0)))
        return furthest if self._latest or _repairs_before(furthest, by_hash) < self._repairs else None


class Trajectories(OneLine):
    """Lines of kernels side by side that know nothing of each other: each sample goes on from its own latest kernel.

    That is repaired where it failed, for as long as it takes, and improved where it passed, whether it was better than
    the one before or not; no line is branched from another one (Kevin, arXiv:2507.11948).

    Args:
        samples: lines.
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
        """The last attempt: of a Judge's advice only its line hears."""
        return context.attempts[-1]


def _going_on(attempt: Attempt) -> Mode:
    """How the next kernel of a line is made from its latest one."""
    if not attempt.verdict.passed:
        return "repair"
    return "edit" if len(attempt.candidate.source) > EDITED_CHARACTERS else "improve"


GAIN = 0.02  # of the lower bound of the speedup, that counts


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
    """How near the best kernel comes to the least time that the machine's ceilings allow, 1 being on the roofline.

    From the referee's profile of exactly that kernel; None where it was not profiled, or nothing passed.
    """
    best = context.best
    profile = None if best is None else best.verdict.profile
    distance = 0.0 if profile is None else profile.metrics.get("distance_to_roofline", 0.0)
    return 1.0 / distance if distance > 0 else None


def _progress(attempt: Attempt) -> int:
    """How many stages a failed attempt completed."""
    order = [None, "screened", "compiled", "checked", "timed", "confirmed"]
    return order.index(attempt.verdict.stage.value if attempt.verdict.stage else None)


def _repairs_before(attempt: Attempt, by_hash: dict[str, Attempt]) -> int:
    count, at = 0, attempt
    while at.candidate.operator == "repair" and at.candidate.parents and at.candidate.parents[0] in by_hash:
        count, at = count + 1, by_hash[at.candidate.parents[0]]
    return count


def _related(a: Attempt, b: Attempt) -> bool:
    """Whether one was made from the other."""
    return a.candidate.sha256 in b.candidate.parents or b.candidate.sha256 in a.candidate.parents
