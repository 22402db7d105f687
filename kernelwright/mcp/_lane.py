"""One thread for the referee's work. Jobs wait in a queue, and a signal can interrupt them."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import FrameType
from typing import Any, NamedTuple, TypeVar

from kernelwright.errors import MachineError

Result = TypeVar("Result")


_LOOK_S = 0.5


class _Interrupted(BaseException):
    """A signal ends the lane during a job."""


class _Job(NamedTuple):
    work: Callable[[], Any]
    future: Future[Any]


class Lane:
    """Runs jobs one by one, in the order of submission, in the process's main thread.

    Signals interrupt only the main thread. A signal drops the current judgement as Ctrl-C does on the command line:
    every context manager on the way out closes what it opened. The main thread also outlives all others, and the
    sandbox's processes die with the thread that started them.

    Creating a lane sets handlers for SIGINT and SIGTERM. They end the lane, but do not interrupt the cleanup after it.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._in_hand = False
        self._ended = False
        self.signalled = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)

    def submit(self, work: Callable[[], Result]) -> Future[Result]:
        """Queue a job. Cancelling its future before its turn removes the job."""
        job = _Job(work, Future())
        self._jobs.put(job)
        return job.future

    def run(self) -> None:
        """Run submitted jobs until another thread calls :meth:`end`, or until SIGINT or SIGTERM arrives."""
        try:
            while not self._ended:
                job = self._next()
                self._in_hand = True
                if job is not None and not self._ended and job.future.set_running_or_notify_cancel():
                    self._do(job)
                self._in_hand = False
        except _Interrupted:
            self._in_hand = False

    def _next(self) -> _Job | None:
        """The next job; None if none arrived in time.

        The wait is short, because a signal that arrives just before it begins is handled only after it.
        """
        try:
            return self._jobs.get(timeout=_LOOK_S)
        except queue.Empty:
            return None

    def end(self) -> None:
        """End :meth:`run` from another thread, and drop the current job."""
        self._ended = True
        self._jobs.put(None)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal. A lane that is already closing is not interrupted again."""
        self.signalled |= not self._ended
        self._ended = True
        self._jobs.put(None)
        if self._in_hand:
            self._in_hand = False
            raise _Interrupted

    @staticmethod
    def _do(job: _Job) -> None:
        try:
            result = job.work()
        except Exception as error:  # noqa: BLE001 - awaiting the future raises it again
            job.future.set_exception(error)
        except BaseException:
            job.future.set_exception(MachineError("the server was stopped", hint="start it and call again"))
            raise
        else:
            job.future.set_result(result)
