"""The queue: judges what lies in the spool, one submission after the other, and puts it on the board."""

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
    from kernelwright.campaign import OpenReferee
    from kernelwright.store import Store

POLL_S: Final = 2.0
RETRY_S: Final = 60.0  # what a machine could not do, it can hardly do at once


class QueueReport(NamedTuple):
    """How many submissions ended how: a verdict that passed, one that did not, none at all, or to be tried again."""

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

    Each is checked in a session of its own in which nothing is timed, and only if it passes, confirmed in another one
    with fresh secrets: nothing of it is ranked by the timing of a search. A kernel that stands on the board already,
    byte for byte, is not judged again. What is recorded is never recorded twice, whenever this process is killed.

    Args:
        settings: what to use.
        store: where verdicts go.
        spool: where submissions lie.
        once: end when none is left that was not tried; else wait for more.
        tell: told each step as a line; it may quote hostile text.
        open_referee: makes the referee for settings; None for the one on this machine.
        stop: asked before each session whether to end.
        limit: end after so many.
        wait: waits so many seconds for more submissions.
        clock: seconds since whenever.

    Raises:
        UsageError: the settings ask for what cannot be.
        MachineError, MissingToolError: the referee cannot work here at all.
        StoreError: the store or the spool cannot be read or written. What was claimed waits again.
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
    """What is wrong with the settings must not be held against submissions.

    Raises:
        UsageError: a folder of suites or a baseline is none.
    """
    from kernelwright.datasets import suites
    from kernelwright.evaluator import BASELINES

    suites(settings.suite_dirs)
    for name in settings.baselines:
        if name not in BASELINES:
            raise UsageError(f"unknown baseline {name!r}", hint=f"use some of {', '.join(BASELINES)}")


class _Queue:
    """Takes claims to their ends, and counts these."""

    def __init__(self, spool: Spool, judging: Judging, tell: Callable[[str], None], stop: Callable[[], bool]) -> None:
        self.judging = judging
        self.report = QueueReport()
        self._spool = spool
        self._tell = tell
        self._stop = stop
        self._strays: set[str] = set()

    def rest(self) -> None:
        """Nothing waits: give the referee's memory back, and say what in the spool is no submission."""
        self.judging.close()
        for stray in self._spool.strays():
            if stray.name not in self._strays:
                self._strays.add(stray.name)
                self._tell(f"left alone: {stray.name}: {stray.reason}")

    def settle(self, claim: Claim) -> bool:
        """Judge a claimed submission; False where it waits again."""
        try:
            outcome = self.judging.judge(claim)
        except (MachineError, MissingToolError) as error:
            return self._after_fault(claim, error)
        except Exception as error:
            # Of ours it is no fault of the submission; a bug may be, and must not be met again for ever.
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
        if not self.judging.is_open:  # it could not even be opened, which no submission is to blame for
            self._release(claim)
            raise error
        self.judging.close()
        if self._stop():  # an interrupt reaches workers as well, and looks like a fault of theirs
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
        """Let it wait again; as a try where there is a reason. A full disk must not hide the error that led here."""
        with suppress(KernelwrightError):
            self._spool.release(claim, reason=reason, counts=bool(reason))

    def _count(self, ended: Literal["passed", "refused", "failed", "put_back"]) -> None:
        self.report = self.report._replace(**{ended: getattr(self.report, ended) + 1})
