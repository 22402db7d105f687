"""The scheduling of problems: several run side by side; those that wait for replies continue later."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from kernelwright.campaign.attempts import Awaiting, Stopped
from kernelwright.campaign.stopping import StopWatch

_LOOK_S = 0.5  # seconds between looks for replies and stops
REPLY_SUFFIXES = (".reply.json", ".reply.md", "")  # a verdict's place is the whole path
Job = TypeVar("Job")


class _Waiting(NamedTuple, Generic[Job]):
    job: Job
    places: tuple[str, ...]

    @property
    def answered(self) -> bool:
        """Whether one of the job's replies has arrived."""
        return any(Path(place + suffix).exists() for place in self.places for suffix in REPLY_SUFFIXES)


class Schedule(Generic[Job]):
    """Works on jobs until each is done, or something stops the run.

    Args:
        watch: asked before each job and during waits whether to stop.
        side_by_side: number of jobs at once; with 1, jobs run in the caller's thread.
        patience_s: how long to wait for replies that a person writes, or for a spool; None to wait without a limit.
        work: does one job, or raises :class:`Awaiting` or :class:`Stopped`. It also writes the job's row and events.
        waiting: called with the paths at which replies are awaited, when no other job is left.
        abort: ends the work in flight after an interrupt.
        meanwhile: called about twice a second while work or replies are waited for.
    """

    def __init__(
        self,
        watch: StopWatch,
        *,
        side_by_side: int,
        patience_s: float | None,
        work: Callable[[Job], None],
        waiting: Callable[[Sequence[str]], None],
        abort: Callable[[], None],
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        self._watch = watch
        self._side_by_side = side_by_side
        self._patience_s = patience_s
        self._work = work
        self._tell_waiting = waiting
        self._abort = abort
        self._meanwhile = meanwhile
        self._waiting: list[_Waiting[Job]] = []
        self._reason = ""

    @property
    def awaited(self) -> tuple[str, ...]:
        """The places at which replies and verdicts are awaited. Any thread may ask."""
        return tuple(place for waiting in self._waiting for place in waiting.places)

    def run(self, jobs: Sequence[Job]) -> str:
        """Do all jobs; returns why the run stopped before its end, or an empty string."""
        todo = deque(jobs)
        while True:
            if self._side_by_side == 1:
                self._one_by_one(todo)
            else:
                self._together(todo)
            if self._reason or not self._waiting:
                return self._reason
            todo += self._await_answers()

    def _one_by_one(self, todo: deque[Job]) -> None:
        while todo and not self._stop():
            self._took(todo[0], lambda: self._work(todo[0]))
            todo.popleft()

    def _together(self, todo: deque[Job]) -> None:
        with ThreadPoolExecutor(self._side_by_side, "problem") as threads:
            running: dict[Future[None], Job] = {}
            try:
                while (todo and not self._stop()) or running:
                    while todo and len(running) < self._side_by_side and not self._stop():
                        job = todo.popleft()
                        running[threads.submit(self._work, job)] = job
                    done, _ = wait(running, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
                    self._meanwhile()
                    for future in done:
                        self._took(running.pop(future), future.result)
                    todo += self._answered()
            except BaseException:
                self._watch.request("interrupted")
                self._abort()
                raise

    def _took(self, job: Job, result: Callable[[], None]) -> None:
        try:
            result()
        except Awaiting as awaiting:
            self._waiting.append(_Waiting(job, awaiting.places))
        except Stopped as stopped:
            self._watch.request(stopped.reason)
            self._reason = self._reason or stopped.reason

    def _stop(self) -> bool:
        self._reason = self._reason or self._watch.reason()
        return bool(self._reason)

    def _answered(self) -> list[Job]:
        """Take out the waiting jobs that have a reply."""
        ready = [waiting for waiting in self._waiting if waiting.answered]
        self._waiting = [waiting for waiting in self._waiting if waiting not in ready]
        return [waiting.job for waiting in ready]

    def _await_answers(self) -> list[Job]:
        """Wait until a job has a reply or a verdict; returns all jobs that can continue."""
        self._tell_waiting(self.awaited)
        until = None if self._patience_s is None else self._watch.seconds + self._patience_s
        while not (ready := self._answered()):
            self._meanwhile()
            if until is not None and self._watch.seconds >= until:
                self._reason = "replies"
                return []
            if reason := self._watch.wait(_LOOK_S):
                self._reason = reason
                return []
        return ready
