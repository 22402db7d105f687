"""The field's figures over many problems and samples, with bootstrap intervals.

Rates are over all problems that were asked about. A problem without a sample counts as not solved. Of several samples
of a problem, the fastest correct one counts; with ``only_first``, the first one counts, right or wrong.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from kernelwright.bench._outcomes import Outcome
from kernelwright.evaluator import Result, bootstrap_interval, fast_p, pass_at_k
from kernelwright.records import Interval, Record

THRESHOLDS = (0.0, 0.5, 0.8, 1.0, 1.5, 2.0)


class Summary(Record):
    """Figures of a set of problems against one baseline.

    Attributes:
        problems: number of problems asked about. ``samples``: number of samples.
        compile_rate: share of samples that were built. ``sample_rate``: share of samples that are correct.
        correct_rate: share of problems that have a correct sample.
        pass_at_k: unbiased estimate by k, the mean over problems with at least k samples. A problem without samples
            counts as 0.
        fast_p: by p, the share of problems that are correct and more than p times as fast as the baseline.
        curve: fast_p at every speedup that occurs, as pairs of p and the share.
        timed: number of problems whose speedup is known; the next two figures are over these.
        geometric_mean: of their speedups. ``median``: of their speedups. ``low`` and ``high`` are a 95% interval over
            problems, and equal the estimate if there is only one problem.
        own_share: mean share of the time in own kernels, over correct problems where it is known. ``sol``: mean SOL
            score, likewise.
        statuses: number of samples by status.
    """

    problems: int
    samples: int
    compile_rate: float
    sample_rate: float
    correct_rate: float
    pass_at_k: Mapping[int, float]
    fast_p: Mapping[str, float]
    curve: tuple[tuple[float, float], ...]
    timed: int
    geometric_mean: Interval | None
    median: Interval | None
    own_share: float | None
    sol: float | None
    statuses: Mapping[str, int]


class Breakdown(Record):
    """Summaries of all problems, of the problems of each level, and of those of each category."""

    baseline: str
    all: Summary
    by_level: Mapping[int, Summary]
    by_category: Mapping[str, Summary]


class Asked(Record):
    """A problem that was asked about."""

    name: str
    level: int
    category: str = "other"


def break_down(
    outcomes: Sequence[Outcome], asked: Sequence[Asked], baseline: str, *, only_first: bool = False
) -> Breakdown:
    """All figures against one baseline.

    Args:
        outcomes: in any order. Outcomes of problems that are not in ``asked`` are ignored.
        only_first: only the samples with number 0 count, as in KernelBench's own analysis.

    Raises:
        ValueError: no problem was asked about.
    """

    def of(problems: Iterable[Asked]) -> Summary:
        return summarise(outcomes, [problem.name for problem in problems], baseline, only_first=only_first)

    levels = sorted({problem.level for problem in asked})
    categories = sorted({problem.category for problem in asked})
    return Breakdown(
        baseline=baseline,
        all=of(asked),
        by_level={level: of(p for p in asked if p.level == level) for level in levels},
        by_category={category: of(p for p in asked if p.category == category) for category in categories},
    )


def summarise(
    outcomes: Iterable[Outcome], problems: Sequence[str], baseline: str, *, only_first: bool = False
) -> Summary:
    """Figures of some problems, by their names.

    Raises:
        ValueError: there are no problems.
    """
    if not problems:
        raise ValueError("a summary needs problems")
    by_problem: dict[str, list[Outcome]] = {name: [] for name in problems}
    for outcome in outcomes:
        if outcome.problem in by_problem and not (only_first and outcome.sample != 0):
            by_problem[outcome.problem].append(outcome)
    samples = [outcome for found in by_problem.values() for outcome in found]
    best = {name: _best(found, baseline) for name, found in by_problem.items()}
    results = [Result(one is not None, None if one is None else one.speedups.get(baseline)) for one in best.values()]
    speedups = [result.speedup for result in results if result.speedup is not None]
    correct = [one for one in best.values() if one is not None]
    return Summary(
        problems=len(by_problem),
        samples=len(samples),
        compile_rate=_share(outcome.compiled for outcome in samples),
        sample_rate=_share(outcome.correct for outcome in samples),
        correct_rate=fast_p(results, 0.0),
        pass_at_k=_passes(by_problem.values()),
        fast_p={f"{p:g}": fast_p(results, p) for p in THRESHOLDS},
        curve=tuple((p, fast_p(results, p)) for p in sorted({0.0, *speedups})),
        timed=len(speedups),
        geometric_mean=_interval(speedups, "mean"),
        median=_interval(speedups, "median"),
        own_share=_mean(one.own_share for one in correct),
        sol=_mean(one.sol for one in correct),
        statuses=dict(sorted(Counter(outcome.status for outcome in samples if outcome.status).items())),
    )


def _best(samples: Sequence[Outcome], baseline: str) -> Outcome | None:
    """The fastest correct sample, or the first correct one if none has a time; None if none is correct."""
    correct = [outcome for outcome in samples if outcome.correct]
    return max(correct, key=lambda outcome: (outcome.speedups.get(baseline, 0.0), -outcome.sample), default=None)


def _share(flags: Iterable[bool]) -> float:
    found = list(flags)
    return sum(found) / len(found) if found else 0.0


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _passes(samples: Iterable[Sequence[Outcome]]) -> dict[int, float]:
    """pass@k for k = 1, 2, 5, 10... up to the largest number of samples of a problem, and for that number."""
    counts = [(len(found), sum(outcome.correct for outcome in found)) for found in samples]
    most = max((count for count, _ in counts), default=0)
    found = {}
    for k in sorted({k for k in (1, 2, 5, 10, 20, 50, 100) if k <= most} | ({most} if most else set())):
        chances = [pass_at_k(count, right, k) if count else 0.0 for count, right in counts if count >= k or count == 0]
        found[k] = math.fsum(chances) / len(chances)
    return found


def _interval(speedups: Sequence[float], estimate: Literal["mean", "median"]) -> Interval | None:
    """The geometric mean or the median of speedups with its interval over problems."""
    if not speedups:
        return None
    logs = np.log(speedups)
    value = np.mean(logs) if estimate == "mean" else np.median(logs)
    low, high = bootstrap_interval(logs, estimate)
    return Interval(median=math.exp(value), low=math.exp(low), high=math.exp(high))
