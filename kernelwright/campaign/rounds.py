"""A run round by round: the quality of each problem's best kernel after each round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kernelwright.records import Record, Speedup, Verdict
from kernelwright.records.base import timed_together

if TYPE_CHECKING:
    from kernelwright.store import Store


class RoundSummary(Record):
    """The state after a round over all problems of a run, by the best kernel so far.

    The best kernel has the greatest lower bound of its speedup over the first baseline, as the search measured it.
    Kernels that were timed on another device than those of the run's backend do not count.

    Attributes:
        round: number of the round, counted from 1.
        judged: number of candidates judged in this round. ``passed``: number of these that passed.
        solved: problems that have a kernel that passed.
        mean: geometric mean of the median speedups by baseline; a problem without a kernel counts as 1.
        faster: problems whose best kernel is called faster, by baseline.
        problems: number of problems of the run.
    """

    round: int
    judged: int
    passed: int
    solved: int
    mean: dict[str, float]
    faster: dict[str, int]
    problems: int


def rounds_of(store: Store, run_id: str) -> list[RoundSummary]:
    """One summary for each round up to the last with an evaluation; kernels that were not timed count as 1."""
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
    """The value that ranks a kernel; no kernel ranks below all others."""
    if verdict is None:
        return -1.0
    speedup = verdict.speedup(baselines[0])
    return speedup.low if speedup else 0.0


def _ratios(known: Sequence[Speedup | None], count: int) -> list[float]:
    return [speedup.median if speedup else 1.0 for speedup in known] + [1.0] * (count - len(known))
