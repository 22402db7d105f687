"""The confirmation of a winner, which a run publishes: timing in fresh processes, if needed of the runner-up too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kernelwright.agents import Attempt
from kernelwright.errors import MachineError
from kernelwright.records import Candidate, Evaluation

CONFIRMATIONS = 2  # the winner, and the runner-up if the winner does not hold
_LEVEL = 0.99  # processes differ by 1% on their own, so a smaller lead is no reason to confirm the other kernel


class Confirmation(NamedTuple):
    """The chosen evaluation with its id; ``evaluation`` is None if nothing may be published."""

    evaluation_id: str
    evaluation: Evaluation | None
    reason: str


def choose_winner(
    attempts: Sequence[Attempt],
    ranked: Sequence[Attempt],
    baseline: str,
    confirm: Callable[[Candidate, tuple[Candidate, ...]], tuple[str, Evaluation]],
    load: Callable[[str], Evaluation],
) -> Confirmation:
    """Confirm the best attempt beside the runner-up. If the best does not hold, confirm the runner-up as well.

    The best does not hold if its confirmation refuses it, finds it no faster than the baseline, or finds it over 1%
    slower than the runner-up in the same processes. In the last case the runner-up is published if it is faster than
    the baseline too. In the other cases the better of both is published.

    A kernel that the search found to be surely slower than the baseline is not confirmed: the search's figure stands.

    Kernels are timed only beside kernels of their own language. A kernel that was never timed cannot be runner-up.

    Args:
        attempts: all rounds of the problem.
        ranked: attempts that passed and compete, the best first.
        baseline: its speedup decides.
        confirm: confirms a candidate, timed beside others, and stores the result; returns its id and evaluation.
        load: loads a stored evaluation by id, for attempts without a timing, which need no confirmation.

    Raises:
        MachineError: the machine failed during the first confirmation.
    """
    if not ranked:
        return Confirmation("", None, _why_nothing_passed(attempts))
    if ranked[0].verdict.timing is None or not _may_win(ranked[0], baseline):
        return Confirmation(ranked[0].evaluation_id, load(ranked[0].evaluation_id), "")
    ranked = [attempt for attempt in ranked if attempt.verdict.timing is not None]
    confirmed: list[tuple[float, str, Evaluation]] = []
    refusals: list[str] = []
    for place, attempt in enumerate(ranked[:CONFIRMATIONS]):
        if place and not _may_win(attempt, baseline):
            break
        beside = _beside(attempt, ranked[1:CONFIRMATIONS]) if place == 0 else ()
        try:
            evaluation_id, evaluation = confirm(attempt.candidate, beside)
        except MachineError:
            if confirmed:  # a fault during the runner-up's confirmation must not lose the winner's
                break
            raise
        if not evaluation.verdict.passed:
            refusals.append(f"{attempt.candidate.sha256[:12]}: {evaluation.verdict.reason}")
            continue
        speedup = evaluation.verdict.speedup(baseline)
        low = speedup.low if speedup else 0.0
        confirmed.append((low, evaluation_id, evaluation))
        if low > 1.0 and not _beaten(evaluation):
            break
    if not confirmed:
        return Confirmation("", None, f"the confirmation refused {'; '.join(refusals)}")
    # A comparison in the same processes is better than one of two confirmations, where the luckier kernel would win.
    beaten = len(confirmed) > 1 and _beaten(confirmed[0][2]) and confirmed[1][0] > 1.0
    _, evaluation_id, evaluation = confirmed[1] if beaten else max(confirmed, key=lambda entry: entry[0])
    return Confirmation(evaluation_id, evaluation, "")


def _may_win(attempt: Attempt, baseline: str) -> bool:
    """Whether a kernel may still be faster than the baseline, by the search's interval."""
    speedup = attempt.verdict.speedup(baseline)
    return speedup is None or speedup.high > 1.0


def _beside(attempt: Attempt, others: Sequence[Attempt]) -> tuple[Candidate, ...]:
    return tuple(o.candidate for o in others if o.candidate.backend == attempt.candidate.backend)


def _beaten(evaluation: Evaluation) -> bool:
    """Whether a rival in the same processes was surely faster, by more than processes differ on their own."""
    timing = evaluation.verdict.timing
    return timing is not None and any(ratio.high < _LEVEL for ratio in timing.rivals.values())


def _why_nothing_passed(attempts: Sequence[Attempt]) -> str:
    if not attempts:
        return "no candidate was proposed"
    last = attempts[-1].verdict
    if passed := sorted({attempt.candidate.backend for attempt in attempts if attempt.verdict.passed}):
        return f"no candidate passed that could win: those for {', '.join(passed)} were timed on another device"
    rounds = "1 round" if len(attempts) == 1 else f"{len(attempts)} rounds"
    return f"no candidate passed in {rounds}; the last one: {last.status.value}: {last.reason}"
