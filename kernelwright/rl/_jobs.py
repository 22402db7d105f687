"""A bounded queue of jobs for the one thread that judges. Clients take turns in it.

A client names its jobs itself. The same name with the same content is the same job, so a client that lost a reply can
ask again, and nothing is judged twice.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

MOST_KEPT: Final = 2_048  # finished jobs
MOST_KEPT_BYTES: Final = 64 * 2**20
_SECONDS_A_JOB: Final = 10.0  # a guess until the first job is done
_LONGEST_WAIT_S: Final = 60.0

State = Literal["waiting", "running", "done", "failed"]


class QueueFull(Exception):
    """The queue is full; ``retry_after_s`` is when to ask again."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__("the queue is full")
        self.retry_after_s = retry_after_s


class NameTaken(Exception):
    """The client has a job of this name with other content."""


class Answer(NamedTuple):
    """The answer to a job: the HTTP status and body of the reply."""

    status: int
    body: bytes


@dataclass
class Job:
    """One job. ``done`` gets its answer; ``about`` describes it in views of the queue."""

    client: str
    name: str
    digest: str
    work: Callable[[Any], Answer]
    about: str = ""
    state: State = "waiting"
    done: Future[Answer] = field(default_factory=Future)


class JobQueue:
    """Jobs by client. Safe to use from any thread.

    Args:
        capacity: most waiting jobs. One client may have at most half of them, so that none keeps the others out.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._changed = threading.Condition()
        self._waiting: OrderedDict[str, deque[Job]] = OrderedDict()  # the client whose turn it is comes first
        self._jobs: OrderedDict[tuple[str, str], Job] = OrderedDict()
        self._kept_bytes = 0
        self._running: Job | None = None
        self._seconds_a_job = _SECONDS_A_JOB
        self._closed = False

    def submit(self, job: Job) -> Job:
        """Queue a job and return it, or return the job that already has its name.

        Raises:
            QueueFull, NameTaken.
        """
        with self._changed:
            known = self._jobs.get((job.client, job.name))
            if known is not None:
                if known.digest != job.digest:
                    raise NameTaken
                return known
            own = len(self._waiting.get(job.client, ()))
            if self._closed or self.waiting >= self._capacity or own >= max(1, self._capacity // 2):
                raise QueueFull(min(_LONGEST_WAIT_S, max(1.0, self._seconds_a_job)))
            self._waiting.setdefault(job.client, deque()).append(job)
            self._jobs[job.client, job.name] = job
            self._changed.notify()
            return job

    def find(self, client: str, name: str) -> Job | None:
        """A client's job; None if the name is unknown, or the job was forgotten because it is old."""
        with self._changed:
            return self._jobs.get((client, name))

    def take(self, timeout_s: float) -> Job | None:
        """Mark the next job as running and return it; None if none came in time. Clients take turns."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting), timeout_s)
            if not self._waiting:
                return None
            client, jobs = next(iter(self._waiting.items()))
            job = jobs.popleft()
            if jobs:
                self._waiting.move_to_end(client)
            else:
                del self._waiting[client]
            job.state = "running"
            self._running = job
            return job

    def finish(self, job: Job, answer: Answer, seconds: float) -> None:
        """Keep a job's answer, and wake those who wait for it."""
        with self._changed:
            self._running = None
            if job.done.done():  # the queue was closed meanwhile
                return
            self._seconds_a_job += 0.3 * (seconds - self._seconds_a_job)
            job.state = "done" if answer.status < 400 else "failed"
            self._kept_bytes += len(answer.body)
            job.done.set_result(answer)
            self._jobs.move_to_end((job.client, job.name))
            self._forget_old()

    def _forget_old(self) -> None:
        finished = [key for key, job in self._jobs.items() if job.done.done()]
        for key in finished[:-1]:
            if len(finished) <= MOST_KEPT and self._kept_bytes <= MOST_KEPT_BYTES:
                return
            finished = finished[1:]
            self._kept_bytes -= len(self._jobs.pop(key).done.result().body)

    def close(self, answer: Answer) -> None:
        """Answer all unfinished jobs with ``answer``, and accept no more."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            for job in self._jobs.values():
                if not job.done.done():
                    job.state = "failed"
                    job.done.set_result(answer)
            self._changed.notify_all()

    @property
    def waiting(self) -> int:
        """The number of waiting jobs."""
        return sum(len(jobs) for jobs in self._waiting.values())

    def describe(self) -> dict[str, Any]:
        """The state of the queue: the number of waiting jobs, the capacity, and what is judged now."""
        with self._changed:
            running = None if self._running is None else self._running.about
            return {"waiting": self.waiting, "capacity": self._capacity, "judging": running}
