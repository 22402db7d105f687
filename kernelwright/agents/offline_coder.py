"""The Coder without a language model: it turns assignments and advice into schedules of the code generator."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kernelwright.agents._roofline import Bound
from kernelwright.agents._schedule_model import CPP_TRAITS, Observation, ScheduleModel, observations
from kernelwright.agents._schedule_wishes import Request, Wish, wishes_for
from kernelwright.agents.blueprint import CLASSES, Blueprint, Schedule, blueprint, inductor_seed, write
from kernelwright.agents.expected_order import MOST, in_expected_order
from kernelwright.agents.moves import Effect, effects, ranked_moves
from kernelwright.agents.roles import Attempt, Proposal, StepContext, best_attempt, require_backend
from kernelwright.records import Backend, Candidate

if TYPE_CHECKING:
    from kernelwright.codegen import Generated

SEED = "inductor"
_LOOKED_AT = 6  # wishes of a search's assignment that are compiled for their order
SUPPOSED_GAIN = 0.03  # assumed log-ratio, up or down, of a change that is not judged yet


class OfflineCoder:
    """Writes schedules for a search's assignments; without a search, it follows the Judge's advice.

    If the Judge's action gives nothing new, it takes the next untried change of the best schedule.

    It has no state of its own: the same context gives the same proposal, so a resumed run proposes the same kernels as
    the killed run.
    """

    name = "offline"
    backends: frozenset[Backend] = frozenset(CLASSES)

    def foresee(self, context: StepContext, pending: Proposal) -> Sequence[Candidate]:
        """The next changes if ``pending`` turns out a little worse or a little better; see :class:`Foresees`.

        Raises:
            CoderError: as :meth:`propose`.
        """
        if pending.candidate is None or context.assignment.seed:  # a search decides only after the verdict
            return ()
        context = context.in_language(context.backend)
        if context.backend != "cuda" and not context.attempts:  # the default, or TorchInductor's kernel, comes next
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
            UsageError: the generator cannot write the backend.
        """
        require_backend(self, context.backend)
        context = context.in_language(context.backend)
        plan = blueprint(context)
        tried = context.tried
        wishes = _assigned(context, plan) if context.assignment.seed else _wishes(context, plan)
        for wish in itertools.chain(_opening(context, plan), wishes):
            generated = _write(context, plan, wish)
            if generated is None:
                continue
            candidate = _candidate(context, wish, generated)
            if candidate.sha256 not in tried:
                return Proposal(candidate, wish.why, _action(wish, generated))
        return Proposal(None, "every schedule that was thought of has been tried")


def _opening(context: StepContext, plan: Blueprint) -> Iterator[Wish]:
    """The first two kernels of a language, so that no search ends slower than either.

    They are TorchInductor's and the generator's default. TorchInductor's comes first on a GPU, and where the generator
    has no kernel for all shapes; CUDA has none. Samples that know of no attempt take turns by their number.
    """
    seed = Wish("seed", None, {}, base_attempt(context), "TorchInductor's own kernel as a seed")
    default = Wish("default", plan.default, {}, None, "the generator's default schedule")
    order = {"cpp": (default, seed), "triton": (seed, default), "cuda": (default,)}[context.backend]
    asked = context.assignment
    turn = asked.sample if asked.seed and not context.attempts else len(context.attempts)
    if turn == 0 or not plan.whole:
        yield from order
    elif turn < len(order) and all(_write(context, plan, earlier) is not None for earlier in order[:turn]):
        yield order[turn]


