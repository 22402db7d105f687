"""A pool whose jobs are judged by workers that read a spool. Its answers are awaited, as a mailbox's replies are."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final

from kernelwright.errors import MachineError, NotYet
from kernelwright.pool._dispatch import LOSSES_TO_QUARANTINE, PoolState
from kernelwright.pool._jobs import Answer, Card, Job, quarantine, version
from kernelwright.pool._spool import Beat, SpoolFolder
from kernelwright.records import Backend, Environment

SIDE_BY_SIDE: Final = 8  # problems whose next job is prepared at once; waiting for an answer takes no thread


class SpoolPool:
    """Writes jobs into a spool, and reads the answers.

    Args:
        folder: the spool.
        threads: number of threads of the run's candidates.
        expected: environments in which the run was judged before. Workers of other ones are not asked.
        tell: called with a line about each lost worker.
    """

    kind = "spool"
    side_by_side = SIDE_BY_SIDE

    def __init__(
        self,
        folder: SpoolFolder,
        *,
        threads: int = 1,
        expected: Mapping[Backend, str] | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._folder = folder
        self._threads = threads
        self._expected = dict(expected or {})
        self._tell = tell
        self._lock = threading.Lock()
        self._environments: dict[Backend, Environment] = {}
        self._posted: dict[str, Job] = {}
        self._read: dict[str, list[Job]] = defaultdict(list)  # by problem, whose answers were passed on
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._lost = 0
        self._answered = 0

    def ready(self, backend: Backend) -> bool:
        """Whether it is known in which environment candidates of a backend will be judged."""
        return self._found(backend) is not None

    def missing(self) -> str:
        """What the run waits for when the pool is not ready."""
        others = {beat.card.version for beat in self._folder.workers()} - {version()}
        if others:
            return (
                f"a worker with kernelwright {version()}; those in {self._folder.path} have {', '.join(sorted(others))}"
            )
        return f"a worker: run 'kernelwright worker --spool {self._folder.path}' on the machine that judges"

    def environment_for(self, backend: Backend) -> Environment:
        """The environment that judges a backend, as a worker said that has been here.

        Raises:
            MachineError: no worker has been here that may judge this run.
        """
        found = self._found(backend)
        if found is None:
            wanted = self._expected.get(backend)
            where = f" in environment {wanted}, where this run was judged before" if wanted else ""
            raise MachineError(f"no worker of {self._folder.path} judges {backend}{where}", hint=self.missing())
        return found

    def _found(self, backend: Backend) -> Environment | None:
        with self._lock:
            if backend not in self._environments:
                found = [self._of(beat.card, backend) for beat in self._latest()]
                known = next((environment for environment in found if environment is not None), None)
                if known is None:
                    return None
                self._environments[backend] = known
            return self._environments[backend]

    def _latest(self) -> list[Beat]:
        """The workers of this version; those that live come first."""
        beats = [beat for beat in self._folder.workers() if beat.card.version == version()]
        return sorted(beats, key=lambda beat: not self._folder.was_seen_alive(beat.worker))

    def _of(self, card: Card, backend: Backend) -> Environment | None:
        found = card.in_threads(self._threads).get(backend)
        if found is None or self._expected.get(backend, found.id) != found.id:
            return None
        return found

    def answer(self, job: Job, on_stage: Callable[[str], None] = lambda stage: None) -> Answer:
        """The answer to a job. The job is posted if it is new.

        Raises:
            NotYet: there is no answer yet.
            StoreError: the spool cannot be read or written.
        """
        found = self._folder.answer(job)
        self._clear(job.problem.id, but=job)  # a run keeps an evaluation before it asks for the problem's next one
        if found is None:
            self.post(job)
            on_stage("posted")
            path = str(self._folder.answer_path(job.id))
            raise NotYet(f"a verdict is awaited in {path}", path=path)
        with self._lock:
            self._posted.pop(job.id, None)
            self._seconds[job.problem.id].append(found.seconds)
            self._answered += 1
            self._read[job.problem.id].append(job)
        if found.fault is not None:
            self._folder.forget(job)  # another try is another question
        return found

    def post(self, job: Job) -> None:
        """Let a job wait for a worker, unless it is known."""
        with self._lock:
            seconds = self._seconds[job.problem.id]
            self._folder.post(job, sum(seconds) / len(seconds) if seconds else None)
            self._posted[job.id] = job

    def look(self) -> None:
        """Give the jobs of dead workers back. A job that has cost too many workers is answered here."""
        lost = self._folder.take_back()
        for beat in self._folder.workers():
            self._folder.lives(beat.worker)  # sees whether its heartbeats grow
        for entry in lost:
            self._tell(f"worker {entry.worker} was lost while it did job {entry.job[:8]}; the job waits again")
        with self._lock:
            self._lost += len(lost)
            posted = dict(self._posted)
        for entry in self._folder.waiting() if posted else ():
            job = posted.get(entry.job)
            if job is not None and entry.losses >= LOSSES_TO_QUARANTINE:
                answer = quarantine(job, self.environment_for(job.candidate.backend), entry.losses)
                self._folder.finish(entry, answer)

    @property
    def state(self) -> PoolState:
        """The spool as it is now."""
        found = self._folder.state()
        alive = [beat for beat in found.workers if self._folder.was_seen_alive(beat.worker)]
        with self._lock:
            return PoolState(
                self.kind,
                seats=len(alive),
                busy=found.claimed,
                waiting=found.waiting,
                lost=self._lost,
                answered=self._answered,
            )

    def close(self) -> None:
        """Remove the answers that the run has kept. Jobs that wait stay there, for a resumed run."""
        for problem in list(self._read):
            self._clear(problem)

    def _clear(self, problem: str, but: Job | None = None) -> None:
        with self._lock:
            read = self._read.pop(problem, [])
        for job in read:
            if but is None or job.id != but.id:
                self._folder.forget(job)

    def abort(self) -> None:
        """Do nothing, since nothing is in flight here."""
