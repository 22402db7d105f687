"""One thread for all that the referee does: jobs wait in a queue, and can be interrupted by a signal."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple, TypeVar

from kernelwright.errors import MachineError

Result = TypeVar("Result")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


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
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self.signalled = False

    def submit(self, work: Callable[[], Result]) -> Future[Result]:
        """Queue a job; cancelling its future before its turn takes it out again."""
        job = _Job(work, Future())
        self._jobs.put(job)
        return job.future

    def run(self) -> None:
        """Do what is submitted until :meth:`end` is called elsewhere, or SIGINT or SIGTERM comes."""
        with self._interruptible():
            while not self._ended.is_set():
                job = self._jobs.get()
                if job is not None and job.future.set_running_or_notify_cancel():
                    self._do(job)

    def end(self) -> None:
        """End :meth:`run`, dropping the job in hand. For other threads."""
        self._ended.set()
        self._jobs.put(None)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

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

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Meanwhile the first signal ends the lane, and those that follow do nothing: what was opened is closing."""
        came: list[int] = []

        def handle(number: int, frame: FrameType | None) -> None:
            self.signalled |= not self._ended.is_set()
            self._ended.set()
            came.append(number)
            if len(came) == 1:
                raise _Interrupted

        try:
            for number in _SIGNALS:
                signal.signal(number, handle)
            yield
        except _Interrupted:
            return