def _assigned(context: StepContext, plan: Blueprint) -> Iterator[Wish]:
    """The wishes for a search's assignment. A parent without a schedule is TorchInductor's; it counts as the default.

    If there are no attempts, all samples after the first two are drawn.
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
        model=_model(plan, seen) if seen else None,
    )
    taken = alone and asked.sample > 0  # the default schedule is that of one of the first two samples
    wishes = (wish for wish in wishes_for(plan, request) if not (taken and wish.schedule == plan.default))
    if not _is_untimed(context):
        return wishes
    return _most_expected(context, plan, (wish for wish in wishes if _is_new(context, plan, wish)), most=_LOOKED_AT)


def _is_new(context: StepContext, plan: Blueprint, wish: Wish) -> bool:
    generated = _write(context, plan, wish)
    return generated is not None and _candidate(context, wish, generated).sha256 not in context.tried


def _model(plan: Blueprint, seen: Sequence[Observation]) -> ScheduleModel:
    return ScheduleModel(plan.space, plan.default, seen, CPP_TRAITS if plan.backend == "cpp" else {})


def _bound_of(attempt: Attempt) -> Bound:
    found = "unknown" if attempt.verdict.profile is None else attempt.verdict.profile.bound
    return "latency" if found == "launch" else found


def _wishes(context: StepContext, plan: Blueprint) -> Iterator[Wish]:
    """The wishes without a search, the most wanted first."""
    base = base_attempt(context)
    if base is None:
        yield Wish("default", plan.default, {}, None, "the generator's default schedule")
    schedule = _schedule_of(base, plan)
    origin = _origin(context)
    yield from _advised(context, plan, base, schedule, origin)
    known = effects(context.attempts, context.baseline)
    changes = _changes(plan, base, schedule, origin, "unknown", known)
    yield from _most_expected(context, plan, changes) if _is_untimed(context) else changes


def _is_untimed(context: StepContext) -> bool:
    """Whether kernels passed and none of them could be timed, as Triton's without a GPU."""
    passed = [attempt.verdict for attempt in context.attempts if attempt.verdict.passed]
    return context.backend == "triton" and bool(passed) and all(verdict.timing is None for verdict in passed)


def _most_expected(context: StepContext, plan: Blueprint, changes: Iterator[Wish], most: int = MOST) -> Iterator[Wish]:
    """The first ``most`` changes in the order of the times that a model expects of them, then the others.

    Without a search, the same base asks the same, tried or not.
    """
    made = [(wish, write(plan, wish.schedule or {})) for wish in itertools.islice(changes, most)]
    known = [(wish, generated.source) for wish, generated in made if generated is not None]
    schedules = [wish.schedule or {} for wish, _ in known]
    order = in_expected_order(context, [source for _, source in known], schedules) if known else []
    return itertools.chain((known[place][0] for place in order), changes)


def _origin(context: StepContext) -> str:
    return "repair" if context.attempts and context.best is None else "knob"


def _bound(context: StepContext) -> Bound:
    """The bound of the best kernel by its profile, or "unknown"."""
    return "unknown" if context.best is None else _bound_of(context.best)


def _changes(
    plan: Blueprint, base: Attempt | None, schedule: Schedule, origin: str, bound: Bound, known: Sequence[Effect]
) -> Iterator[Wish]:
    """Single changes of a schedule, the most promising first by the effects of earlier ones."""
    for move in ranked_moves(plan.space, schedule, bound, known):
        why = f"{move.knob} = {move.value}, the next change not tried yet"
        yield Wish(origin, move.apply(schedule), {move.knob: move.value}, base, why)


def base_attempt(context: StepContext) -> Attempt | None:
    """The attempt to branch from: the best attempt with a schedule, or the last one with a schedule if none passed."""
    scheduled = tuple(attempt for attempt in context.attempts if attempt.action.get("schedule") is not None)
    return best_attempt(scheduled, context.baseline) or (scheduled[-1] if scheduled else None)


def _schedule_of(base: Attempt | None, plan: Blueprint) -> Schedule:
    return plan.default if base is None else {**plan.default, **base.action["schedule"]}


def _advised(
    context: StepContext, plan: Blueprint, base: Attempt | None, schedule: Schedule, origin: str
) -> Iterator[Wish]:
    """The Judge's action as a wish; an action that is not in the space is ignored."""
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
    """The kernel of a wish; None if there is none, or if libraries compute all of it, which cannot be submitted."""
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
