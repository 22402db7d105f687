"""Which candidates can be replayed, and by which recording: found out once for each source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from kernelwright.evaluator.accuracy.trials import CheckSet, Variant
from kernelwright.evaluator.device.judging import DeviceJudge
from kernelwright.evaluator.device.keeper_client import OUT_OF_MEMORY, KeeperError
from kernelwright.evaluator.device.pool import DevicePool
from kernelwright.evaluator.device.recorder import ReplaySide
from kernelwright.evaluator.device.replay import CannotReplay, NotAllRecorded
from kernelwright.evaluator.device.side import DeviceSide
from kernelwright.evaluator.timing.check_windows import Checker
from kernelwright.evaluator.timing.turns import Plan
from kernelwright.evaluator.wire.claims import WorkerFailed

__all__ = ["Replays"]

_TRIALS = 2  # with the first weights, and with others, that a replay has to answer right before it is timed


class Record(Protocol):
    """Records a candidate's call, see :meth:`Recorder.record`."""

    def __call__(self, side: DeviceSide, variant: Variant, pool: DevicePool, *, everything: bool) -> ReplaySide: ...


class Replays:
    """The replays of candidates of one problem.

    A recording of a candidate's own launches needs nothing but our launchers. Where it lacks a part of the work, CUPTI
    tells of everything that the process launches, libraries and torch included.
    """

    def __init__(
        self, record: Record, judge: Callable[[], DeviceJudge], tolerance_scale: float, call_timeout_s: float
    ) -> None:
        """``tolerance_scale``: of the problem."""
        self._record = record
        self._judge = judge
        self._options: dict[str, Any] = {"tolerance_scale": tolerance_scale, "call_timeout_s": call_timeout_s}
        self._never: dict[str, str] = {}  # why, by source
        self._of_everything: set[str] = set()  # sources

    def of_everything(self, side: DeviceSide) -> bool:
        """Whether its replay contains what libraries launch."""
        return side.program is not None and side.program.source in self._of_everything

    def of(
        self, side: DeviceSide, pool: DevicePool, check_set: CheckSet, see_more: Callable[[ReplaySide], None]
    ) -> ReplaySide:
        """A seat that replays a candidate's calls and answers right. ``see_more``: checks it further, raises as this.

        Raises:
            CannotReplay: they cannot be replayed; the message says why.
        """
        assert side.program is not None
        source = side.program.source
        if source in self._never:
            raise CannotReplay(self._never[source])
        try:
            replay = self._recorded(source, side, pool, check_set)
            try:
                see_more(replay)
            except BaseException:
                replay.end()
                raise
            return replay
        except CannotReplay as error:
            self._never[source] = str(error)
        except KeeperError as error:
            if error.code != OUT_OF_MEMORY:
                raise
            self._never[source] = "a recording needs more memory than the device has left"
        raise CannotReplay(self._never[source])

    def _recorded(self, source: str, side: DeviceSide, pool: DevicePool, check_set: CheckSet) -> ReplaySide:
        if source in self._of_everything:
            return self._right(side, pool, check_set, everything=True)
        try:
            return self._right(side, pool, check_set, everything=False)
        except NotAllRecorded as lacks:
            try:
                replay = self._right(side, pool, check_set, everything=True)
            except CannotReplay as error:
                raise CannotReplay(f"{lacks}; with what libraries launch: {error}") from None
        self._of_everything.add(source)
        return replay

    def _right(self, side: DeviceSide, pool: DevicePool, check_set: CheckSet, *, everything: bool) -> ReplaySide:
        pool.refill([0])
        replay = self._record(side, check_set.variants[0], pool, everything=everything)
        try:
            self._see_right(replay, pool, check_set)
        except NotAllRecorded as error:
            replay.end()
            strangers = replay.strangers()
            more = f" ({strangers} words of its parameters look like addresses outside of its memory)"
            raise NotAllRecorded(f"{error}{more if strangers else ''}") from None
        except BaseException:
            replay.end()
            raise
        return replay

    def _see_right(self, replay: ReplaySide, pool: DevicePool, check_set: CheckSet) -> None:
        """Check that a replay answers right, with other weights too: what is made of weights once is not repeated.

        Raises:
            CannotReplay: it does not.
        """
        plain = [trial for trial in check_set.trials[0] if trial.partner is None]
        if any(trial.draws for trial in plain):
            raise CannotReplay("its outputs are random")
        trials = [trial for trial in plain if trial.weights == 0][:_TRIALS]
        trials += [trial for trial in plain if trial.weights][:_TRIALS]
        plan = Plan(4, pool.slots)
        checker = Checker(replay, pool, plan, reduced_precision=True, judge=self._judge(), **self._options)
        try:
            replay.enter(pool)
            found = checker.check(trials, passes=1).judgement
        except WorkerFailed as failed:
            raise NotAllRecorded(f"its replay failed: {failed.failure.message}") from None
        if found.status is not None:
            raise NotAllRecorded("its replay answers wrong, so not all of its work was recorded")
