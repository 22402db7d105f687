"""The spool: a folder that passes submissions from the web server to the queue that judges them.

::

    lock                    held during every change
    turns.json              the authors' latest turns
    tmp/                    files that are being written
    incoming/ID.json        a waiting submission
    judging/ID.json         a submission that a live process judges
    claims/ID               locked by that process meanwhile; the number of tries, and why the last one ended
    done/SHARD/ID.json      a finished submission
    done/SHARD/ID.result.json

A submission is always in one of the three folders ``incoming``, ``judging`` and ``done``. The spool makes all ids: no
part of a path comes from outside.
"""

from __future__ import annotations

import heapq
import math
import os
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import ValidationError

from kernelwright.files import disk_errors_told
from kernelwright.records import Backend
from kernelwright.submissions._entries import MOST_BYTES, SUFFIX, entries, ids, read, tries_in, write_tries
from kernelwright.submissions._files import (
    HeldLock,
    lock_now,
    locked,
    make_folder,
    move,
    read_file,
    write_whole,
)
from kernelwright.submissions._ids import is_id, new_id, shard_at, shard_of, time_ms_of
from kernelwright.submissions._records import (
    InvalidSubmissionError,
    Outcome,
    SourceTooLargeError,
    SpoolFullError,
    SpoolLimits,
    Submission,
    SubmissionState,
    TooManySubmissionsError,
)
from kernelwright.submissions._turns import in_turn, take_turn

_RESULT: Final = ".result.json"
_HOUR_MS: Final = 3_600_000
_LOOKS: Final = 3  # a submission may move to another folder during a search
DIED: Final = "the process that judged it ended before there was a verdict"


class Stray(NamedTuple):
    """An entry of the spool that is not a submission. It is left alone. ``name`` is relative to the spool."""

    name: str
    reason: str


@dataclass(frozen=True)
class Claim:
    """A submission that this process judges. The claim ends when the process finishes it, releases it, or dies.

    Attributes:
        tries: number of tries to judge it, this one included.
        reason: why the last try ended; empty at the first try.
    """

    submission: Submission
    tries: int
    reason: str
    _lock: HeldLock


