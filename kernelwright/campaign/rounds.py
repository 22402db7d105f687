"""A run round by round: how good the best kernel of each problem was after each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kernelwright.records import Record, Speedup, Verdict
from kernelwright.records.base import timed_together

if TYPE_CHECKING:
    from kernelwright.store import Store


class RoundSummary(Record):
    """After a round, over all problems of a run, by the best kernel so far.

    The best kernel is the one whose lower bound over the first baseline is the greatest, as the search measured it, of
    those that were not timed elsewhere than kernels of the run's backend are.

    Attributes:
        round: from one.
        judged: candidates judged in this round. ``passed``: of those, the ones that passed.
        solved: problems that have a kernel that passed.
        mean: geometric mean of the median speedups by baseline; a problem without a kernel counts as 1.
        faster: problems whose best kernel is called faster, by baseline.
        problems: all of the run.
    """

    round: int
    judged: int
    passed: int
    solved: int
    mean: dict[str, float]
    faster: dict[str, int]
    problems: int


def rounds_of(store: Store, run_id: str) -> list[RoundSummary]:
    """One summary for each round in which something was judged, in order; kernels that were not timed count as 1."""
    from kernelwright.evaluator import geometric_mean

    run = store.run(run_id)
    baselines = run.config.baselines
    judged: dict[int, list[Verdict]] = {}
    for stored in store.evaluations(run_id=run_id, confirmed=False, control=False, purpose="search"):
        if stored.step is not None and stored.quarantined is None:
            judged.setdefault(stored.step, []).append(stored.verdict)
    best: dict[str, Verdict] = {}
    found = []
    for step in range(max(judged, default=-1) + 1):
        verdicts = judged.get(step, [])
        for verdict in verdicts:
            competes = verdict.timing is None or timed_together(verdict.backend, run.config.backend)
            better = _bound(verdict, baselines) > _bound(best.get(verdict.problem), baselines)
            if verdict.passed and competes and better:
                best[verdict.problem] = verdict
        count = len(run.config.problems)
        speedups = {name: [verdict.speedup(name) for verdict in best.values()] for name in baselines}
        found.append(
            RoundSummary(
                round=step + 1,
                judged=len(verdicts),
                passed=sum(verdict.passed for verdict in verdicts),
                solved=len(best),
                mean={name: geometric_mean(_ratios(known, count)) for name, known in speedups.items()},
                faster={name: sum(s is not None and s.faster for s in known) for name, known in speedups.items()},
                problems=count,
            )
        )
    return found


def _bound(verdict: Verdict | None, baselines: Sequence[str]) -> float:
    """What ranks a kernel; below everything where there is none."""
    if verdict is None:
        return -1.0
    speedup = verdict.speedup(baselines[0])
    return speedup.low if speedup else 0.0


def _ratios(known: Sequence[Speedup | None], count: int) -> list[float]:
    return [speedup.median if speedup else 1.0 for speedup in known] + [1.0] * (count - len(known))
