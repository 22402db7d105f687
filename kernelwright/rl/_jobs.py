"""Jobs that wait for the one thread that judges: a bounded queue in which clients take turns.

A client names its jobs itself. The same name with the same content is the same job, so that whoever lost a reply may
ask again and nothing is judged twice.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

MOST_KEPT: Final = 2_048  # jobs that are done
MOST_KEPT_BYTES: Final = 64 * 2**20
_SECONDS_A_JOB: Final = 10.0  # guessed until one was done
_LONGEST_WAIT_S: Final = 60.0

State = Literal["waiting", "running", "done", "failed"]


class QueueFull(Exception):
    """There is no place for one more job; ``retry_after_s`` is when to ask again."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__("the queue is full")
        self.retry_after_s = retry_after_s


class NameTaken(Exception):
    """The client has a job of this name with other content."""


class Answer(NamedTuple):
    """What became of a job: the reply's status and body, as they are sent."""

    status: int
    body: bytes


@dataclass
class Job:
    """One job. ``done`` gets its answer; ``about`` says what it is, for whoever looks at the queue."""

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
        capacity: jobs that may wait. One client may have at most half of them, so that none keeps the others out.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._changed = threading.Condition()
        self._waiting: OrderedDict[str, deque[Job]] = OrderedDict()  # whose turn it is stands first
        self._jobs: OrderedDict[tuple[str, str], Job] = OrderedDict()
        self._kept_bytes = 0
        self._running: Job | None = None
        self._seconds_a_job = _SECONDS_A_JOB
        self._closed = False

    def submit(self, job: Job) -> Job:
        """Queue a job; gives the one that is known by its name already, where there is one.

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
        """A client's job; None where there is none of that name, or it was long ago."""
        with self._changed:
            return self._jobs.get((client, name))

    def take(self, timeout_s: float) -> Job | None:
        """The next job, which is running from now on; None where none came in time. Clients take turns."""
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
        """Keep a job's answer, and tell whoever waits for it."""
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
        """Answer everything that is not done with ``answer``, and take nothing more."""
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
        """How many jobs wait."""
        return sum(len(jobs) for jobs in self._waiting.values())

    def describe(self) -> dict[str, Any]:
        """The queue as it is now: how many wait, and what is judged."""
        with self._changed:
            running = None if self._running is None else self._running.about
            return {"waiting": self.waiting, "capacity": self._capacity, "judging": running}
