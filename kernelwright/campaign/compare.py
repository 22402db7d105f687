"""Comparison of two runs on the problems that both have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from kernelwright.campaign._compare_data import Result, RunData, curve_of, read_run
from kernelwright.campaign._compare_warnings import differing_settings, warnings_of
from kernelwright.campaign.paired import LEAST_PROBLEMS, Mean, Paired, paired_means
from kernelwright.errors import UsageError
from kernelwright.records import Interval, Record, Speedup

if TYPE_CHECKING:
    from kernelwright.store import RunRow, Store

THRESHOLDS = (0.0, 0.5, 0.8, 1.0, 1.5, 2.0)
Outcome = Literal["a", "b", "noise", "unknown"]


class Side(Record):
    """One of two runs; all figures are of the common problems alone.

    Attributes:
        correct: problems with a kernel that passed. ``correct_rate``: their share.
        fast_p: by p, the share of problems that are correct and more than p times as fast as the baseline.
        mean: geometric mean of the speedups; None if nothing was timed.
        evaluations: number of evaluations of the search, without confirmations.
        device_seconds: the referee's time, confirmations included.
        tokens: of models, in and out; a request with unknown usage counts with its reserved tokens.
        cost_usd: None if unknown.
        curve: geometric mean of the problems' best speedups so far after 1, 2, 3... evaluations of each problem, as
            the search measured them; a problem without a kernel counts as 1.
    """

    run: str
    recipe: str
    coder: str
    status: str
    correct: int
    correct_rate: float
    fast_p: Mapping[str, float]
    mean: Mean | None
    evaluations: int
    device_seconds: float
    tokens: int
    cost_usd: float | None
    curve: tuple[float, ...]


class ProblemPair(Record):
    """Both runs' results for one common problem.

    A speedup is None without a kernel; it then counts as 1 in ``ratio`` and in means. A speedup is also None if a
    kernel was not timed; ``timed`` is then false, and the problem is left out of both. ``ratio`` is the first speedup
    over the second. It is None if the problem is left out or neither run has a kernel.
    """

    problem: str
    a: Speedup | None
    b: Speedup | None
    a_correct: bool
    b_correct: bool
    timed: bool
    ratio: Interval | None


class Comparison(Record):
    """Two runs over their common problems.

    Attributes:
        ratio: mean ratio of the first run's speedups to the second run's; None if nothing was timed.
        outcome: which run is better beyond noise; ``noise`` if neither is, ``unknown`` if too few problems are common.
        conclusion: the outcome in words.
        warnings: differences between the runs besides their search, and reasons to trust their figures less.
        differing: settings that differ, with both values.
    """

    a: Side
    b: Side
    baseline: str
    problems: tuple[ProblemPair, ...]
    ratio: Mean | None
    outcome: Outcome
    conclusion: str
    warnings: tuple[str, ...]
    differing: Mapping[str, tuple[str, str]]


def compare_runs(store: Store, a: RunRow, b: RunRow, baseline: str | None = None) -> Comparison:
    """Compare two runs of one store; :func:`paired_means` says how sure their ratio is.

    Args:
        baseline: the baseline of the speedups; None for the first baseline of ``a`` that ``b`` has, too.

    Raises:
        UsageError: the runs are the same, have no problem in common, or do not share the baseline.
    """
    if a.id == b.id:
        raise UsageError("a run cannot be compared with itself", hint="'kernelwright runs list' shows the others")
    common = _common(store, a, b)
    wanted = _baseline(a, b, baseline)
    one, other = (read_run(store, run, common, wanted) for run in (a, b))
    pairs = tuple(_pair(*found) for found in zip(common, one.results, other.results, strict=True))
    timed = [number for number, pair in enumerate(pairs) if pair.timed]
    means = None
    if timed:
        means = paired_means(*([side.results[n].measured for n in timed] for side in (one, other)))
    outcome = _outcome(means)
    return Comparison(
        a=_side(store, one, wanted, None if means is None else means.a),
        b=_side(store, other, wanted, None if means is None else means.b),
        baseline=wanted,
        problems=pairs,
        ratio=None if means is None else means.ratio,
        outcome=outcome,
        conclusion=_in_words(means, outcome, len(timed)),
        warnings=warnings_of(store, one, other),
        differing=differing_settings(a.config, b.config),
    )


def _common(store: Store, a: RunRow, b: RunRow) -> list[str]:
    """The problems that both runs have in the same version, in the order of the first run."""
    ours, theirs = ({state.problem: state.version for state in store.problem_states(run.id)} for run in (a, b))
    common = [problem for problem, version in ours.items() if theirs.get(problem) == version]
    if not common:
        changed = "; problems of the same name have different references" if set(ours) & set(theirs) else ""
        raise UsageError(
            f"runs {a.id} and {b.id} have no problem in common{changed}",
            hint="'kernelwright runs show RUN' lists a run's problems",
        )
    return common


def _baseline(a: RunRow, b: RunRow, wanted: str | None) -> str:
    shared = [name for name in a.config.baselines if name in b.config.baselines]
    if wanted is None and shared:
        return shared[0]
    if wanted is not None and wanted in shared:
        return wanted
    told = f"both have {', '.join(shared)}" if shared else "they have no baseline in common"
    raise UsageError(f"the runs were not both timed against {wanted or 'one baseline'}", hint=told)


def _pair(problem: str, a: Result, b: Result) -> ProblemPair:
    timed = not (a.untimed or b.untimed)
    ratio = None
    if timed and (a.speedup or b.speedup):
        middle = a.measured.value - b.measured.value
        reach = 1.96 * math.hypot(a.measured.deviation, b.measured.deviation)
        ratio = Interval(median=math.exp(middle), low=math.exp(middle - reach), high=math.exp(middle + reach))
    return ProblemPair(
        problem=problem,
        a=a.speedup,
        b=b.speedup,
        a_correct=a.correct,
        b_correct=b.correct,
        timed=timed,
        ratio=ratio,
    )


def _side(store: Store, data: RunData, baseline: str, mean: Mean | None) -> Side:
    from kernelwright.evaluator import Result as Scored
    from kernelwright.evaluator import fast_p

    run = data.row
    scored = [Scored(found.correct, found.speedup.median if found.speedup else None) for found in data.results]
    used = store.problems_spending(run.id, data.problems)
    correct = sum(found.correct for found in data.results)
    return Side(
        run=run.id,
        recipe=run.config.recipe,
        coder=run.config.coder,
        status=run.status,
        correct=correct,
        correct_rate=correct / len(data.results),
        fast_p={f"{p:g}": fast_p(scored, p) for p in THRESHOLDS},
        mean=mean,
        evaluations=data.evaluations,
        device_seconds=sum(one.seconds for one in data.judged),
        tokens=used.tokens + used.open_tokens,
        cost_usd=None if used.unknown else used.cost_usd + used.open_cost_usd,
        curve=curve_of(data),
    )


def _outcome(means: Paired | None) -> Outcome:
    if means is None or means.ratio.low is None or means.ratio.high is None:
        return "unknown"
    return "a" if means.ratio.low > 1.0 else "b" if means.ratio.high < 1.0 else "noise"


def _in_words(means: Paired | None, outcome: Outcome, count: int) -> str:
    if means is None:
        return "nothing can be concluded about speed: no common problem was timed in both runs"
    over = f"{count} common problem{'s' * (count != 1)}"
    ratio = means.ratio
    if outcome == "unknown":
        return (
            f"A/B is {ratio.value:.2f}x over {over}, from which nothing can be concluded: an interval over problems "
            f"needs {LEAST_PROBLEMS} at least"
        )
    told = f"A/B is {ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}] over {over}"
    if outcome == "noise":
        return f"{told}: no more than noise, since the interval holds 1"
    return f"{told}: {outcome.upper()} is faster, and that is more than noise"
