"""Turns an assignment into schedules for the offline Coder, the most wanted first.

If something was timed, the order follows the predictions of a model of this problem's measured schedules.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kernelwright.agents._roofline import Bound
from kernelwright.agents._schedule_model import ScheduleModel
from kernelwright.agents.blueprint import Blueprint, Schedule, write
from kernelwright.agents.moves import Effect, ranked_moves
from kernelwright.agents.roles import Assignment, Attempt
from kernelwright.records import KnobValue

_DRAWS = 64  # draws before a space counts as exhausted
_PAIRS = 256  # most pairs of changes to compare
_WHOLE = 1024  # a space of at most this many schedules is compared as a whole; from a larger one, this many are drawn
_AS_GOOD = 0.04  # a schedule with fewer changes may fall short of the highest promise by this share
_FAR = 0.3  # share of the choices of a drawn schedule that are drawn anew; the others keep the default


class Wish(NamedTuple):
    """A kernel worth trying. ``schedule`` is None for the TorchInductor seed."""

    origin: str  # "default", "knob", "schedule", "seed", or an assignment's mode
    schedule: Schedule | None
    change: Mapping[str, Any]
    base: Attempt | None
    why: str
    others: tuple[Attempt, ...] = ()  # further parents


class Request(NamedTuple):
    """An assignment with its parents and the known measurements."""

    assignment: Assignment
    parents: tuple[Attempt, ...]
    bound: Bound
    known: Sequence[Effect]
    model: ScheduleModel | None = None  # None if nothing was timed

    def ordered(self, wishes: Sequence[Wish]) -> list[Wish]:
        """Order wishes that have schedules, the most promising first. Without timings the order stays as it is.

        Among wishes that promise nearly as much as the first, those with the fewest changes lead, since their gain or
        failure can be attributed to a change. Schedules that were judged, or repeat another wish, are left out.
        """
        if self.model is None:
            return list(wishes)
        fresh = [wishes[place] for place in self.model.unknown(wish.schedule or {} for wish in wishes)]
        if not fresh:
            return []
        promise = self.model.improvements([wish.schedule or {} for wish in fresh])
        enough = max(promise) * (1.0 - _AS_GOOD)
        ranks = [
            (0, self._changes(wish.schedule or {}), -worth) if worth >= enough else (1, 0, -worth)
            for wish, worth in zip(fresh, promise, strict=True)
        ]
        return [fresh[place] for place in sorted(range(len(fresh)), key=lambda place: ranks[place])]

    def _changes(self, schedule: Schedule) -> int:
        """The number of choices in which a schedule differs from the best one so far."""
        best = {} if self.model is None else self.model.best
        return sum(best.get(knob) != value for knob, value in schedule.items())


def wishes_for(plan: Blueprint, request: Request) -> Iterator[Wish]:
    """Wishes for the assignment itself, then improvements of its parents, and finally random schedules."""
    rng = random.Random(request.assignment.seed)
    mode = request.assignment.mode
    if mode != "new" and request.parents:
        yield from _MODES[mode](plan, request, rng)
        if _MODES[mode] is not _improve:
            yield from _improve(plan, request, rng)
    yield from _drawn(plan, rng)


def _schedule(plan: Blueprint, parent: Attempt) -> Schedule:
    return {**plan.default, **(parent.action.get("schedule") or {})}


def _differing(before: Schedule, after: Schedule) -> dict[str, KnobValue]:
    return {knob: value for knob, value in after.items() if before.get(knob) != value}


def _change(plan: Blueprint, request: Request, after: Schedule, why: str) -> Wish:
    """A wish for a schedule made from the first parent's."""
    base, *others = request.parents
    changed = _differing(_schedule(plan, base), after)
    single = changed if len(changed) == 1 else {}  # only a single change explains an effect
    return Wish(request.assignment.mode, after, single, base, why, tuple(others))


def _improve(plan: Blueprint, request: Request, rng: random.Random) -> Iterator[Wish]:
    """The most promising of: changes of the parent's schedule, changes of the best one, and any other schedule.

    If nothing was timed: single changes of the parent, then pairs of changes.
    """
    found = _changed(plan, request, _schedule(plan, request.parents[0]), rng)
    if request.model is not None:
        found += _changed(plan, request, request.model.best, rng)
        found += _anywhere(plan, request, rng)
    yield from request.ordered(found)


def _anywhere(plan: Blueprint, request: Request, rng: random.Random) -> list[Wish]:
    """All schedules of a space, or 1024 random ones if the space is larger."""
    whole = math.prod(len(values) for values in plan.space.values()) <= _WHOLE
    chosen = itertools.product(*plan.space.values()) if whole else _draws(plan, rng)
    schedules = ({**plan.default, **dict(zip(plan.space, values, strict=True))} for values in chosen)
    return [
        _change(plan, request, schedule, "what promises most by all that was measured of this problem")
        for schedule in schedules
    ]


