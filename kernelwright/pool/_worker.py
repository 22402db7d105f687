"""A worker: does the jobs of a spool, one after the other."""

from __future__ import annotations

import os
import re
import socket
import statistics
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

from kernelwright.errors import KernelwrightError, MachineError, StoreError
from kernelwright.pool._dispatch import LOSSES_TO_QUARANTINE, MOST_SOON
from kernelwright.pool._jobs import Answer, Card, Job, quarantine, version
from kernelwright.pool._seat import Seat
from kernelwright.pool._spool import BEAT_S, Beat, Entry, SpoolFolder

POLL_S: Final = 1.0
_FAULTS_TO_STOP: Final = 3  # of the machine, in a row
_IN_A_ROW: Final = 16  # jobs of one problem, before another problem's job is taken


class WorkReport(NamedTuple):
    """What a worker did.

    Attributes:
        judged: number of answers with a verdict; ``faults``: of those without.
        late: number of answers that another worker had given already.
        refused: number of waiting jobs of another version or for another machine.
        why: why the worker ended.
    """

    judged: int = 0
    faults: int = 0
    late: int = 0
    refused: int = 0
    why: str = ""


class _AskedToEnd(Exception):
    """The worker was asked to end while it did a job, whose outcome may come from that."""


def worker_name() -> str:
    """A new name for a worker: its host, its process, and some random digits."""
    host = re.sub(r"[^\w.-]+", "-", socket.gethostname()) or "host"
    return f"{host}-{os.getpid()}-{uuid.uuid4().hex[:6]}"


