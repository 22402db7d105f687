"""The search over one problem: it proposes the next kernel and is told the verdicts, and never runs anything itself.

Its state follows from its seed and from the evaluations that it was told, in their order; nothing else is kept. A new
search with the same evaluations has the same state, so a killed run continues as if nothing had happened.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernelwright.agents import Again, Assignment, Attempt, Duplicate, Fruitless
from kernelwright.agents.strategy import EDITED_CHARACTERS
from kernelwright.evolution._archive import Admission
from kernelwright.evolution._axes import AXES
from kernelwright.evolution._bandit import ANY, Arm, Bandit
from kernelwright.evolution._book import Book, Member
from kernelwright.evolution._island import FOUND, Island
from kernelwright.evolution._knob_operator import KnobOperator, Ranks
from kernelwright.evolution._plan import Operator, SearchPlan
from kernelwright.evolution._selection import Choice, contrast
from kernelwright.records import Backend
from kernelwright.records.base import timed_together

_SEEDS = 1 << 31

Moves = Callable[[Attempt], Sequence[Mapping[str, Any]]]


class Search:
    """Evolution on islands of elites, with races for their places.

    Args:
        plan: the settings of the search.
        seed: random seed of the search.
        backend: the run's backend, and that of islands that name none. Kernels that are timed on another device than
            this backend's never compete for the winner.
        baseline: the baseline of the speedups that count.
        moves: returns moves from other problems that may suit a kernel, the best first. Each move is requested once.
        ranks: returns a function that predicts the worth of a kernel's knob settings before they are built, or None.
    """

    def __init__(
        self,
        plan: SearchPlan,
        *,
        seed: str,
        backend: Backend,
        baseline: str,
        moves: Moves = lambda attempt: (),
        ranks: Ranks = lambda candidate: None,
    ) -> None:
        self.plan = plan
        self._seed = seed
        self._backend: Backend = backend
        self._moves = moves
        self._book = Book(baseline, AXES)
        self._islands = [Island(island, backend, self._book, races=plan.races) for island in plan.islands]
        self._bandits = [Bandit(dict(island.operators.items())) for island in plan.islands]
        self._knobs = KnobOperator(seed, baseline, ranks)
        self._steps = 0
        self._waiting: list[tuple[int, str]] = []  # members that wait for a race, with their islands
        self._measured_at: dict[str, int] = {}
        self._transferred: set[str] = set()  # moves that were tried

    # ------------------------------------------------------------------------------------------ reading

    @property
    def islands(self) -> Sequence[Island]:
        """The populations."""
        return self._islands

    @property
    def bandits(self) -> Sequence[Bandit]:
        """The bandit of each island, which learns the worth of operators and models."""
        return self._bandits

    @property
    def members(self) -> tuple[Member, ...]:
        """Every kernel that passed."""
        return self._book.members

    def member(self, sha256: str) -> Member:
        """A kernel that passed, by its hash."""
        return self._book[sha256]

    @property
    def ranking(self) -> list[Member]:
        """Every competing kernel, the best first, even if no island holds it any more."""
        return sorted(self._competing(), key=lambda member: member.rank, reverse=True)

    @property
    def best(self) -> Member | None:
        """The competing kernel of the highest rank."""
        return max(self._competing(), key=lambda member: member.rank, default=None)

    def _competing(self) -> list[Member]:
        """The members, except those that were timed on another device than the run's kernels."""
        return [m for m in self._book.members if not m.measures or timed_together(m.candidate.backend, self._backend)]

    # ------------------------------------------------------------------------------------------ telling

    def tell(self, attempt: Attempt) -> None:
        """Record an evaluation. Evaluations must be told in the order in which they were made."""
        candidate = attempt.candidate
        if attempt.purpose == "search":
            self._knobs.tell(attempt)
            self._told_candidate(attempt)
        else:
            self._told_again(attempt)
        for sha256 in (candidate.sha256, *attempt.rivals):
            self._measured_at[sha256] = self._steps

    def tell_duplicate(self, duplicate: Duplicate) -> None:
        """Record that an assignment gave a known kernel. The step has its cost and no gain.

        Duplicates must be told in their order, like evaluations.
        """
        self._steps += 1
        self._knobs.tell_duplicate(duplicate)
        asked = duplicate.action.get("assignment") or {}
        self._transferred |= _moves_in(asked)
        number = min(int(asked.get("island", 0)), len(self._islands) - 1)
        self._bandits[number].learn(
            self._arm(str(asked.get("mode", "new")), str(asked.get("model", ""))),
            gain=0.0,
            cost_usd=float(duplicate.action.get("cost_usd") or 0.0),
            device_s=0.0,
        )
        self._islands[number].found_nothing()
        self._end_step(number)

    def tell_fruitless(self, fruitless: Fruitless) -> None:
        """Record that a Coder gave nothing to judge. It is not a step, and only counts against its arm."""
        asked = fruitless.action.get("assignment") or {}
        number = min(int(asked.get("island", 0)), len(self._islands) - 1)
        arm = self._arm(str(asked.get("mode", "new")), str(asked.get("model", "")))
        self._bandits[number].fail(arm, cost_usd=float(fruitless.action.get("cost_usd") or 0.0))

    def _told_candidate(self, attempt: Attempt) -> None:
        self._steps += 1
        self._transferred |= _moves_in(_assignment_of(attempt))
        number = self._island_of(attempt)
        island = self._islands[number]
        before = island.archive.best
        gain = self._gain(attempt, before)
        admission = self._offer(number, attempt) if self._book.take(attempt) else None
        island.tell(attempt, admission)
        self._bandits[number].learn(
            self._arm(_operator_of(attempt), str(_assignment_of(attempt).get("model", ""))),
            gain=gain if admission in FOUND or (admission == "contest" and _beat_a_parent(attempt)) else 0.0,
            cost_usd=float(attempt.action.get("cost_usd") or 0.0),
            device_s=sum(attempt.verdict.seconds.values()),
        )
        self._end_step(number)

    def _end_step(self, number: int) -> None:
        """Do what is due after a step of an island: migrate, and restart the island if it finds nothing any more."""
        island = self._islands[number]
        if self.plan.migrate_every and self._steps % self.plan.migrate_every == 0:
            self._migrate()
        if self.plan.restart_after and island.steps_without_find >= self.plan.restart_after:
            island.restart()
            self._waiting = [entry for entry in self._waiting if entry[0] != number]

    def _offer(self, number: int, attempt: Attempt) -> Admission:
        sha256, island = attempt.candidate.sha256, self._islands[number]
        if attempt.candidate.backend != island.backend:
            return "refused"
        admission = island.archive.offer(sha256)
        if admission == "contest":
            self._waiting.append((number, sha256))
        return admission

    def _told_again(self, attempt: Attempt) -> None:
        """Record an evaluation of a known kernel, and offer the waiting members again."""
        sha256 = attempt.candidate.sha256
        levels = {known: self._book[known].level for known in (sha256, *attempt.rivals) if known in self._book}
        if sha256 in self._book and (self._island_of(self._book[sha256].attempt), sha256) in self._waiting:
            # only on its own island: a migrant's race on another island is no cost of the arm that made it
            self._booked_later(self._book[sha256], device_s=sum(attempt.verdict.seconds.values()))
        if not self._book.take(attempt):
            for island in self._islands:
                island.archive.drop(sha256)
        waiting, self._waiting = self._waiting, []
        for number, challenger in waiting:
            if challenger not in self._book:
                continue
            island = self._islands[number]
            incumbent = island.archive.incumbent(challenger)
            admission = island.archive.offer(challenger)
            if admission == "contest":
                self._waiting.append((number, challenger))
            elif admission in FOUND and self._island_of(self._book[challenger].attempt) == number:
                winner = self._book[challenger]
                island.found(winner.attempt)  # a migrant is no find of the island that it comes to
                if not _beat_a_parent(winner.attempt):  # otherwise the gain is already booked
                    self._booked_later(winner, gain=self._gain_of(winner, incumbent))
        for known, level in levels.items():
            if known in self._book and self._book[known].level < level:
                self._reopen(known)

    def _booked_later(self, member: Member, *, gain: float = 0.0, device_s: float = 0.0) -> None:
        """Book the gain and cost of a kernel's race to the arm that made it."""
        made = member.attempt
        arm = self._arm(_operator_of(made), str(_assignment_of(made).get("model", "")))
        self._bandits[self._island_of(made)].add(arm, gain=gain, device_s=device_s)

    def _reopen(self, sha256: str) -> None:
        """Let a kernel that now measures better than a fallen elite race for its place.

        The elite's earlier measurements kept such kernels out, and nothing else would offer them again.
        """
        for number, island in enumerate(self._islands):
            if sha256 not in island.archive.cells.values():
                continue
            cell = island.archive.cell_of(sha256)
            better = [
                member
                for member in self._book.members
                if island.tried(member.sha256)
                and member.candidate.backend == island.backend
                and island.archive.cell_of(member.sha256) == cell
                and self._book.compare(member.sha256, sha256) == "unknown"
            ]
            best = max(better, key=lambda member: member.rank, default=None)
            if best is None or (number, best.sha256) in self._waiting:
                continue
            if island.archive.offer(best.sha256) == "contest":
                self._waiting.append((number, best.sha256))

    def _gain(self, attempt: Attempt, best: Member | None) -> float:
        """The gain of an attempt over the best of its parents, or over the island's best if it has no parents."""
        parents = [sha256 for sha256 in attempt.candidate.parents if sha256 in self._book]
        others = parents or ([best.sha256] if best is not None else [])
        gains = [self._book.gain(attempt, sha256) for sha256 in others]
        known = [gain for gain in gains if gain is not None]
        return max(min(known), 0.0) if known else 0.0

    def _gain_of(self, member: Member, incumbent: str | None) -> float:
        """The gain of a kernel that won a place, by all measurements; over ``incumbent`` if it has no parents."""
        parents = [sha256 for sha256 in member.candidate.parents if sha256 in self._book]
        others = parents or ([incumbent] if incumbent is not None and incumbent in self._book else [])
        pairs = [(member.standing, self._book[sha256].standing) for sha256 in others]
        gains = [ours.value - theirs.value for ours, theirs in pairs if ours is not None and theirs is not None]
        return max(min(gains), 0.0) if gains else 0.0

    def _island_of(self, attempt: Attempt) -> int:
        return min(int(_assignment_of(attempt).get("island", 0)), len(self._islands) - 1)

    def _migrate(self) -> None:
        """Offer the best of each island, or of all, to other islands, where it fills a free cell or races for it.

        Kernels go only to islands of their own language.
        """
        if len(self._islands) < 2:
            return
        elite = self.plan.migration == "elite"
        bests = [self._best_in(isle.backend) if elite else isle.archive.best for isle in self._islands]
        for number, migrant in enumerate(bests):
            if migrant is not None and migrant.sha256 in self._book:
                target = number if elite else self._next_alike(number)
                wants = (target, migrant.sha256)
                if self._islands[target].archive.offer(migrant.sha256) == "contest" and wants not in self._waiting:
                    self._waiting.append(wants)

    def _best_in(self, backend: Backend) -> Member | None:
        """The best kernel of a language on any island."""
        written = (member for member in self._book.members if member.candidate.backend == backend)
        return max(written, key=lambda member: member.rank, default=None)

    def _next_alike(self, number: int) -> int:
        """The next island of the same language on the ring; the island itself if there is no other."""
        count = len(self._islands)
        following = ((number + step) % count for step in range(1, count + 1))
        return next(at for at in following if self._islands[at].backend == self._islands[number].backend)

    # ------------------------------------------------------------------------------------------ asking

    def contests(self) -> tuple[Again, ...]:
        """The evaluations of known kernels that are due before anything new is tried."""
        wanted = []
        for number, sha256 in self._waiting:
            incumbent = self._islands[number].archive.incumbent(sha256)
            if incumbent is not None:
                wanted.append(Again(sha256, (incumbent,), "contest"))
        best = self.best
        every = self.plan.remeasure_every
        if not wanted and every and best is not None and best.measures:
            age = self._steps - self._measured_at.get(best.sha256, 0)
            wanted += [Again(best.sha256, (), "remeasure")] * (age >= every)
        return tuple(wanted)

    def rivals_of(self, parents: Sequence[str]) -> tuple[str, ...]:
        """The kernel that a new candidate is timed beside in its first evaluation: the best of its parents."""
        timed = [self._book[sha256] for sha256 in parents if sha256 in self._book and self._book[sha256].measures]
        if not timed or not self.plan.races:
            return ()
        return (max(timed, key=lambda member: member.rank).sha256,)

    def ask(self, number: int, count: int = 1) -> tuple[Assignment, ...]:
        """The assignments of a step, for ``count`` candidates side by side.

        Args:
            number: number of the step. The same state and number give the same answer.
        """
        tuned: Counter[str] = Counter()  # assignments of this step that set knobs, by source text
        return tuple(self._ask(number, sample, count, tuned) for sample in range(count))

    def _ask(self, number: int, sample: int, count: int, tuned: Counter[str]) -> Assignment:
        rng = random.Random(f"{self._seed}/{number}/{sample}")
        at = (number * count + sample) % len(self._islands)
        island = self._islands[at]
        first = sample < len(self._islands)  # of this island in this step
        made = self._founding(island, rng, first=first) or self._bred(at, island, rng, sample, count, tuned)
        return made.model_copy(
            update={
                "sample": sample,
                "island": at,
                "backend": island.plan.backend,
                "seed": rng.randrange(1, _SEEDS),
                "model": "" if made.knobs else made.model or island.plan.model,
                "inspirations": self._inspirations(island, made.parents, rng),
                "contrast": self.plan.inspire == "contrast",
            }
        )

    def _founding(self, island: Island, rng: random.Random, *, first: bool) -> Assignment | None:
        """A repair or a kernel from nothing; None if the island should breed from its elites.

        An island that holds kernels spends only the ``first`` candidate of a step on a repair.
        """
        mends = not island.archive.cells or (first and self.plan.mends == "failures")
        failed = island.to_repair(self.plan.repairs) if mends else None
        if failed is not None and (island.archive.cells or rng.random() < 0.75):
            return Assignment(mode="repair", parents=(failed.candidate.sha256,))
        return Assignment(mode="new") if island.wants_founders or not island.archive.cells else None

    def _bred(
        self, at: int, island: Island, rng: random.Random, sample: int, count: int, set_already: Counter[str]
    ) -> Assignment:
        """A child of the island's elites."""
        first = island.parent(rng)
        assert first is not None
        second = island.parent(rng, but=(first.sha256,))
        moves = self._untried_moves(first.attempt) if island.plan.operators.get("transfer") else []
        tuned = not _has_schedule(first) and "tune" in island.plan.operators and self._knobs.applies(first.candidate)
        possible = {
            "new": True,
            "improve": True,
            "edit": True,
            "cross": second is not None,
            "tune": _has_schedule(first) and "KNOBS" in first.candidate.source,
            "transfer": bool(moves),
            "simplify": bool(first.candidate.parents),
        }
        models = (island.plan.model,) if island.plan.model else self.plan.models or ("",)
        names = [name for name in island.plan.operators if possible.get(name, False)] + ["tune"] * tuned
        arm = self._draw(at, names or ["improve"], models, rng, free=("tune",) if tuned else ())
        if arm.operator == "new":
            return Assignment(mode="new", model=arm.model)
        if arm.operator == "cross" and second is not None:
            return Assignment(mode="cross", parents=(first.sha256, second.sha256), model=arm.model)
        if arm.operator == "tune" and tuned:
            nth = set_already[first.candidate.source]
            set_already[first.candidate.source] += 1
            knobs = self._knobs.setting(first.candidate, nth, count)
            return Assignment(mode="tune", parents=(first.sha256,), knobs=knobs)
        if arm.operator == "transfer":
            move = moves[sample % len(moves)]  # candidates of the same step get different moves
            return Assignment(mode="transfer", parents=(first.sha256,), model=arm.model, move=move)
        long = arm.operator == "improve" and len(first.candidate.source) > EDITED_CHARACTERS
        # an island with "edit" among its operators distinguishes it from "improve"
        mode: Any = "edit" if long and "edit" not in island.plan.operators else arm.operator
        return Assignment(mode=mode, parents=(first.sha256,), model=arm.model)

    def _untried_moves(self, attempt: Attempt) -> list[dict[str, Any]]:
        """Moves for a kernel that were not requested yet."""
        return [dict(move) for move in self._moves(attempt) if _name_of(move) not in self._transferred]

    def _draw(
        self, at: int, operators: Sequence[str], models: Sequence[str], rng: random.Random, free: Sequence[str]
    ) -> Arm:
        """The operator and the model of the next step; operators in ``free`` ask no model."""
        bandit = self._bandits[at]
        if self.plan.learns == "all":
            return bandit.choose([Arm(n, model) for n in operators for model in ([""] if n in free else models)], rng)
        weights: Mapping[str, float] = dict(self.plan.islands[at].operators.items())
        drawn = rng.choices(list(operators), weights=[weights.get(name, 0.0) or 1e-12 for name in operators])[0]
        if drawn in free:
            return Arm(drawn)
        if self.plan.learns == "nothing" or len(models) == 1:
            return Arm(drawn, rng.choice(list(models)))
        return Arm(drawn, bandit.choose([self._arm(drawn, model) for model in models], rng).model)

    def _arm(self, operator: str, model: str) -> Arm:
        """The arm to which a step is booked."""
        return Arm(ANY if self.plan.learns == "models" else operator, model)

    def _inspirations(self, island: Island, parents: Sequence[str], rng: random.Random) -> tuple[str, ...]:
        """Kernels to show: the best of other islands and elites of cells near the parent's, or a contrast.

        A kernel from nothing is shown only kernels of other languages, to translate them instead of repeating its own.
        """
        if self.plan.inspire == "contrast":
            here = [m for m in self._book.members if timed_together(m.candidate.backend, island.backend)]
            timed = [Choice(m.sha256, m.standing.value) for m in here if m.standing is not None]
            others = [choice for choice in timed if choice.sha256 not in parents]
            return tuple(choice.sha256 for choice in contrast(others, self.plan.inspirations, rng))
        if not self.plan.inspirations:
            return ()
        isles = [isle for isle in self._islands if isle is not island and (parents or isle.backend != island.backend)]
        elsewhere = [isle.archive.best for isle in isles]
        elites = island.archive.elites if parents else ()
        beside = sorted(elites, key=lambda member: self._distance(island, member, parents[0]))
        found = [member.sha256 for member in (*elsewhere, *beside) if member is not None]
        fresh = list(dict.fromkeys(sha256 for sha256 in found if sha256 not in parents))
        return tuple(fresh[: self.plan.inspirations])

    def _distance(self, island: Island, member: Member, parent: str) -> int:
        """The number of axes on which two kernels lie in different bins."""
        if parent not in self._book:
            return 0
        pairs = zip(island.archive.cell_of(member.sha256), island.archive.cell_of(parent), strict=True)
        return sum(ours != theirs for ours, theirs in pairs)


def _has_schedule(member: Member) -> bool:
    """Whether a kernel has a schedule of the offline Coder, which also sets its constants."""
    return member.attempt.action.get("schedule") is not None


def _assignment_of(attempt: Attempt) -> Mapping[str, Any]:
    found = attempt.action.get("assignment")
    return found if isinstance(found, Mapping) else {}


def _operator_of(attempt: Attempt) -> Operator | str:
    return str(_assignment_of(attempt).get("mode") or attempt.candidate.operator)


def _beat_a_parent(attempt: Attempt) -> bool:
    """Whether the attempt was a race that the kernel won against one of its parents."""
    timing = attempt.verdict.timing
    found = [] if timing is None else [timing.rivals.get(parent) for parent in attempt.candidate.parents]
    return any(ratio is not None and ratio.faster for ratio in found)


def _moves_in(asked: Mapping[str, Any]) -> set[str]:
    move = asked.get("move")
    return {_name_of(move)} if move else set()


def _name_of(move: Mapping[str, Any]) -> str:
    return str(move.get("id") or json.dumps(move, sort_keys=True))
