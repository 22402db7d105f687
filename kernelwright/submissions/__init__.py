"""Submitted kernels: tokens for submitting, the spool of submissions, and the queue that judges them.

Accepting a submission only writes a file. It is judged later, in another process, by the same referee and with the same
store as all kernels. Importing this package is cheap, because the web server imports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kernelwright.submissions._queue import QueueReport, judge_submissions
from kernelwright.submissions._records import (
    InvalidSubmissionError,
    Outcome,
    SourceTooLargeError,
    SpoolFullError,
    SpoolLimits,
    Submission,
    SubmissionError,
    SubmissionState,
    TooManySubmissionsError,
)
from kernelwright.submissions._spool import Claim, Spool, Stray
from kernelwright.submissions._tokens import SCOPES, NewToken, Scope, Token, Tokens

if TYPE_CHECKING:
    from pathlib import Path

    from kernelwright.config import Settings

__all__ = [
    "SCOPES",
    "Claim",
    "InvalidSubmissionError",
    "NewToken",
    "Outcome",
    "Places",
    "QueueReport",
    "Scope",
    "SourceTooLargeError",
    "Spool",
    "SpoolFullError",
    "SpoolLimits",
    "Stray",
    "Submission",
    "SubmissionError",
    "SubmissionState",
    "Token",
    "Tokens",
    "TooManySubmissionsError",
    "judge_submissions",
    "places",
]


class Places(NamedTuple):
    """The paths of a store's tokens and submissions."""

    tokens_file: Path
    spool_dir: Path


def places(settings: Settings) -> Places:
    """The places beside the store: ``tokens.json`` and the folder ``submissions``."""
    return Places(settings.store.parent / "tokens.json", settings.store.parent / "submissions")