class Spool:
    """Submissions in a folder, created with the first one. Threads and processes may share it.

    Args:
        folder: the folder. Only its owner may read it.
        limits: limits of submissions.
        now: seconds since 1970.
    """

    def __init__(
        self, folder: Path, limits: SpoolLimits | None = None, *, now: Callable[[], float] = time.time
    ) -> None:
        self.folder = folder
        self.limits = limits or SpoolLimits()
        self._now = now
        self._incoming, self._judging = folder / "incoming", folder / "judging"
        self._claims, self._done, self._temporary = folder / "claims", folder / "done", folder / "tmp"
        self._turns = folder / "turns.json"
        self._authors: dict[str, str] = {}  # by id, of recent and waiting submissions; they never change

    # ---------------------------------------------------------------------------------------------- taking

    def put(
        self,
        *,
        problem_id: str,
        source: str | bytes,
        author: str,
        backend: Backend | None = None,
        note: str = "",
    ) -> Submission:
        """Accept a submission. It is on the disk when this returns. See :class:`Submission` for the arguments.

        Raises:
            InvalidSubmissionError: it is invalid, or its text is not UTF-8.
            SourceTooLargeError, TooManySubmissionsError, SpoolFullError: it exceeds a limit.
            StoreError: it cannot be written, for example because the disk is full.
        """
        text = self._text_of(source)
        note = self._note_of(note)
        with self._changing("keep the submission"):
            fields = {"problem_id": problem_id, "backend": backend, "source": text, "author": author, "note": note}
            submission = self._made(**fields)
            self._refuse_too_many(submission.author)
            path = self._incoming / f"{submission.id}{SUFFIX}"
            write_whole(path, submission.model_dump_json().encode(), self._temporary / submission.id)
        return submission

    def _made(self, **fields: object) -> Submission:
        moment = self._now()
        name = new_id(int(moment * 1000))
        while any(path.exists() for path in self._places(name)):
            name = new_id(int(moment * 1000))
        try:
            return Submission.model_validate({"id": name, "created_at": _at(int(moment * 1000)), **fields})
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            what = str(first["loc"][0]) if first["loc"] else "submission"
            raise InvalidSubmissionError(
                f"bad {what}: {first['msg'].removeprefix('Value error, ')}", hint=f"change the {what}", field=what
            ) from None

    def _text_of(self, source: str | bytes) -> str:
        """The source as text.

        Raises:
            SourceTooLargeError, InvalidSubmissionError: it is too large, or not UTF-8.
        """
        most = self.limits.source_bytes
        try:
            if len(source) > most or len(data := source.encode() if isinstance(source, str) else source) > most:
                raise SourceTooLargeError(
                    f"the source has more than {most} bytes", hint="leave out what the kernel does not need", most=most
                )
            return data.decode()
        except UnicodeError:
            raise InvalidSubmissionError(
                "bad source: it is no UTF-8 text", hint="submit a Python file in UTF-8", field="source"
            ) from None

    def _note_of(self, note: str) -> str:
        note = note.replace("\r\n", "\n")
        if len(note) > self.limits.note_chars:
            raise InvalidSubmissionError(
                f"the note has more than {self.limits.note_chars} characters", hint="shorten it", field="note"
            )
        return note

    def _refuse_too_many(self, author: str) -> None:
        now_ms = int(self._now() * 1000)
        times = sorted(time_ms_of(name) for name, whose in self._of_last_hour(now_ms).items() if whose == author)
        if len(times) >= self.limits.per_hour:
            wait_s = max(1, math.ceil((times[-self.limits.per_hour] + _HOUR_MS - now_ms) / 1000))
            raise TooManySubmissionsError(
                f"{author} has submitted {len(times)} kernels in the last hour",
                hint=f"come back in {wait_s} s",
                retry_after_s=wait_s,
            )
        pending = self._authors_in(self._incoming, self._judging)
        if len(pending) >= self.limits.pending:
            raise SpoolFullError(
                f"{self.limits.pending} submissions are waiting already",
                hint="try again later; 'kernelwright submissions judge' judges them",
            )
        own, share = list(pending.values()).count(author), -(-self.limits.pending // 2)
        if own >= share:
            raise TooManySubmissionsError(
                f"{own} submissions of {author} are waiting, and an author may fill at most half of the queue",
                hint="try again once some of them were judged",
            )

    def _of_last_hour(self, now_ms: int) -> dict[str, str]:
        """The author of each submission of the last hour by id, in any folder."""
        shards = {shard_at(max(0, now_ms + shift)) for shift in (-_HOUR_MS, 0, _HOUR_MS)}
        folders = [self._incoming, self._judging, *(self._done / shard for shard in shards)]
        found = self._authors_in(*folders, but=lambda name: abs(now_ms - time_ms_of(name)) >= _HOUR_MS)
        self._authors = found
        return found

    def _authors_in(self, *folders: Path, but: Callable[[str], bool] = lambda name: False) -> dict[str, str]:
        """The author of each readable submission in some folders by id. ``but`` excludes ids."""
        found: dict[str, str] = {}
        for folder in folders:
            for name in ids(folder):
                if but(name):
                    continue
                if name in self._authors:
                    found[name] = self._authors[name]
                elif (submission := read(folder / f"{name}{SUFFIX}")) is not None:
                    found[name] = submission.author
        return found

    # ---------------------------------------------------------------------------------------------- judging

    def claim(self, skip: Container[str] = ()) -> Claim | None:
        """Claim the next waiting submission for this process; None if none waits.

        Authors take turns, each with their oldest submission, so that no author waits for all submissions of another.
        Claims of dead processes wait again. Files that are not submissions are left alone.

        Args:
            skip: ids to pass over.

        Raises:
            StoreError: the folder cannot be read or written. Nothing was claimed then.
        """
        with self._changing("claim a submission"):
            self._take_back()
            authors = self._authors_in(self._incoming)
            for name in in_turn(self._turns, authors):
                submission = None if name in skip else read(self._incoming / f"{name}{SUFFIX}")
                lock = None if submission is None else lock_now(self._claims / name)
                if submission is not None and lock is not None:
                    others = [author for other, author in authors.items() if other != name]
                    return self._claimed(submission, lock, others)
        return None

    def _claimed(self, submission: Submission, lock: HeldLock, others: Sequence[str]) -> Claim:
        name = f"{submission.id}{SUFFIX}"
        try:
            take_turn(self._turns, submission.author, others, self._temporary / submission.id)
            tries, reason = tries_in(os.pread(lock.fd, MOST_BYTES, 0))
            move(self._incoming / name, self._judging / name)
            write_tries(lock.fd, tries + 1, DIED)  # the reason, until a better one is known
        except BaseException:
            lock.close()  # the next process that claims takes it back
            raise
        return Claim(submission, tries + 1, reason, lock)

    def release(self, claim: Claim, *, reason: str = "", counts: bool = True) -> None:
        """Return a submission to the waiting ones.

        Args:
            reason: why it could not be judged.
            counts: whether this counts as a try.

        Raises:
            StoreError: the folder cannot be written. The next process that claims takes the submission back.
        """
        _refuse_ended(claim)
        name = f"{claim.submission.id}{SUFFIX}"
        try:
            with self._changing("let a submission wait"):
                tries, kept = (claim.tries, reason) if counts else (claim.tries - 1, claim.reason)
                write_tries(claim._lock.fd, tries, kept)
                with suppress(FileNotFoundError):  # the file was removed, which also ends it
                    move(self._judging / name, self._incoming / name)
        finally:
            claim._lock.close()

    def finish(self, claim: Claim, outcome: Outcome) -> SubmissionState:
        """Record the outcome of a submission, and end its claim.

        Raises:
            StoreError: it cannot be written. The next process that claims takes the submission back.
        """
        _refuse_ended(claim)
        submission = claim.submission
        state = SubmissionState(
            **submission.model_dump(exclude={"source"}),
            **outcome.model_dump(),
            tries=claim.tries,
            finished_at=_at(int(self._now() * 1000)),
        )
        try:
            with self._changing("keep the result of a submission"):
                shard = self._shard(submission.id)
                make_folder(shard)
                data = state.model_dump_json().encode()
                # With this result it is finished, even if the process dies before the move.
                write_whole(shard / f"{submission.id}{_RESULT}", data, self._temporary / submission.id)
                self._put_away(submission.id)
        finally:
            claim._lock.close()
        return state

    def _put_away(self, name: str) -> None:
        with suppress(FileNotFoundError):  # the file was removed; the result stays
            move(self._judging / f"{name}{SUFFIX}", self._shard(name) / f"{name}{SUFFIX}")
        (self._claims / name).unlink(missing_ok=True)

    def _take_back(self) -> None:
        """Return claims of dead processes to the waiting submissions. Move those with a result to ``done``."""
        left = ids(self._judging)
        for name in {*filter(is_id, entries(self._claims))} - left - ids(self._incoming):
            (self._claims / name).unlink(missing_ok=True)  # its process died just after the move to done
        for name in left:
            lock = lock_now(self._claims / name)
            if lock is None:
                continue
            try:
                if (self._shard(name) / f"{name}{_RESULT}").exists():
                    self._put_away(name)
                else:
                    move(self._judging / f"{name}{SUFFIX}", self._incoming / f"{name}{SUFFIX}")
            finally:
                lock.close()

    def prune(self, older_than_s: float) -> int:
        """Remove finished submissions that are older, and return their number. Verdicts stay in the store.

        Submissions of the last hour stay, because they count for their author's limit.

        Raises:
            StoreError: the folder cannot be read or written.
        """
        latest_ms = int(self._now() * 1000) - max(int(older_than_s * 1000), _HOUR_MS)
        removed = 0
        with self._changing("remove finished submissions"):
            for shard in sorted(entries(self._done)):
                folder = self._done / shard
                finished = {entry.removesuffix(_RESULT) for entry in entries(folder) if entry.endswith(_RESULT)}
                old = {name for name in finished if is_id(name) and time_ms_of(name) < latest_ms}
                for name in old:
                    (folder / f"{name}{SUFFIX}").unlink(missing_ok=True)
                    (folder / f"{name}{_RESULT}").unlink()
                removed += len(old)
                with suppress(OSError):  # the folder is not empty
                    folder.rmdir()
        return removed

    # ---------------------------------------------------------------------------------------------- looking

    def state(self, id: str) -> SubmissionState | None:
        """The state of a submission; None if ``id`` is no id, or unknown.

        A submission whose process died waits again, with this as the reason.

        Raises:
            StoreError: the folder cannot be read.
        """
        if not is_id(id):
            return None
        with disk_errors_told("look for a submission"):
            for _ in range(_LOOKS):
                if (found := self._finished(id) or self._unfinished(id)) is not None:
                    return found
        return None

    def submission(self, id: str) -> Submission | None:
        """A submission with its source; None if ``id`` is no id, unknown, or its file is unreadable.

        Raises:
            StoreError: the folder cannot be read.
        """
        if not is_id(id):
            return None
        with disk_errors_told("look for a submission"):
            found = (read(path) for _ in range(_LOOKS) for path in self._places(id))
            return next((submission for submission in found if submission is not None), None)

    def latest(self, limit: int = 20) -> list[SubmissionState]:
        """The states of the latest submissions, the newest first.

        Raises:
            StoreError: the folder cannot be read.
        """
        with disk_errors_told("list the submissions"):
            found = {*ids(self._incoming), *ids(self._judging)}
            for shard in sorted(entries(self._done), reverse=True):
                found |= ids(self._done / shard)
                if len(found) >= limit and shard_of(heapq.nlargest(limit, found)[-1]) >= shard:
                    break  # all remaining ones are older
        states = map(self.state, heapq.nlargest(limit, found))
        return [state for state in states if state is not None]

    def waiting(self) -> int:
        """The number of submissions that wait or are being judged.

        Raises:
            StoreError: the folder cannot be read.
        """
        with disk_errors_told("list the submissions"):
            return len({*ids(self._incoming), *ids(self._judging)})

    def strays(self) -> list[Stray]:
        """Entries among the waiting submissions that are not submissions, such as a partial file of another program.

        Raises:
            StoreError: the folder cannot be read.
        """
        with disk_errors_told("list the submissions"):
            found: list[Stray] = []
            for folder in (self._incoming, self._judging):
                for entry in sorted(entries(folder)):
                    name = f"{folder.name}/{entry}"
                    if not is_id(entry.removesuffix(SUFFIX)) or not entry.endswith(SUFFIX):
                        found.append(Stray(name, "its name is not an id of a submission"))
                    elif read(folder / entry) is None and (folder / entry).exists():
                        found.append(Stray(name, "it contains no submission"))
            return found

    def _finished(self, name: str) -> SubmissionState | None:
        shard = self._shard(name)
        with suppress(FileNotFoundError):
            try:
                return SubmissionState.model_validate_json(read_file(shard / f"{name}{_RESULT}", MOST_BYTES).data)
            except ValidationError:
                return _damaged(name, "its result cannot be read")
        return _damaged(name, "its result is missing") if (shard / f"{name}{SUFFIX}").exists() else None

    def _unfinished(self, name: str) -> SubmissionState | None:
        for folder in (self._incoming, self._judging):
            path = folder / f"{name}{SUFFIX}"
            submission = read(path)
            if submission is not None:
                waits = folder == self._incoming or self._is_left(name)
                tries, reason = self._tries_of(name)
                return SubmissionState(
                    **submission.model_dump(exclude={"source"}),
                    state="waiting" if waits else "judging",
                    tries=tries,
                    reason=reason if waits else "",
                )
            if path.is_symlink() or path.exists():
                return _damaged(name, "its file cannot be read")
        return None

    def _is_left(self, name: str) -> bool:
        """Whether the process that judged a submission is dead; False if this process may not look."""
        with suppress(OSError), locked(self.folder / "lock"):  # no other process may claim meanwhile
            if not (self._judging / f"{name}{SUFFIX}").exists():
                return False  # it has just moved
            if not (self._claims / name).exists():
                return True
            lock = lock_now(self._claims / name)
            if lock is not None:
                lock.close()
                return True
        return False

    def _tries_of(self, name: str) -> tuple[int, str]:
        try:
            return tries_in(read_file(self._claims / name, MOST_BYTES).data)
        except OSError:
            return 0, ""

    def _shard(self, name: str) -> Path:
        return self._done / shard_of(name)

    def _places(self, name: str) -> list[Path]:
        return [folder / f"{name}{SUFFIX}" for folder in (self._incoming, self._judging, self._shard(name))]

    @contextmanager
    def _changing(self, doing: str) -> Iterator[None]:
        """Hold the spool's lock, and create missing folders."""
        with disk_errors_told(doing):
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            for folder in (self.folder, self._incoming, self._judging, self._claims, self._done, self._temporary):
                make_folder(folder)
            with locked(self.folder / "lock"):
                for name in entries(self._temporary):  # their writers are dead, or they would hold the lock
                    with suppress(OSError):
                        (self._temporary / name).unlink()
                yield


def _refuse_ended(claim: Claim) -> None:
    if claim._lock.fd < 0:
        raise ValueError(f"the claim of submission {claim.submission.id} has ended: another process may have it by now")


def _at(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, UTC)


def _damaged(name: str, reason: str) -> SubmissionState:
    return SubmissionState(id=name, state="failed", created_at=_at(time_ms_of(name)), reason=reason)
