"""The queue judges the spool's submissions one after the other, and records them for the board."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from kernelwright.config import Settings
from kernelwright.errors import KernelwrightError, MachineError, MissingToolError, UsageError
from kernelwright.submissions._judging import MAX_TRIES, Judging
from kernelwright.submissions._records import Outcome, storable
from kernelwright.submissions._spool import Claim, Spool

if TYPE_CHECKING:
    from kernelwright.pool import OpenReferee
    from kernelwright.store import Store

POLL_S: Final = 2.0
RETRY_S: Final = 60.0  # before a submission is tried again after a machine's fault


class QueueReport(NamedTuple):
    """Numbers of submissions that passed, were refused, got no verdict, or will be tried again."""

    passed: int = 0
    refused: int = 0
    failed: int = 0
    put_back: int = 0


def judge_submissions(
    settings: Settings,
    store: Store,
    spool: Spool,
    *,
    once: bool,
    tell: Callable[[str], None] = lambda line: None,
    open_referee: OpenReferee | None = None,
    stop: Callable[[], bool] = lambda: False,
    limit: int | None = None,
    wait: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> QueueReport:
    """Judge submissions, the oldest first. Several processes may do this at once.

    Each is checked in a session of its own, without timing. If it passes, another session with fresh secrets confirms
    it. Submissions are therefore never ranked by a search's timing. A kernel that is already on the board, byte for
    byte, is not judged again. No evaluation is recorded twice, even if this process is killed.

    Args:
        settings: the settings of the referee.
        store: the store for verdicts.
        spool: the submissions.
        once: end when every waiting submission was tried; else wait for more.
        tell: called with a line for each step, which may quote hostile text.
        open_referee: opens the referee for settings; None for the one on this machine.
        stop: whether to end; called before each session.
        limit: number of submissions after which to end.
        wait: waits a number of seconds for more submissions.
        clock: a monotonic clock in seconds.

    Raises:
        UsageError: the settings are impossible.
        MachineError, MissingToolError: the referee cannot work on this machine.
        StoreError: the store or the spool cannot be read or written. The claimed submission waits again.
    """
    _refuse_bad_settings(settings)
    queue = _Queue(spool, Judging(settings, store, open_referee, tell, stop), tell, stop)
    not_before: dict[str, float] = {}
    try:
        while not stop() and (limit is None or sum(queue.report) < limit):
            claim = spool.claim({name for name, moment in not_before.items() if once or clock() < moment})
            if claim is None:
                queue.rest()
                if once:
                    break
                wait(POLL_S)
            elif not queue.settle(claim):
                not_before[claim.submission.id] = clock() + RETRY_S
    finally:
        queue.judging.close()
    return queue.report


def _refuse_bad_settings(settings: Settings) -> None:
    """Refuse bad settings before judging, so that submissions do not fail for them.

    Raises:
        UsageError: a suite folder does not exist, or a baseline is unknown.
    """
    from kernelwright.datasets import suites
    from kernelwright.evaluator import BASELINES

    suites(settings.suite_dirs)
    for name in settings.baselines:
        if name not in BASELINES:
            raise UsageError(f"unknown baseline {name!r}", hint=f"use some of {', '.join(BASELINES)}")


class _Queue:
    """Judges claims, settles them in the spool, and counts the outcomes."""

    def __init__(self, spool: Spool, judging: Judging, tell: Callable[[str], None], stop: Callable[[], bool]) -> None:
        self.judging = judging
        self.report = QueueReport()
        self._spool = spool
        self._tell = tell
        self._stop = stop
        self._strays: set[str] = set()

    def rest(self) -> None:
        """While nothing waits, close the referee to free its memory, and report strays in the spool."""
        self.judging.close()
        for stray in self._spool.strays():
            if stray.name not in self._strays:
                self._strays.add(stray.name)
                self._tell(f"left alone: {stray.name}: {stray.reason}")

    def settle(self, claim: Claim) -> bool:
        """Judge a claimed submission. Returns False if it waits again."""
        try:
            outcome = self.judging.judge(claim)
        except (MachineError, MissingToolError) as error:
            return self._after_fault(claim, error)
        except Exception as error:
            # Our own errors are no fault of the submission. A bug may be, so it counts as a try, to end some day.
            self._release(claim, "" if isinstance(error, KernelwrightError) else f"a bug: {type(error).__name__}")
            raise
        except BaseException:
            self._release(claim)
            raise
        if outcome is None:
            self._spool.release(claim, counts=False)
            return False
        return self._finish(claim, outcome)

    def _after_fault(self, claim: Claim, error: KernelwrightError) -> bool:
        if not self.judging.is_open:  # the referee did not open: no submission is to blame
            self._release(claim)
            raise error
        self.judging.close()
        if self._stop():  # an interrupt also reaches the workers, and looks like their fault
            self._release(claim)
            return False
        reason = storable(str(error))
        if claim.tries >= MAX_TRIES:
            return self._finish(claim, Outcome(state="failed", reason=f"not judged in {claim.tries} tries: {reason}"))
        self._spool.release(claim, reason=reason)
        self._count("put_back")
        self._tell(f"{claim.submission.id}: to be tried again: {reason}")
        return False

    def _finish(self, claim: Claim, outcome: Outcome) -> bool:
        self._spool.finish(claim, outcome)
        if outcome.state == "failed":
            self._count("failed")
        else:
            self._count("passed" if outcome.status == "PASSED" else "refused")
        reason = f": {outcome.reason}" if outcome.reason else ""
        self._tell(f"{claim.submission.id}: {outcome.status or outcome.state}{reason}")
        return True

    def _release(self, claim: Claim, reason: str = "") -> None:
        """Put the submission back; with a reason, it counts as a try. A full disk must not hide the first error."""
        with suppress(KernelwrightError):
            self._spool.release(claim, reason=reason, counts=bool(reason))

    def _count(self, ended: Literal["passed", "refused", "failed", "put_back"]) -> None:
        self.report = self.report._replace(**{ended: getattr(self.report, ended) + 1})
