"""The Judge without a language model: a table of rules over the verdict, the roofline and earlier attempts.

The first rule that applies gives the advice. Each rule gives exactly one bottleneck, one method and one plan.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

from kernelwright.agents._roofline import Bound, Peaks, Placement, machine_peaks, place
from kernelwright.agents.blueprint import Blueprint, Schedule, blueprint, write
from kernelwright.agents.moves import Effect, KnobKind, Move, effects, ranked_moves
from kernelwright.agents.offline_coder import SEED, base_attempt
from kernelwright.agents.roles import Attempt, StepContext
from kernelwright.agents.static_rank import describe_static
from kernelwright.records import Advice, Evaluation, KnobValue, Status

ROUNDS_WITHOUT_GAIN = 3
GAIN = 0.01  # least relative gain that counts
AT_ROOFLINE = 0.9

# Safer settings, tried in this order while nothing has passed: exact arithmetic first, then the plainest structure.
SAFER: tuple[tuple[str, KnobValue], ...] = (
    ("math", False),
    ("precision", "ieee"),
    ("gemm", "library"),
    ("conv", "library"),
    ("attention", "library"),
    ("fus", "none"),
    ("in_place", False),
)

METHODS: dict[KnobKind, str] = {
    "product": "choose between the library call and an own kernel",
    "tile": "change the register tile",
    "vector": "change how the compiler vectorises",
    "schedule": "change the loop schedule",
    "block": "change the cache block",
    "fusion": "change what is fused into one pass",
    "accuracy": "trade arithmetic that the error budget allows",
}


class Case:
    """All facts that the rules use, computed once."""

    def __init__(self, context: StepContext, evaluation: Evaluation, peaks: Callable[[], Peaks]) -> None:
        """``peaks``: measures this CPU's ceilings when they are needed."""
        self.context = context
        self.verdict = evaluation.verdict
        self.last = context.attempts[-1]
        self._measure_peaks = peaks
        self._on_cpu = evaluation.environment.device_class == "cpu"

    @cached_property
    def peaks(self) -> Peaks:
        """The ceilings of this CPU."""
        return self._measure_peaks()

    @cached_property
    def plan(self) -> Blueprint:
        """The captured problem."""
        return blueprint(self.context)

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule that the next change starts from."""
        base = base_attempt(self.context)
        return self.plan.default if base is None else {**self.plan.default, **base.action["schedule"]}

    @cached_property
    def placement(self) -> Placement | None:
        """The best kernel's place on the roofline of this CPU; None if it was not timed on this CPU."""
        best = self.context.best
        if best is None or best.verdict.timing is None or not self._on_cpu:
            return None
        latency_ms = best.verdict.timing.latency_ms.median
        return place(latency_ms, self.plan.bytes_least, self.plan.flops, self.peaks)

    @property
    def bound(self) -> Bound:
        """What limits the best kernel, by the referee's profile if it says so, else by the roofline."""
        best = self.context.best
        if best is not None and best.verdict.profile is not None and best.verdict.profile.bound != "unknown":
            found = best.verdict.profile.bound
            return "latency" if found == "launch" else found  # fewer kernels help against both
        return self.placement.bound if self.placement else "unknown"

    @cached_property
    def known(self) -> list[Effect]:
        """Measured effects of the changes tried."""
        return effects(self.context.attempts, self.context.baseline)

    @cached_property
    def move(self) -> Move | None:
        """The most promising change of the best schedule that gives a kernel not judged yet."""
        tried = {attempt.candidate.source for attempt in self.context.attempts}
        for move in ranked_moves(self.plan.space, self.schedule, self.bound, self.known):
            generated = write(self.plan, move.apply(self.schedule))
            if generated is not None and generated.source not in tried:
                return move
        return None

    @cached_property
    def safer(self) -> Schedule:
        """The next change of the last schedule towards safety that changes the kernel; empty if none is left."""
        schedule = self.last.action.get("schedule") or self.plan.default
        for word, safe in SAFER:
            found = {
                knob: safe
                for knob, choices in self.plan.space.items()
                if word in knob.lower() and safe in choices and schedule.get(knob) != safe
            }
            made = write(self.plan, {**schedule, **found}) if found else None
            if made is not None and made.source != self.last.candidate.source:
                return found
        return {}

    @property
    def rounds_without_gain(self) -> int:
        """Rounds since the best lower bound last rose by more than :data:`GAIN`."""
        best, since = 0.0, 0
        for attempt in self.context.attempts:
            bound = attempt.lower_bound(self.context.baseline) or 0.0
            since = 0 if bound > best * (1 + GAIN) else since + 1
            best = max(best, bound)
        return since

    @property
    def timed(self) -> bool:
        """Whether anything was timed."""
        return any(attempt.verdict.timing is not None for attempt in self.context.attempts)

    @property
    def seed_asked_for(self) -> bool:
        """Whether TorchInductor's kernel was advised already. If it gave none, asking again gives none either."""
        return any(attempt.advice and "seed" in attempt.advice.action for attempt in self.context.attempts)

    @property
    def unranked(self) -> bool:
        """Whether Triton kernels cannot be timed against TorchInductor's because there is no device."""
        return self.context.backend == "triton" and not self.timed

    @property
    def behind_compile(self) -> bool:
        """Whether torch.compile may still be faster than the best kernel."""
        best: Attempt | None = self.context.best
        against = best.verdict.speedup("compile") if best else None
        return against is not None and against.low < 1.0


