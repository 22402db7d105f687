"""One thread for all that the referee does: jobs wait in a queue, and can be interrupted by a signal."""

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
    """The lane is to end now, whatever it does."""


class _Job(NamedTuple):
    work: Callable[[], Any]
    future: Future[Any]


class Lane:
    """Runs jobs one by one, in the order in which they came, in the process's main thread.

    The main thread, because that is the one that a signal interrupts: a judgement in hand is dropped the way that
    Ctrl-C drops it on the command line, every context manager on its way out closing what it opened. It also outlives
    all others, and the sandbox's processes die with the thread that started them.

    From its making on, SIGINT and SIGTERM are the lane's: they end it, and do nothing to what closes after it.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._in_hand = False
        self._ended = False
        self.signalled = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)

    def submit(self, work: Callable[[], Result]) -> Future[Result]:
        """Queue a job; cancelling its future before its turn takes it out again."""
        job = _Job(work, Future())
        self._jobs.put(job)
        return job.future

    def run(self) -> None:
        """Do what is submitted until :meth:`end` is called elsewhere, or SIGINT or SIGTERM comes."""
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
        """The next job, None where there may be none.

        Asked for again and again: a signal that comes just before the wait begins is handled after it only.
        """
        try:
            return self._jobs.get(timeout=_LOOK_S)
        except queue.Empty:
            return None

    def end(self) -> None:
        """End :meth:`run`, dropping the job in hand. For other threads."""
        self._ended = True
        self._jobs.put(None)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal. What closes already is not interrupted again."""
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
        except Exception as error:  # noqa: BLE001 - raised again where the future is awaited
            job.future.set_exception(error)
        except BaseException:
            job.future.set_exception(MachineError("the server was stopped", hint="start it and call again"))
            raise
        else:
            job.future.set_result(result)
