"""A spool: a folder through which jobs go to workers that are reached only by files, and answers come back.

::

    jobs/ORDER-PROBLEM-ID.LOSSES.json             a job that waits
    claimed/ORDER-PROBLEM-ID.LOSSES@WORKER.json   the same file, renamed by the worker that does it
    answers/ID.answer.json                        the answer; the first one counts
    workers/WORKER.json                           a worker's card and its heartbeats, a number that grows

A claim is a rename, which only one worker can do. It lasts as long as its worker's heartbeats grow, as the reader sees
them by its own clock; no times of two machines are compared. All files are written whole, so a reader sees no half.
"""

from __future__ import annotations

import errno
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import Field, ValidationError

from kernelwright.errors import UsageError
from kernelwright.files import disk_errors_told
from kernelwright.pool._jobs import Answer, Card, Job
from kernelwright.records import Record
from kernelwright.records.base import sha256_text
from kernelwright.records.codec import dump_json

LEASE_S: Final = 60.0  # a claim whose worker's heartbeats do not grow for so long is given back
BEAT_S: Final = 5.0
ANSWER_SUFFIX: Final = ".answer.json"
MOST_BYTES: Final = 64 * 2**20  # of one file
FORMAT: Final = '{"format": 1, "of": "jobs and answers of kernelwright"}\n'
_FOLDERS: Final = ("jobs", "claimed", "answers", "workers", "temporary")
_NAME = re.compile(r"(\d{6})-([0-9a-f]{8})-([0-9a-f]{32})\.(\d+)(?:@([\w.-]+))?\.json")
_LONGEST_S: Final = 999_999


class Entry(NamedTuple):
    """A job's file, read from its name.

    Attributes:
        order: jobs with a lower one come first.
        problem: 8 digits that tell problems apart.
        job: the job's id.
        losses: number of workers that the job has cost.
        worker: the worker that has claimed it; empty if it waits.
    """

    order: int
    problem: str
    job: str
    losses: int
    worker: str = ""

    @property
    def name(self) -> str:
        """The name of the file."""
        at = f"@{self.worker}" if self.worker else ""
        return f"{self.order:06d}-{self.problem}-{self.job}.{self.losses}{at}.json"

    @classmethod
    def read(cls, name: str) -> Entry | None:
        """The entry of a file's name; None for a file of others."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        order, problem, job, losses, worker = found.groups()
        return cls(int(order), problem, job, int(losses), worker or "")

    @classmethod
    def of(cls, job: Job, expected_s: float | None) -> Entry:
        """The entry of a new job. Those that take longest come first, and before them those of unknown length."""
        order = 0 if expected_s is None else max(1, _LONGEST_S - int(expected_s))
        return cls(order, sha256_text(job.problem.id)[:8], job.id, 0)


class Beat(Record):
    """What a worker says of itself. ``beats`` grows as long as it lives."""

    worker: str = Field(pattern=r"^[\w.-]+$")
    beats: int = 0
    card: Card
    doing: str = ""
    done: int = 0


class SpoolState(NamedTuple):
    """Numbers of jobs that wait, are claimed, and are answered; and the workers, alive or not."""

    waiting: int
    claimed: int
    answered: int
    workers: tuple[Beat, ...]


@dataclass
class _Seen:
    """A worker's heartbeats as they were seen last, since when, and whether they have grown before."""

    beats: int
    since: float
    grew: bool