class Worker:
    """Does the jobs of a spool.

    Args:
        folder: the spool.
        seat: judges.
        name: the worker's own name.
        tell: called with a line about each job.
        stop: whether to end before the next job.
        wait: waits a number of seconds for more jobs.
        clock: seconds from any starting point.
        beat_s: seconds between heartbeats.
    """

    def __init__(
        self,
        folder: SpoolFolder,
        seat: Seat,
        *,
        name: str = "",
        tell: Callable[[str], None] = lambda line: None,
        stop: Callable[[], bool] = lambda: False,
        wait: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        beat_s: float = BEAT_S,
    ) -> None:
        self._folder = folder
        self._seat = seat
        self._name = name or worker_name()
        self._tell = tell
        self._stop = stop
        self._wait = wait
        self._clock = clock
        self._beat_s = beat_s
        self._report = WorkReport()
        self._refused: dict[str, str] = {}
        self._seconds: list[float] = []
        self._doing = ""
        self._faults = 0
        self._last = ("", 0)  # the problem of the latest jobs, and how many there were in a row

    def run(self, *, until_empty: bool = False, within_s: float | None = None) -> WorkReport:
        """Do jobs until there is a reason to end.

        Args:
            until_empty: end when no job is left that this worker can do, and no other worker's job may come back.
            within_s: begin no job that would probably not end within so many seconds.

        Raises:
            MachineError, MissingToolError: this machine cannot judge. A claimed job waits again.
            StoreError: the spool cannot be read or written. A claimed job comes back to the others.
        """
        until = None if within_s is None else self._clock() + within_s
        card = self._seat.open()
        try:
            with self._beating(card):
                while not (why := self._why_end(until)):
                    self._folder.take_back(self._name)
                    claimed = self._folder.claim(self._name, lambda job: self._suits(job, card), self._first)
                    if claimed is not None:
                        self._do(*claimed)
                    elif until_empty and not self._may_come_back():
                        why = "the spool is empty" if not self._refused else "no job is left for this worker"
                        break
                    else:
                        self._wait(POLL_S)
        finally:
            self._seat.close()
        return self._report._replace(refused=len(self._refused), why=why)

    def _why_end(self, until: float | None) -> str:
        if self._stop():
            return "it was asked to end"
        if until is None:
            return ""
        left = until - self._clock()
        typical = statistics.median(self._seconds) if self._seconds else 0.0
        return "its time is over" if left <= typical else ""

    def _may_come_back(self) -> bool:
        """Whether a job of another worker may still wait again."""
        return any(not self._folder.was_seen_alive(entry.worker) for entry in self._folder.claimed())

    @property
    def _first(self) -> str:
        problem, count = self._last
        return problem if count < _IN_A_ROW else ""

    def _suits(self, job: Job, card: Card) -> bool:
        """Whether this worker may do a job. The reason against it is told once."""
        why = ""
        here = card.in_threads(job.threads).get(job.candidate.backend)
        if job.version != version():
            why = f"it was asked by kernelwright {job.version}, and this is {version()}"
        elif here is None or job.environment not in ("", here.id):
            why = f"it is for environment {job.environment}, and this is {here.id if here else 'another machine'}"
        if not why:
            self._refused.pop(job.id, None)
            return True
        if job.id not in self._refused:
            known = why in self._refused.values()
            self._refused[job.id] = why
            if not known:
                self._tell(f"job {job.id[:8]} is left alone: {why}")
        return False

    def _do(self, entry: Entry, job: Job) -> None:
        self._doing = job.id
        problem, count = self._last
        self._last = entry.problem, count + 1 if problem == entry.problem else 1
        try:
            answer = self._answer(entry, job)
            first = self._folder.finish(entry, answer)
        except _AskedToEnd:
            self._folder.release(entry)
            self._tell(f"{job.problem.id}, kernel {job.candidate.sha256[:12]}: given back")
            return
        except BaseException:
            with suppress(KernelwrightError):  # the first error matters
                self._folder.release(entry)
            raise
        finally:
            self._doing = ""
        self._seconds.append(answer.seconds)
        if not first:
            self._count("late")
        elif answer.fault is not None:
            self._count("faults")
        else:
            self._count("judged")
        self._tell(f"{job.problem.id}, kernel {job.candidate.sha256[:12]}: {_outcome(answer)}, {answer.seconds:.1f} s")

    def _answer(self, entry: Entry, job: Job) -> Answer:
        """The answer to a job. If the machine fails, it is tried once more.

        Raises:
            MachineError, MissingToolError: this machine cannot judge.
        """
        if entry.losses >= LOSSES_TO_QUARANTINE:
            return quarantine(job, self._card.in_threads(job.threads)[job.candidate.backend], entry.losses)
        answer = self._seat.answer(job, lambda stage: None, self._folder.soon(entry, job, MOST_SOON))
        if self._stop() and not _passed(answer):
            raise _AskedToEnd  # a signal to all processes here may have ended the candidate as well
        if answer.fault is not None and answer.fault.of_the_machine and not answer.fault.of_the_seat:
            self._tell(f"the machine failed, trying again: {answer.fault.message}")
            answer = self._seat.answer(job, lambda stage: None)
        fault = answer.fault
        if fault is None or not fault.of_the_machine:
            self._faults = 0
            return answer
        self._faults += 1
        if fault.of_the_seat:
            raise fault.error("")
        if self._faults >= _FAULTS_TO_STOP:
            raise MachineError(
                f"the machine failed on {self._faults} jobs in a row: {fault.message}",
                hint="see 'kernelwright doctor'; the jobs wait for another worker",
            )
        return answer

    def _count(self, what: str) -> None:
        counted: dict[str, Any] = {what: getattr(self._report, what) + 1}
        self._report = self._report._replace(**counted)

    @contextmanager
    def _beating(self, card: Card) -> Any:
        """Write heartbeats in a thread of their own, as long as the block runs."""
        self._card = card
        over = threading.Event()

        def said(number: int) -> Beat:
            done = self._report.judged + self._report.faults
            return Beat(worker=self._name, beats=number, card=card, doing=self._doing, done=done)

        def beat() -> None:
            number = 1
            while not over.wait(self._beat_s):
                number += 1
                with suppress(StoreError):  # a full disk may have room again later
                    self._folder.beat(said(number))

        self._folder.beat(said(1))
        thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def _passed(answer: Answer) -> bool:
    return answer.evaluation is not None and answer.evaluation.verdict.passed


def _outcome(answer: Answer) -> str:
    if answer.evaluation is not None:
        return answer.evaluation.verdict.status.value
    return answer.fault.message if answer.fault is not None else "not judged, its machine code is known"
