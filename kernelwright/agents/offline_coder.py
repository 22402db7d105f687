"""The Coder that needs no language model: it turns advice into schedules of the code generator."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kernelwright.agents._roofline import Bound
from kernelwright.agents._schedule_model import CPP_TRAITS, Observation, ScheduleModel, observations
from kernelwright.agents._schedule_wishes import Request, Wish, wishes_for
from kernelwright.agents.blueprint import CLASSES, Blueprint, Schedule, blueprint, inductor_seed, write
from kernelwright.agents.moves import Effect, effects, ranked_moves
from kernelwright.agents.roles import Attempt, Proposal, StepContext, best_attempt, require_backend
from kernelwright.records import Backend, Candidate

if TYPE_CHECKING:
    from kernelwright.codegen import Generated

SEED = "inductor"
SUPPOSED_GAIN = 0.03  # of a change that is not judged yet, as a log-ratio, either way


class OfflineCoder:
    """Does what a search assigns to it, by schedules; with no search, what the Judge advises.

    Where the Judge's action gives nothing new, it takes the next untried change of the best schedule.

    It keeps no memory of its own: the same context gives the same proposal, so a resumed run proposes what the killed
    one did.
    """

    name = "offline"
    backends: frozenset[Backend] = frozenset(CLASSES)

    def foresee(self, context: StepContext, pending: Proposal) -> Sequence[Candidate]:
        """See :class:`Foresees`: the next change where ``pending`` is a little worse than the best, and where better.

        Raises:
            CoderError: as :meth:`propose`.
        """
        if pending.candidate is None or context.assignment.seed:  # a search draws when it knows the verdict
            return ()
        context = context.in_language(context.backend)
        if context.backend == "cpp" and not context.attempts:  # TorchInductor's kernel comes next
            return ()
        plan = blueprint(context)
        base = base_attempt(context)
        before = _schedule_of(base, plan)
        after = pending.action.get("schedule") or before
        known = effects(context.attempts, context.baseline)
        found = {pending.candidate.sha256: pending.candidate}
        tried = {attempt.candidate.sha256 for attempt in context.attempts}
        for schedule, gain in ((before, -SUPPOSED_GAIN), (after, SUPPOSED_GAIN)):
            supposed = [
                Effect(knob, before.get(knob), value, gain)
                for knob, value in (pending.action.get("change") or {}).items()
            ]
            for wish in _changes(plan, base, schedule, _origin(context), _bound(context), [*known, *supposed]):
                generated = _write(context, plan, wish)
                candidate = None if generated is None else _candidate(context, wish, generated)
                if candidate is not None and candidate.sha256 not in {*found, *tried}:
                    found[candidate.sha256] = candidate
                    break
        return list(found.values())[1:]

    def propose(self, context: StepContext) -> Proposal:
        """The next candidate that was not judged yet on this problem.

        Raises:
            CoderError: the reference cannot be captured.
            UsageError: the backend is not one that the generator writes.
        """
        require_backend(self, context.backend)
        context = context.in_language(context.backend)
        plan = blueprint(context)
        tried = context.tried
        wishes = _assigned(context, plan) if context.assignment.seed else _wishes(context, plan)
        for wish in itertools.chain(_compilers(context, plan), wishes):
            generated = _write(context, plan, wish)
            if generated is None:
                continue
            candidate = _candidate(context, wish, generated)
            if candidate.sha256 not in tried:
                return Proposal(candidate, wish.why, _action(wish, generated))
        return Proposal(None, "every schedule that was thought of has been tried")


def _compilers(context: StepContext, plan: Blueprint) -> Iterator[Wish]:
    """TorchInductor's kernel, once one kernel was judged: no search should end behind the compiler for not asking.

    Where the generator has none for all shapes, it is the first.
    """
    if context.backend != "cpp" or any(attempt.action.get("origin") == "seed" for attempt in context.attempts):
        return
    if len(context.attempts) == 1 or not plan.whole:
        yield Wish("seed", None, {}, base_attempt(context), "TorchInductor's own kernel as a seed")


def _assigned(context: StepContext, plan: Blueprint) -> Iterator[Wish]:
    """What a search asked for. A parent that has no schedule is TorchInductor's: the default one stands for it.

    Of samples that know of no attempt, the first is the default schedule, the second TorchInductor's kernel, and all
    others are drawn.
    """
    asked = context.assignment
    alone = not context.attempts
    parents = tuple(a for a in context.attempts if a.candidate.sha256 in asked.parents and a.purpose == "search")
    ordered = tuple(sorted(parents, key=lambda parent: asked.parents.index(parent.candidate.sha256)))
    seen = observations(context.attempts, context.duplicates, plan.default, context.baseline) if ordered else []
    request = Request(
        assignment=asked,
        parents=ordered,
        bound=_bound_of(ordered[0]) if ordered else "unknown",
        known=effects(context.attempts, context.baseline),
        first=alone and asked.sample == 0,
        seeded=(alone and asked.sample > 1) or any(a.action.get("origin") == "seed" for a in context.attempts),
        model=_model(plan, seen) if seen else None,
    )
    taken = alone and asked.sample > 0  # the default schedule, by the first sample
    return (wish for wish in wishes_for(plan, request) if not (taken and wish.schedule == plan.default))


def _model(plan: Blueprint, seen: Sequence[Observation]) -> ScheduleModel:
    return ScheduleModel(plan.space, plan.default, seen, CPP_TRAITS if plan.backend == "cpp" else {})


def _bound_of(attempt: Attempt) -> Bound:
    found = "unknown" if attempt.verdict.profile is None else attempt.verdict.profile.bound
    return "latency" if found == "launch" else found


def _wishes(context: StepContext, plan: Blueprint) -> Iterator[Wish]:
    """What to try, the most wanted first."""
    if not context.attempts:
        yield Wish("default", plan.default, {}, None, "the generator's default schedule")
    base = base_attempt(context)
    schedule = _schedule_of(base, plan)
    origin = _origin(context)
    yield from _advised(context, plan, base, schedule, origin)
    known = effects(context.attempts, context.baseline)
    yield from _changes(plan, base, schedule, origin, "unknown", known)


def _origin(context: StepContext) -> str:
    return "repair" if context.attempts and context.best is None else "knob"


def _bound(context: StepContext) -> Bound:
    """What the profile says that the best kernel is limited by, where it says so."""
    return "unknown" if context.best is None else _bound_of(context.best)


def _changes(
    plan: Blueprint, base: Attempt | None, schedule: Schedule, origin: str, bound: Bound, known: Sequence[Effect]
) -> Iterator[Wish]:
    """Changes of a schedule, the most promising first by what earlier ones did."""
    for move in ranked_moves(plan.space, schedule, bound, known):
        why = f"{move.knob} = {move.value}, the next change not tried yet"
        yield Wish(origin, move.apply(schedule), {move.knob: move.value}, base, why)


def base_attempt(context: StepContext) -> Attempt | None:
    """The attempt to branch from: the best of those that have a schedule, else the first one that has."""
    scheduled = tuple(attempt for attempt in context.attempts if attempt.action.get("schedule") is not None)
    return best_attempt(scheduled, context.baseline) or (scheduled[-1] if scheduled else None)


def _schedule_of(base: Attempt | None, plan: Blueprint) -> Schedule:
    return plan.default if base is None else {**plan.default, **base.action["schedule"]}


def _advised(
    context: StepContext, plan: Blueprint, base: Attempt | None, schedule: Schedule, origin: str
) -> Iterator[Wish]:
    """The Judge's action as a wish; an action that the space does not know is passed over."""
    action = context.advice.action if context.advice else {}
    if action.get("seed") == SEED:
        yield Wish("seed", None, {}, base, "TorchInductor's own kernel as a seed")
    elif "knob" in action and action["value"] in plan.space.get(action["knob"], ()):
        change = {action["knob"]: action["value"]}
        yield Wish(origin, {**schedule, **change}, change, base, f"advised: {action['knob']} = {action['value']}")
    elif "schedule" in action:
        asked = {knob: value for knob, value in action["schedule"].items() if value in plan.space.get(knob, ())}
        changed = ", ".join(f"{knob} = {value}" for knob, value in asked.items())
        yield Wish(
            "repair" if origin == "repair" else "schedule", {**schedule, **asked}, {}, base, f"advised: {changed}"
        )


def _write(context: StepContext, plan: Blueprint, wish: Wish) -> Generated | None:
    """The kernel of a wish; None where there is none, or libraries would compute all of it, which nobody may submit."""
    if wish.schedule is None:
        return inductor_seed(context, plan.graph)
    found = write(plan, wish.schedule)
    return found if found is not None and (found.has_kernel or wish.origin == "default") else None


def _candidate(context: StepContext, wish: Wish, generated: Generated) -> Candidate:
    return Candidate(
        problem_id=context.problem.id,
        source=generated.source,
        backend=context.backend,
        parents=tuple(attempt.candidate.sha256 for attempt in (wish.base, *wish.others) if attempt is not None),
        operator={"default": "new", "schedule": "knob"}.get(wish.origin, wish.origin),
        author="offline",
        note=wish.why,
    )


def _action(wish: Wish, generated: Generated) -> dict[str, Any]:
    return {
        "origin": wish.origin,
        "schedule": wish.schedule,
        "change": dict(wish.change),
        "base": "" if wish.base is None else wish.base.candidate.sha256,
        "bytes_moved": generated.bytes_moved,
        "flops": generated.flops,
    }