class SpoolFolder:
    """A spool's folder. Any number of processes on any machines may use it at once.

    Args:
        path: the folder.
        create: make it if it is missing.
        lease_s: seconds after which a claim without heartbeats is given back.
        clock: seconds from any starting point.

    Raises:
        UsageError: the folder is missing, or holds other things.
        StoreError: it cannot be read or written.
    """

    def __init__(
        self,
        path: Path,
        *,
        create: bool = False,
        lease_s: float = LEASE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path.absolute()
        self._lease_s = lease_s
        self._clock = clock
        self._seen: dict[str, _Seen] = {}
        with disk_errors_told(f"use the spool {self.path}"):
            self._refuse_others(create)
            for name in _FOLDERS:
                (self.path / name).mkdir(parents=True, exist_ok=True)
            if not (self.path / "spool.json").exists():
                self._write(self.path / "spool.json", FORMAT)

    def _refuse_others(self, create: bool) -> None:
        mark = self.path / "spool.json"
        if mark.exists():
            if mark.read_text() != FORMAT:
                raise UsageError(f"{self.path} is a spool of another version", hint="use one version everywhere")
        elif not self.path.exists():
            if not create:
                raise UsageError(
                    f"there is no spool {self.path}", hint="'kernelwright optimize --pool spool:DIR' makes it"
                )
        elif not self.path.is_dir() or any(self.path.iterdir()):
            raise UsageError(f"{self.path} is no spool", hint="name an empty folder, or one that does not exist")

    # ------------------------------------------------------------------------------------------ the asking side

    def post(self, job: Job, expected_s: float | None = None) -> None:
        """Let a job wait, unless it is there already."""
        with disk_errors_told("write a job"):
            if self.answer_path(job.id).exists() or self.find(job.id) is not None:
                return
            self._write(self.path / "jobs" / Entry.of(job, expected_s).name, job.text)

    def find(self, job_id: str) -> Entry | None:
        """The entry of a job without an answer."""
        return next((entry for entry in (*self.claimed(), *self.waiting()) if entry.job == job_id), None)

    def answer_path(self, job_id: str) -> Path:
        """Where the answer to a job appears."""
        return self.path / "answers" / f"{job_id}{ANSWER_SUFFIX}"

    def answer(self, job: Job) -> Answer | None:
        """The answer to a job, or None. A file that does not answer this job is put aside."""
        path = self.answer_path(job.id)
        with disk_errors_told("read an answer"):
            try:
                found = Answer.model_validate_json(_read(path))
            except FileNotFoundError:
                return None
            except ValidationError:
                found = None
            if found is None or found.refusal(job):
                self._put_aside(path)
                return None
            return found

    def forget(self, job: Job) -> None:
        """Remove an answer, so that the job can be asked again."""
        with disk_errors_told("remove an answer"), suppress(FileNotFoundError):
            self.answer_path(job.id).unlink()

    # ------------------------------------------------------------------------------------------ the working side

    def claim(self, worker: str, suits: Callable[[Job], bool], first: str = "") -> tuple[Entry, Job] | None:
        """Claim a waiting job; None if none suits.

        Args:
            suits: whether the worker can do a job.
            first: the problem whose jobs are taken first; see :attr:`Entry.problem`.
        """
        with disk_errors_told("claim a job"):
            for entry in sorted(self.waiting(), key=lambda one: (one.problem != first, one)):
                source = self.path / "jobs" / entry.name
                if self.answer_path(entry.job).exists():
                    source.unlink(missing_ok=True)
                    continue
                try:
                    job = Job.model_validate_json(_read(source))
                except FileNotFoundError:
                    continue  # another worker has it
                except ValidationError:
                    self._put_aside(source)
                    continue
                if job.id != entry.job:
                    self._put_aside(source)
                    continue
                if not suits(job):
                    continue
                mine = entry._replace(worker=worker)
                with suppress(FileNotFoundError):
                    os.rename(source, self.path / "claimed" / mine.name)
                    return mine, job
        return None

    def soon(self, entry: Entry, job: Job, most: int) -> list[Job]:
        """Jobs that wait on the same problem, asked with the same settings."""
        found: list[Job] = []
        with disk_errors_told("look for jobs"):
            for other in sorted(one for one in self.waiting() if one.problem == entry.problem)[:most]:
                with suppress(FileNotFoundError, ValidationError):
                    found.append(Job.model_validate_json(_read(self.path / "jobs" / other.name)))
        return [one for one in found if (one.problem, one.settings) == (job.problem, job.settings)]

    def finish(self, entry: Entry, answer: Answer) -> bool:
        """Publish the answer to a job, and end its claim. Returns False if there was an answer already."""
        with disk_errors_told("write an answer"):
            first = self._publish(answer)
            (self.path / ("claimed" if entry.worker else "jobs") / entry.name).unlink(missing_ok=True)
            return first

    def release(self, entry: Entry, *, lost: bool = False) -> None:
        """Give a claimed job back. ``lost``: its worker died, which counts against the candidate."""
        again = entry._replace(worker="", losses=entry.losses + lost)
        with disk_errors_told("give a job back"), suppress(FileNotFoundError):
            if self.answer_path(entry.job).exists():
                (self.path / "claimed" / entry.name).unlink()
            else:
                os.rename(self.path / "claimed" / entry.name, self.path / "jobs" / again.name)

    def beat(self, beat: Beat) -> None:
        """Write a worker's heartbeat."""
        with disk_errors_told("write a heartbeat"):
            self._write(self.path / "workers" / f"{beat.worker}.json", dump_json(beat))

    def take_back(self, but: str = "") -> list[Entry]:
        """Give back the claims of workers whose heartbeats have stopped; returns these claims.

        Args:
            but: the worker that asks, whose own claims are never stale.
        """
        found = []
        with disk_errors_told("look for dead workers"):
            for entry in self.claimed():
                if entry.worker != but and not self.lives(entry.worker):
                    self.release(entry, lost=True)
                    found.append(entry)
            self._sweep()
        return found

    def lives(self, worker: str) -> bool:
        """Whether a worker's heartbeats have grown within the lease, or have not been watched for that long."""
        beats = -1 if (beat := self._beat(worker)) is None else beat.beats
        seen = self._seen.get(worker)
        if seen is None or seen.beats != beats:
            self._seen[worker] = _Seen(beats, self._clock(), seen is not None)
            return True
        return self._clock() - seen.since < self._lease_s

    def was_seen_alive(self, worker: str) -> bool:
        """Whether a worker's heartbeats were seen to grow, and lately."""
        seen = self._seen.get(worker)
        return seen is not None and seen.grew and self._clock() - seen.since < self._lease_s

    # ------------------------------------------------------------------------------------------ packing

    def texts(self) -> Iterator[tuple[str, str, str]]:
        """The files to pack: ``jobs``, ``answers`` or ``workers``, the name, the text. Claimed jobs count as jobs."""
        with disk_errors_told("read the spool"):
            for folder, entries in (("jobs", self.waiting()), ("claimed", self.claimed())):
                for entry in entries:
                    with suppress(FileNotFoundError):  # it was claimed or answered just now
                        yield "jobs", entry._replace(worker="").name, _read(self.path / folder / entry.name)
            for folder, suffix in (("answers", ANSWER_SUFFIX), ("workers", ".json")):
                for name in sorted(os.listdir(self.path / folder)):
                    if name.endswith(suffix):
                        with suppress(FileNotFoundError):
                            yield folder, name, _read(self.path / folder / name)

    def add_jobs(self, jobs: Iterable[tuple[Entry, Job]]) -> int:
        """Add jobs of another spool; returns the number of those that were unknown here."""
        added = 0
        with disk_errors_told("write a job"):
            known = {entry.job for entry in (*self.waiting(), *self.claimed())}
            for entry, job in jobs:
                if job.id not in known and not self.answer_path(job.id).exists():
                    self._write(self.path / "jobs" / entry.name, job.text)
                    added += 1
        return added

    def add_answers(self, answers: Iterable[Answer]) -> int:
        """Add answers of another spool, and end their jobs here; returns the number of new ones."""
        with disk_errors_told("write an answer"):
            added = sum(self._publish(answer) for answer in answers)
            self._sweep()
        return added

    def add_beat(self, beat: Beat) -> bool:
        """Add the card of a worker of another spool; False if it is known here with as many heartbeats."""
        with disk_errors_told("write a card"):
            known = self._beat(beat.worker)
            if known is not None and known.beats >= beat.beats:
                return False
            self._write(self.path / "workers" / f"{beat.worker}.json", dump_json(beat))
            return True

    # ------------------------------------------------------------------------------------------ looking

    def waiting(self) -> list[Entry]:
        """The jobs that wait."""
        return self._entries("jobs")

    def claimed(self) -> list[Entry]:
        """The jobs that workers do now."""
        return [entry for entry in self._entries("claimed") if entry.worker]

    def workers(self) -> list[Beat]:
        """What all workers said last, dead ones included."""
        names = (entry.name for entry in os.scandir(self.path / "workers") if entry.name.endswith(".json"))
        beats = (self._beat(name.removesuffix(".json")) for name in sorted(names))
        return [beat for beat in beats if beat is not None]

    def state(self) -> SpoolState:
        """The numbers of jobs, and the workers."""
        with disk_errors_told("look into the spool"):
            answered = sum(entry.name.endswith(ANSWER_SUFFIX) for entry in os.scandir(self.path / "answers"))
            return SpoolState(len(self.waiting()), len(self.claimed()), answered, tuple(self.workers()))

    def _entries(self, folder: str) -> list[Entry]:
        found = (Entry.read(entry.name) for entry in os.scandir(self.path / folder))
        return [entry for entry in found if entry is not None]

    def _beat(self, worker: str) -> Beat | None:
        with suppress(OSError, ValidationError):
            return Beat.model_validate_json(_read(self.path / "workers" / f"{worker}.json"))
        return None

    # ------------------------------------------------------------------------------------------ files

    def _publish(self, answer: Answer) -> bool:
        temporary = self._temporary(dump_json(answer))
        try:
            os.link(temporary, self.answer_path(answer.job))
        except FileExistsError:
            return False
        except OSError as error:  # a file system without hard links
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK):
                raise
            if self.answer_path(answer.job).exists():
                return False
            os.replace(temporary, self.answer_path(answer.job))
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def _write(self, path: Path, text: str) -> None:
        temporary = self._temporary(text)
        try:
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    def _temporary(self, text: str) -> Path:
        """A new file with a text, safely on the disk."""
        path = self.path / "temporary" / uuid.uuid4().hex
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path

    def _put_aside(self, path: Path) -> None:
        """Move a file that cannot be used out of the way, and keep it for people."""
        with suppress(FileNotFoundError):
            os.replace(path, path.with_name(f"{path.name}.damaged"))

    def _sweep(self) -> None:
        """Remove jobs that have an answer: a worker may die after it has published one."""
        for folder, entries in (("jobs", self.waiting()), ("claimed", self.claimed())):
            for entry in entries:
                if self.answer_path(entry.job).exists():
                    (self.path / folder / entry.name).unlink(missing_ok=True)


def _read(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(MOST_BYTES)
