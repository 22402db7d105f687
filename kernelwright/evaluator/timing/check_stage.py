"""The check: all trials of all variants go through the door, in windows like those of timing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from kernelwright.config import Settings
from kernelwright.evaluator.accuracy.judging import Judge, Judgement
from kernelwright.evaluator.accuracy.trials import OWN, CheckSet
from kernelwright.evaluator.host.seat import SETUP_TIMEOUT_S, WorkerSeat
from kernelwright.evaluator.timing.check_windows import Checker, worse
from kernelwright.evaluator.timing.check_windows import Finding as Checked
from kernelwright.evaluator.timing.clockwork import Clockwork
from kernelwright.evaluator.timing.slots import Slots
from kernelwright.evaluator.timing.turns import Plan
from kernelwright.evaluator.wire.claims import Failure, WorkerFailed
from kernelwright.evaluator.worker.guarded_memory import GuardLibrary
from kernelwright.records import Correctness, Problem, Status

__all__ = ["CheckReport", "CheckStage"]

_LARGEST_ERROR = 1e300  # stands for infinity, which JSON lacks
_POISON = 0xFF  # NaN in floats, -1 in signed integers
_GHOST_TRIALS = 3
_AFTER_THE_FIRST = 1  # the number of a pass that is neither poisoned nor guarded
_MOST_NAMES = 8  # of weights that were matched by their order
_UNTIMED_CALLS = 2  # calls of a window of a candidate that is never timed here (an interpreter's take long)


class CheckReport(NamedTuple):
    """The result of a check.

    refused: status and reason, if an output is wrong. notes: findings that inform, by rule. windows: the
    pool that the worker has mapped afterwards, and the plan of its windows.
    """

    correctness: Correctness
    refused: tuple[Status, str] | None
    notes: tuple[tuple[str, str], ...]
    windows: tuple[Slots, Plan]


class CheckStage:
    """Checks candidates of one problem on one device."""

    def __init__(self, guard: GuardLibrary, settings: Settings, problem: Problem, clockwork: Clockwork) -> None:
        """``guard`` poisons and guards a worker's memory."""
        self._guards = guard
        self._settings = settings
        self._problem = problem
        self._clockwork = clockwork

    def run(self, side: WorkerSeat, check_set: CheckSet, *, timeable: bool) -> CheckReport:
        """Reveal all trials of all variants through the door; stop at the first window that is wrong.

        The first variant comes last, so that the worker is set up for timing.

        Args:
            timeable: the candidate's kernels run natively, so windows may be as long as timed ones.

        Raises:
            WorkerFailed: the worker died, raised, hung, or claimed an output that is not there.
        """
        worst, trials, reduced = Judgement(None, "", 0.0, 0.0, True), 0, False
        loads: dict[str, float] = {}
        for index in reversed(range(len(check_set.variants))):
            if len(check_set.variants) > 1:
                side.set_up(check_set.variants[index])
            pool, plan, found = self._check_variant(side, check_set, index, loads, timeable=timeable)
            worst, trials = worse(worst, found.judgement), trials + found.trials
            reduced = reduced or found.reduced_precision
            if worst.status is not None:
                break
            side.leave(timeout_s=self._settings.call_timeout_s)
        correctness = Correctness(
            trials=trials,
            variants=len(check_set.variants),
            check_set=check_set.id,
            max_error=min(worst.load * worst.tolerance, _LARGEST_ERROR),
            error_budget=worst.tolerance,
            kernelbench_allclose=worst.allclose,
            archive=check_set.archive,
            loads=loads,
        )
        notes = []
        if check_set.assumed:
            notes.append(("assumed-domain", f"{check_set.assumed}; PROBLEM['inputs'] says what an input may hold"))
        if reduced:
            text = "an input is used at lower precision than its dtype, as allowed"
            notes.append(("reduced-precision-inside", text))
        if side.renamed:
            pairs = ", ".join(f"{theirs} -> {own}" for theirs, own in side.renamed[:_MOST_NAMES])
            more = len(side.renamed) - _MOST_NAMES
            text = f"{pairs}{f' and {more} more' if more > 0 else ''}; STATE_MAP in the file says it otherwise"
            notes.append(("weights-by-order", text))
        refused = None if worst.status is None else (worst.status, worst.reason)
        return CheckReport(correctness, refused, tuple(notes), (pool, plan))

    def _check_variant(
        self, side: WorkerSeat, check_set: CheckSet, index: int, loads: dict[str, float], *, timeable: bool
    ) -> tuple[Slots, Plan, Checked]:
        """Check one variant. The largest error by distribution goes into ``loads``."""
        if timeable:
            pool, plan = self._clockwork.rehearse(side, check_set, index)
        else:
            pool, plan = self._clockwork.untimed(side, check_set, index, _UNTIMED_CALLS)
        checker = self._checker(side, pool, plan)
        found = checker.check(check_set.trials[index])
        archived = check_set.archived[index] if check_set.archived else ()
        if not archived or found.judgement.status is not None:
            _add_loads(loads, checker.loads)
            return pool, plan, found
        more = checker.check(archived, passes=1, number_from=_AFTER_THE_FIRST)
        _add_loads(loads, checker.loads)
        return (
            pool,
            plan,
            found._replace(judgement=worse(found.judgement, more.judgement), trials=found.trials + more.trials),
        )

    def caught_by(self, side: WorkerSeat, check_set: CheckSet) -> dict[str, bool]:
        """For each generator of the check set's archive, whether its draws show that a worker's kernel is wrong.

        If the worker dies on a draw, its generator has shown it to be wrong, and later generators are left out.
        """
        found: dict[str, bool] = {}
        for index in reversed(range(len(check_set.variants))):
            if not check_set.archived[index]:
                continue
            side.set_up(check_set.variants[index])
            pool, plan = self._clockwork.untimed(side, check_set, index, _UNTIMED_CALLS)
            checker = self._checker(side, pool, plan)
            for trial in check_set.archived[index]:
                if found.get(trial.drawn_by):
                    continue
                try:
                    verdict = checker.check((trial,), passes=1, number_from=_AFTER_THE_FIRST).judgement
                    found[trial.drawn_by] = verdict.status is not None
                except WorkerFailed:
                    found[trial.drawn_by] = True
                    return found
            side.leave(timeout_s=self._settings.call_timeout_s)
        return found

    def _judge(self) -> Judge:
        """Compares outputs with truths."""
        return Judge()

    def _checker(self, side: WorkerSeat, pool: Slots, plan: Plan) -> Checker:
        tolerance = self._problem.meta.tolerance
        return Checker(
            side,
            pool,
            plan,
            tolerance_scale=tolerance.scale,
            reduced_precision=bool(tolerance.reduced_precision or self._settings.allow_precision),
            call_timeout_s=self._settings.call_timeout_s,
            before_pass=lambda number: self._guard(side, pool, _POISON if number == 0 else None),
            judge=self._judge(),
        )

    def _guard(self, side: WorkerSeat, pool: Slots, byte: int | None) -> None:
        """Poison a worker's tensors with ``byte`` and guard them for the first pass of a check; None ends that.

        Raises:
            WorkerFailed: it wrote outside of its tensors.
        """
        side.leave(timeout_s=self._settings.call_timeout_s)
        library = [] if byte is None else [self._guards.memfd()]
        try:
            reply = side.client.request("guard", timeout_s=SETUP_TIMEOUT_S, fds=library, byte=byte)
        finally:
            for fd in library:
                os.close(fd)
        claimed = reply.get("violations")
        if isinstance(claimed, list) and claimed:
            raise WorkerFailed(Failure("fault", "output", f"the kernel {str(claimed[0])[:200]}"), side.name)
        side.enter(pool)
        side.freeze()

    def allclose_on_its_own(self, side: WorkerSeat, check_set: CheckSet) -> bool:
        """Whether a worker that is set up would be correct by KernelBench's rule: see ``Verdict.as_kernelbench``.

        Raises:
            WorkerFailed: it dies, raises, hangs, or writes where it must not.
        """
        pool, plan = self._clockwork.untimed(side, check_set, 0, _UNTIMED_CALLS)
        own = [t for t in (*check_set.trials[0], *check_set.reserve) if t.distribution == OWN and t.weights == 0]
        return self._checker(side, pool, plan).allclose(own)

    def answers_right(self, side: WorkerSeat, check_set: CheckSet) -> bool:
        """Whether a worker that is set up answers a few trials right."""
        pool, plan = self._clockwork.untimed(side, check_set, 0, _UNTIMED_CALLS)
        trials = [trial for trial in check_set.trials[0] if trial.weights == 0 and trial.partner is None]
        found = self._checker(side, pool, plan).check(trials[:_GHOST_TRIALS], passes=1)
        return found.judgement.status is None


def _add_loads(into: dict[str, float], found: Mapping[str, float]) -> None:
    for name, load in found.items():
        into[name] = max(into.get(name, 0.0), min(load, _LARGEST_ERROR))
