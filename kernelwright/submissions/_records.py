"""What a submission is, what it may be, where it stands, and why one is not taken."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, AwareDatetime, Field

from kernelwright.errors import KernelwrightError
from kernelwright.records import Backend, Record
from kernelwright.submissions._ids import is_id

NAME_PATTERN: Final = r"^[A-Za-z0-9._-]{1,40}$"
_PART: Final = r"[\w(][^\0-\x1f\x7f@/\\]*"
_PROBLEM: Final = re.compile(rf"(?:{_PART}/){{0,2}}{_PART}(?:@[0-9]{{1,3}})?")
_PROBLEM_CHARS: Final = 200
_REASON_CHARS: Final = 4000
# Control characters (but tab and line end), lone surrogates, and what reorders or splits the lines of others.
_UNFIT: Final = re.compile(r"[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_NO_UTF8: Final = re.compile(r"[\0\ud800-\udfff]")

State = Literal["waiting", "judging", "judged", "failed"]


class SpoolLimits(Record):
    """How much is taken: bytes of a source, submissions that wait, those of an author in an hour, a note's length."""

    source_bytes: int = Field(default=262_144, ge=1, le=8 * 2**20)
    pending: int = Field(default=200, ge=1)
    per_hour: int = Field(default=20, ge=1)
    note_chars: int = Field(default=500, ge=0)


class SubmissionError(KernelwrightError):
    """A submission was not taken. ``data["status"]`` is the HTTP status that says so."""

    exit_code = 2
    status: ClassVar[int] = 400

    def __init__(self, message: str, *, hint: str = "", **data: Any) -> None:
        super().__init__(message, hint=hint, **{"status": self.status, **data})


class InvalidSubmissionError(SubmissionError):
    """It is none: no text, an unfit name, a note that is too long."""

    status = 422


class SourceTooLargeError(SubmissionError):
    """Its source is larger than the limit."""

    status = 413


class TooManySubmissionsError(SubmissionError):
    """Its author has submitted too many in the last hour; ``data["retry_after_s"]`` says when to come back."""

    status = 429


class SpoolFullError(SubmissionError):
    """Too many submissions wait already, whosever they are."""

    status = 503


def storable(text: str) -> str:
    """Text of messages as JSON can hold it, cut."""
    return text.encode("utf-8", "replace").decode()[:_REASON_CHARS]


def _an_id(text: str) -> str:
    if not is_id(text):
        raise ValueError("no ULID")
    return text


def _a_problem(text: str) -> str:
    # A path to a file, with a variant behind it or none, is what the command line may name, and nobody else.
    a_path = text.partition("@")[0].endswith(".py")
    if a_path or len(text) > _PROBLEM_CHARS or _UNFIT.search(text) or not _PROBLEM.fullmatch(text):
        raise ValueError("give a problem's id, such as kernelwright/level1/softmax")
    return text


def _a_source(text: str) -> str:
    if _NO_UTF8.search(text):
        raise ValueError("it holds NUL bytes or lone surrogates")
    if not text.strip():
        raise ValueError("it is empty")
    return text


def _a_note(text: str) -> str:
    if _UNFIT.search(text):
        raise ValueError("it holds control characters")
    return text


Id = Annotated[str, AfterValidator(_an_id)]


class Submission(Record):
    """A kernel that somebody wants judged. Its id is a ULID of ours.

    Attributes:
        problem_id: ``suite/level/name``, with ``@2`` behind it where that variant is to be timed. Never a path.
        backend: the kernels' language; None for what the source shows.
        author: the name of whoever submitted it, which the board shows as ``submitted:NAME``.
        note: what the author says of it; hostile text, escaped wherever it is shown.
    """

    id: Id
    problem_id: Annotated[str, AfterValidator(_a_problem)]
    backend: Backend | None = None
    source: Annotated[str, AfterValidator(_a_source)]
    author: str = Field(pattern=NAME_PATTERN)
    note: Annotated[str, AfterValidator(_a_note)] = ""
    created_at: AwareDatetime


class Outcome(Record):
    """How judging a submission ended.

    Attributes:
        state: ``judged`` where there is a verdict, whatever it is; ``failed`` where none could be had.
        evaluations: ids in the store, in the order in which they were made.
        status: that of the verdict that decides, such as ``PASSED``.
        reason: why it did not pass or could not be judged; hostile text, escaped wherever it is shown.
    """

    state: Literal["judged", "failed"]
    evaluations: tuple[str, ...] = ()
    status: str | None = None
    reason: str = ""


class SubmissionState(Record):
    """Where a submission stands, without its source. See :class:`Submission` and :class:`Outcome`.

    ``tries`` counts how often it was begun to judge it; ``reason``, of one that waits, is why the last try ended.
    """

    id: Id
    state: State
    problem_id: str = ""
    backend: Backend | None = None
    author: str = ""
    note: str = ""
    created_at: AwareDatetime
    tries: int = 0
    evaluations: tuple[str, ...] = ()
    status: str | None = None
    reason: str = ""
    finished_at: AwareDatetime | None = None