def _draws(plan: Blueprint, rng: random.Random) -> Iterator[tuple[KnobValue, ...]]:
    for _ in range(_WHOLE):
        yield tuple(rng.choice(list(values)) for values in plan.space.values())


def _changed(plan: Blueprint, request: Request, before: Schedule, rng: random.Random) -> list[Wish]:
    """The schedules that differ from ``before`` in one choice, and some that differ in two."""
    of = "" if before == _schedule(plan, request.parents[0]) else " in the best so far"
    moves = ranked_moves(plan.space, before, request.bound, request.known)
    singles = [
        _change(plan, request, move.apply(before), f"{move.knob} = {move.value}{of}, the next change not tried yet")
        for move in moves
    ]
    pairs = [pair for pair in itertools.combinations(moves, 2) if pair[0].knob != pair[1].knob]
    if request.model is None or len(pairs) > _PAIRS:
        pairs = rng.sample(pairs, min(len(pairs), _DRAWS if request.model is None else _PAIRS))
    return singles + [
        _change(
            plan, request, two.apply(one.apply(before)), f"{one.knob} = {one.value} and {two.knob} = {two.value}{of}"
        )
        for one, two in pairs
    ]


def _cross(plan: Blueprint, request: Request, rng: random.Random) -> Iterator[Wish]:
    """Schedules that take each choice from either parent."""
    if len(request.parents) < 2:
        return
    mother, father = (_schedule(plan, parent) for parent in request.parents[:2])
    found = []
    for _ in range(_DRAWS):
        mixed = {knob: (mother if rng.random() < 0.5 else father).get(knob, value) for knob, value in mother.items()}
        if mixed not in (mother, father):
            found.append(_change(plan, request, mixed, "choices of both parents"))
    yield from request.ordered(found)


def _tune(plan: Blueprint, request: Request, rng: random.Random) -> Iterator[Wish]:
    """Schedules with other constants (choices in upper case), several changed at once."""
    before = _schedule(plan, request.parents[0])
    constants = {knob: values for knob, values in plan.space.items() if knob.isupper() and len(values) > 1}
    found = []
    for _ in range(_DRAWS if constants else 0):
        chosen = rng.sample(sorted(constants), rng.randint(1, len(constants)))
        after = {**before, **{knob: rng.choice(list(constants[knob])) for knob in chosen}}
        if after != before:
            told = ", ".join(f"{knob} = {value}" for knob, value in _differing(before, after).items())
            found.append(_change(plan, request, after, f"constants {told}"))
    yield from request.ordered(found)


def _transfer(plan: Blueprint, request: Request, rng: random.Random) -> Iterator[Wish]:
    """The change that was measured on another problem, if this problem has that choice."""
    change = request.assignment.move.get("change") or {}
    possible = {knob: value for knob, value in change.items() if value in plan.space.get(knob, ())}
    before = _schedule(plan, request.parents[0])
    if _differing(before, {**before, **possible}):
        told = ", ".join(f"{knob} = {value}" for knob, value in possible.items())
        yield _change(plan, request, {**before, **possible}, f"{told}, which paid on another problem")


def _simplify(plan: Blueprint, request: Request, rng: random.Random) -> Iterator[Wish]:
    """Schedules with one choice reset to its default, if that makes the source shorter; the shortest first."""
    before = _schedule(plan, request.parents[0])
    here = write(plan, before)
    if here is None:
        return
    shorter = []
    for knob, value in plan.default.items():
        if before.get(knob) != value:
            after = {**before, knob: value}
            generated = write(plan, after)
            if generated is not None and len(generated.source) < len(here.source):
                shorter.append((len(generated.source), knob, after))
    for _, knob, after in sorted(shorter, key=lambda entry: entry[:2]):
        yield _change(plan, request, after, f"{knob} as it was by default: less code")


def _drawn(plan: Blueprint, rng: random.Random) -> Iterator[Wish]:
    """Random schedules, those near the default first."""
    for draw in range(_DRAWS):
        far = _FAR if draw < _DRAWS // 2 else 1.0
        schedule = {
            knob: rng.choice(list(values)) if rng.random() < far else plan.default[knob]
            for knob, values in plan.space.items()
        }
        yield Wish("new", {**plan.default, **schedule}, {}, None, "a schedule drawn at random")


_MODES = {
    "improve": _improve,
    "edit": _improve,
    "repair": _improve,
    "cross": _cross,
    "tune": _tune,
    "transfer": _transfer,
    "simplify": _simplify,
}
