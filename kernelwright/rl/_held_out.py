"""Compares schedules on held-out problems, timed in turns in fresh processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kernelwright.campaign import Mean
from kernelwright.campaign.paired import Measured, paired_means
from kernelwright.evaluator import Confirm, Search, Session
from kernelwright.pool import once_more
from kernelwright.records import Candidate, Evaluation, Interval, KnobValue, Record
from kernelwright.rl._schedule_problems import Schedule, ScheduleProblem, ScheduleScorer, Twins

SPARE_S: Final = 12.0  # seconds for a confirmation
SINGLES: Final = 3  # schedules tried as the single one for all problems, besides the default
_RIDGE: Final = 1.0
Schedules = Mapping[str, Schedule]  # by problem name


class HeldOutRow(Record):
    """The result on one problem.

    Attributes:
        schedules: schedules by contender.
        speedup: speedup of the policy's kernel over eager; None if it was refused.
        ratios: time of each other contender over that of the policy's kernel; exactly 1 if both are one program.
        reason: why the policy's kernel was refused.
    """

    problem: str
    schedules: dict[str, dict[str, KnobValue]]
    speedup: Interval | None = None
    ratios: Mapping[str, Interval] = {}
    reason: str = ""


class HeldOut(Record):
    """The results on all held-out problems.

    Attributes:
        over: for each other contender, the geometric mean of its times over the policy's, with a 95% interval over
            problems and measurements.
    """

    rows: tuple[HeldOutRow, ...]
    over: dict[str, Mean]


def best_single(
    problems: Sequence[ScheduleProblem],
    rollouts: Sequence[Mapping[str, object]],
    scorer: ScheduleScorer,
    tell: Callable[[str], None],
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, KnobValue]:
    """The single schedule that is measured as the fastest over all training problems; empty if the default wins.

    Three are tried besides the default. The first is the optimum of an additive model of the choices (ridge regression
    over all rewards, each minus the mean of its problem). The other two are those that the model ranks highest among
    the problems' own best schedules. All are timed with the default in the same turns on every problem. The highest
    mean log ratio wins.
    """
    wanted = _singles(problems, rollouts)
    totals = [0.0] * len(wanted)
    twins = Twins(scorer, problems[0].plan.backend)
    for number, problem in enumerate(problems):
        if stop():
            break
        found = raced(problem, problem.default, [problem.projected(one) for one in wanted], scorer, twins)
        for place, ratio in enumerate(found.ratios):
            totals[place] -= math.log(ratio.median) if ratio is not None else 1.0
        tell(f"one schedule for all: {number + 1} of {len(problems)} problems")
    best = max(range(len(wanted)), key=lambda place: totals[place])
    return dict(wanted[best]) if totals[best] > 0.0 else {}


def _singles(
    problems: Sequence[ScheduleProblem], rollouts: Sequence[Mapping[str, object]]
) -> list[dict[str, KnobValue]]:
    """The candidates for the best single schedule, over the choices of all problems."""
    import numpy as np

    defaults: dict[str, KnobValue] = {}
    values: dict[str, list[KnobValue]] = {}
    for problem in problems:
        defaults |= {name: value for name, value in problem.default.items() if name not in defaults}
        for name, found in problem.plan.space.items():
            values.setdefault(name, list(found))
    columns = [(name, repr(value)) for name, found in values.items() for value in found]
    rows: list[tuple[str, Mapping[str, KnobValue], float]] = [
        (str(row["problem"]), row["schedule"], float(row["reward"]))  # type: ignore[misc, arg-type]
        for row in rollouts
        if row["schedule"] is not None and row["reward"] is not None
    ]
    means = {name: np.mean([reward for of, _, reward in rows if of == name]) for name in {of for of, _, _ in rows}}
    x = np.array([[float(name in s and repr(s[name]) == value) for name, value in columns] for _, s, _ in rows])
    y = np.array([reward - means[of] for of, _, reward in rows])
    if not rows:
        return [defaults]
    fitted = np.linalg.solve(x.T @ x + _RIDGE * np.eye(len(columns)), x.T @ y)
    worth = dict(zip(columns, fitted, strict=True))

    def promise(schedule: Mapping[str, KnobValue]) -> float:
        return float(sum(worth[name, repr(value)] for name, value in schedule.items()))

    additive = {name: max(found, key=lambda value: worth[name, repr(value)]) for name, found in values.items()}
    own = []
    for name in means:
        _, schedule, _ = max((row for row in rows if row[0] == name), key=lambda row: row[2])
        own.append({**defaults, **schedule})
    ranked = [additive, *sorted(own, key=promise, reverse=True)]
    unique = list({repr(sorted(one.items())): one for one in ranked}.values())
    return unique[:SINGLES]


class Raced(Record):
    """A schedule timed beside others: their times over its own, its speedup over eager; None for refused kernels."""

    ratios: tuple[Interval | None, ...]
    speedup: Interval | None
    reason: str = ""


def raced(
    problem: ScheduleProblem,
    first: Schedule,
    others: Sequence[Schedule],
    scorer: ScheduleScorer,
    twins: Twins,
    *,
    confirm: bool = False,
) -> Raced:
    """Time the kernels of schedules in the same turns. Schedules with the same program are one kernel: ratio 1."""
    source = problem.source(first)
    if source is None:
        return Raced(ratios=(None,) * len(others), speedup=None, reason="the generator has no kernel for it")
    sources = [problem.source(other) for other in others]
    known = iter(twins.firsts(problem, [source, *(one for one in sources if one is not None)]))
    source = next(known)
    firsts = [None if one is None else next(known) for one in sources]
    rivals = [one for one in dict.fromkeys(firsts) if one is not None and one != source]
    beside = tuple(_candidate(problem, one) for one in rivals)
    evaluation = _judged(scorer, problem, _candidate(problem, source), beside, confirm)
    timing = evaluation.verdict.timing
    if not evaluation.verdict.passed or timing is None:
        return Raced(ratios=(None,) * len(others), speedup=None, reason=evaluation.verdict.reason or "not timed")
    hashes = dict(zip(rivals, (one.sha256 for one in beside), strict=True))
    same = Interval(median=1.0, low=1.0, high=1.0)
    ratios = [same if one == source else timing.rivals.get(hashes.get(one or "", "")) for one in firsts]
    return Raced(ratios=tuple(map(_plain, ratios)), speedup=_plain(timing.speedup.get("eager")))


def _plain(found: Interval | None) -> Interval | None:
    return None if found is None else Interval(median=found.median, low=found.low, high=found.high)


def _candidate(problem: ScheduleProblem, source: str) -> Candidate:
    return Candidate(problem_id=problem.problem.id, source=source, backend=problem.plan.backend, author="policy")


def _judged(
    scorer: ScheduleScorer, problem: ScheduleProblem, first: Candidate, beside: tuple[Candidate, ...], confirm: bool
) -> Evaluation:
    def session() -> Session:
        return scorer.session(problem.problem, problem.plan.backend)

    depth = Confirm(rivals=beside, within_s=SPARE_S) if confirm else Search(rivals=beside)
    return once_more(lambda: session().judge(first, depth))


def held_out(
    problems: Sequence[ScheduleProblem],
    policy: Schedules,
    others: Mapping[str, Schedules],
    scorer: ScheduleScorer,
    tell: Callable[[str], None],
) -> HeldOut:
    """Time a policy's schedules beside those of other contenders, in fresh processes.

    If the policy's kernel is refused, its user falls back to eager PyTorch. The ratio is then the contender's time over
    that of eager.
    """
    twins = Twins(scorer, problems[0].plan.backend)
    rows = []
    for problem in problems:
        row = _row(problem, policy[problem.name], {n: one[problem.name] for n, one in others.items()}, scorer, twins)
        rows.append(row)
        said = ", ".join(f"{ratio.median:.3f}x of {name}" for name, ratio in row.ratios.items())
        tell(f"held out {problem.name}: {said or row.reason}")
    over = {}
    for name in others:
        measured = [Measured.of(row.ratios[name]) for row in rows if name in row.ratios]
        if measured:
            over[name] = paired_means(measured, [Measured(0.0)] * len(measured)).ratio
    return HeldOut(rows=tuple(rows), over=over)


def _row(
    problem: ScheduleProblem,
    own: Schedule,
    others: Mapping[str, Schedule],
    scorer: ScheduleScorer,
    twins: Twins,
) -> HeldOutRow:
    schedules = {"policy": dict(own), **{name: dict(one) for name, one in others.items()}}
    found = raced(problem, own, list(others.values()), scorer, twins, confirm=True)
    if found.speedup is None:
        ratios = {}
        for name, other in others.items():
            alone = raced(problem, other, [], scorer, twins, confirm=True)
            if alone.speedup is not None:
                ratios[name] = _inverse(alone.speedup)
        return HeldOutRow(problem=problem.name, schedules=schedules, ratios=ratios, reason=found.reason)
    ratios = {name: ratio for name, ratio in zip(others, found.ratios, strict=True) if ratio is not None}
    return HeldOutRow(problem=problem.name, schedules=schedules, speedup=found.speedup, ratios=ratios)


def _inverse(found: Interval) -> Interval:
    return Interval(median=1.0 / found.median, low=1.0 / found.high, high=1.0 / found.low)