class Rule(NamedTuple):
    """One line of the table."""

    id: str
    applies: Callable[[Case], bool]
    advise: Callable[[Case], Advice]
    reason: str


def _failed(*statuses: Status) -> Callable[[Case], bool]:
    return lambda case: case.verdict.status in statuses


def _repair(case: Case) -> Advice:
    """Advice to step back: change the best kernel instead if there is one, else move towards the safest schedule."""
    what = case.verdict.status.value
    change = ", ".join(f"{knob} = {value}" for knob, value in (case.last.action.get("change") or {}).items())
    bottleneck = f"{what}: {case.verdict.reason}"
    if case.context.best is not None and (move := case.move):
        return Advice(
            mode="repair",
            bottleneck=bottleneck,
            method="step back and try another change",
            plan=f"drop {change or 'the last change'}; from the best kernel set {move.knob} = {move.value}",
            action={"knob": move.knob, "value": move.value},
            expected="a kernel that passes",
        )
    if case.safer:
        wanted = ", ".join(f"{knob} = {value}" for knob, value in case.safer.items())
        return Advice(
            mode="repair",
            bottleneck=bottleneck,
            method="choose the safer arithmetic or structure",
            plan=f"set {wanted}",
            action={"schedule": case.safer},
            expected="a kernel inside the error budget",
        )
    return _next_or_stop(case, "repair", bottleneck)


def _next_or_stop(case: Case, mode: str, bottleneck: str) -> Advice:
    move = case.move
    if move is None:
        return Advice(
            mode="stop", bottleneck=f"{bottleneck}; nothing is left to change", method="stop", plan="keep what there is"
        )
    return Advice(
        mode="repair" if mode == "repair" else "optimise",
        bottleneck=bottleneck,
        method=METHODS[move.kind],
        plan=f"set {move.knob} = {move.value}",
        action={"knob": move.knob, "value": move.value},
        expected=_expected(case, move),
    )


def _expected(case: Case, move: Move) -> str:
    """The expected gain of a move, from earlier changes of the same knob or from the roofline."""
    ratios = [effect.log_ratio for effect in case.known if effect.knob == move.knob and effect.log_ratio is not None]
    if ratios:
        return f"earlier changes of {move.knob} brought {100 * max(ratios):+.0f}% at best"
    if case.placement and case.placement.efficiency > 0:
        return f"at most {1 / case.placement.efficiency:.1f}x is left to the roofline"
    return "unknown"


def _stop(bottleneck: Callable[[Case], str]) -> Callable[[Case], Advice]:
    return lambda case: Advice(mode="stop", bottleneck=bottleneck(case), method="stop", plan="keep the best kernel")


