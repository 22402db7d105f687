"""Records of submissions, their limits, states and outcomes, and the errors of refused submissions."""

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
# Control characters (but tab and newline), lone surrogates, and characters that reorder or split lines of text.
_UNFIT: Final = re.compile(r"[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_NO_UTF8: Final = re.compile(r"[\0\ud800-\udfff]")

State = Literal["waiting", "judging", "judged", "failed"]


class SpoolLimits(Record):
    """Limits: bytes of a source, waiting submissions, an author's submissions in an hour, a note's length."""

    source_bytes: int = Field(default=262_144, ge=1, le=8 * 2**20)
    pending: int = Field(default=200, ge=1)
    per_hour: int = Field(default=20, ge=1)
    note_chars: int = Field(default=500, ge=0)


class SubmissionError(KernelwrightError):
    """A submission was not accepted. ``data["status"]`` is the HTTP status of the answer."""

    exit_code = 2
    status: ClassVar[int] = 400

    def __init__(self, message: str, *, hint: str = "", **data: Any) -> None:
        super().__init__(message, hint=hint, **{"status": self.status, **data})


class InvalidSubmissionError(SubmissionError):
    """The submission is invalid: not a text, an unfit name, or a note that is too long."""

    status = 422


class SourceTooLargeError(SubmissionError):
    """The source is larger than the limit."""

    status = 413


class TooManySubmissionsError(SubmissionError):
    """The author submitted too many kernels in the last hour; ``data["retry_after_s"]`` is the time to wait."""

    status = 429


class SpoolFullError(SubmissionError):
    """Too many submissions are waiting, of all authors together."""

    status = 503


def storable(text: str) -> str:
    """A message that JSON can hold: without lone surrogates, and cut to a maximum length."""
    return text.encode("utf-8", "replace").decode()[:_REASON_CHARS]


def _an_id(text: str) -> str:
    if not is_id(text):
        raise ValueError("no ULID")
    return text


def _a_problem(text: str) -> str:
    # Only the command line may name a problem by a file's path, with or without a variant.
    a_path = text.partition("@")[0].endswith(".py")
    if a_path or len(text) > _PROBLEM_CHARS or _UNFIT.search(text) or not _PROBLEM.fullmatch(text):
        raise ValueError("give a problem's id, such as kernelwright/level1/softmax")
    return text


def _a_source(text: str) -> str:
    if _NO_UTF8.search(text):
        raise ValueError("it contains NUL bytes or lone surrogates")
    if not text.strip():
        raise ValueError("it is empty")
    return text


def _a_note(text: str) -> str:
    if _UNFIT.search(text):
        raise ValueError("it contains control characters")
    return text


Id = Annotated[str, AfterValidator(_an_id)]


class Submission(Record):
    """A kernel that was submitted for judging. Its id is a ULID that the spool made.

    Attributes:
        problem_id: ``suite/level/name``, followed by ``@2`` to time that variant. Never a path.
        backend: the kernels' language; None to take it from the source.
        author: the name of the submitter's token. The board shows ``submitted:NAME``.
        note: the author's remarks. This is hostile text, escaped wherever it is shown.
    """

    id: Id
    problem_id: Annotated[str, AfterValidator(_a_problem)]
    backend: Backend | None = None
    source: Annotated[str, AfterValidator(_a_source)]
    author: str = Field(pattern=NAME_PATTERN)
    note: Annotated[str, AfterValidator(_a_note)] = ""
    created_at: AwareDatetime


class Outcome(Record):
    """The outcome of judging a submission.

    Attributes:
        state: ``judged`` with any verdict; ``failed`` if no verdict was possible.
        evaluations: ids in the store, oldest first.
        status: the status of the deciding verdict, such as ``PASSED``.
        reason: why it did not pass or could not be judged. This is hostile text, escaped wherever it is shown.
    """

    state: Literal["judged", "failed"]
    evaluations: tuple[str, ...] = ()
    status: str | None = None
    reason: str = ""


class SubmissionState(Record):
    """The state of a submission, without its source. See :class:`Submission` and :class:`Outcome`.

    ``tries`` counts how often its judging was begun. While it waits, ``reason`` says why the last try ended.
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