def _try_seed(case: Case) -> Advice:
    return Advice(
        mode="optimise",
        bottleneck="torch.compile may still be faster than the best kernel",
        method=f"start from TorchInductor's own {'Triton' if case.context.backend == 'triton' else 'C++'}",
        plan="judge the kernel that TorchInductor generates for this problem",
        action={"seed": SEED},
        expected="at least the speed of torch.compile, with less overhead a call",
    )


def _bound(case: Case, bound: Bound) -> bool:
    return case.placement is not None and case.bound == bound and case.move is not None


def _memory(case: Case) -> Advice:
    assert case.placement is not None
    share = case.placement.achieved_gb_s / case.peaks.bandwidth_gb_s
    return _next_or_stop(
        case,
        "optimise",
        f"memory: {case.placement.achieved_gb_s:.1f} GB/s of necessary traffic, {share:.0%} of a plain copy",
    )


def _compute(case: Case) -> Advice:
    assert case.placement is not None
    share = case.placement.achieved_gflop_s / case.peaks.gflop_s
    return _next_or_stop(
        case,
        "optimise",
        f"compute: {case.placement.achieved_gflop_s:.1f} GFLOP/s, {share:.0%} of the FMA peak, and memory is not full",
    )


def _latency(case: Case) -> Advice:
    assert case.placement is not None
    return _next_or_stop(
        case, "optimise", f"latency: the loops need {case.placement.ideal_ms * 1000:.1f} µs, the rest is calls"
    )


def _without_a_roofline(case: Case) -> str:
    best = case.context.best
    if case.timed:
        return f"{case.bound}: so says the profile of the device"
    said = describe_static(best.verdict.profile) if best else ""
    return (
        f"unknown: nothing was timed; the compiler says of the best: {said}" if said else "unknown: nothing was timed"
    )


RULES: tuple[Rule, ...] = (
    Rule(
        "numerics",
        _failed(Status.INCORRECT_NUMERICAL),
        _repair,
        "a change that leaves the error budget is undone before anything else is tried",
    ),
    Rule(
        "broken",
        lambda case: not case.verdict.passed,
        _repair,
        "a kernel that does not build, run or fit teaches nothing about speed",
    ),
    Rule(
        "roofline",
        lambda case: case.placement is not None and case.placement.efficiency >= AT_ROOFLINE,
        _stop(lambda case: "the best kernel is at the roofline of this machine"),
        "necessary traffic or arithmetic alone takes 90% of the time",
    ),
    Rule(
        "seed",
        lambda case: (case.behind_compile or case.unranked) and not case.seed_asked_for,
        _try_seed,
        "where torch.compile still wins, or may, its generated code is the cheapest thing to learn from",
    ),
    Rule(
        "no-gain",
        lambda case: case.timed and case.rounds_without_gain >= ROUNDS_WITHOUT_GAIN,
        _stop(lambda case: f"{ROUNDS_WITHOUT_GAIN} rounds without a gain of more than {GAIN:.0%}"),
        "further changes of the same kind rarely pay after several that did not",
    ),
    Rule("memory", lambda case: _bound(case, "memory"), _memory, "traffic limits: fewer passes, then better streaming"),
    Rule("compute", lambda case: _bound(case, "compute"), _compute, "instructions limit: wider or fewer of them"),
    Rule("latency", lambda case: _bound(case, "latency"), _latency, "calls limit: fewer of them"),
    Rule(
        "untimed",
        lambda case: case.move is not None,
        lambda case: _next_or_stop(case, "optimise", _without_a_roofline(case)),
        "without a roofline, changes that the compiler's evidence or a device's profile speaks for come first",
    ),
    Rule(
        "exhausted",
        lambda case: True,
        _stop(lambda case: "every change of the best schedule has been tried"),
        "the space of single changes is exhausted",
    ),
)


class OfflineJudge:
    """Rules instead of a language model."""

    name = "offline"

    def __init__(self, peaks: Peaks | None = None) -> None:
        """``peaks``: this machine's ceilings; measured on first use if not given."""
        self._peaks = peaks

    def advise(self, context: StepContext, evaluation: Evaluation) -> Advice:
        """The advice of the first rule that applies."""
        threads = evaluation.environment.threads
        case = Case(context, evaluation, lambda: self._peaks or machine_peaks(threads))
        return next(rule for rule in RULES if rule.applies(case)).advise(case)
