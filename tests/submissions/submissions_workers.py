"""What processes of their own do with one spool at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kernelwright.submissions import Spool, SpoolLimits, SubmissionError, Tokens

LIMITS = SpoolLimits(per_hour=15, pending=32)


def put_many(folder: Path, start: Any, answers: Any, authors: list[str], count: int) -> None:
    """Submit as often as that for each author; answers with the ids, and the statuses of refusals."""
    spool = Spool(folder, LIMITS)
    start.wait()
    for number in range(count):
        for author in authors:
            try:
                made = spool.put(problem_id="p", source=f"v{number}\n", author=author)
                answers.put((author, made.id))
            except SubmissionError as error:
                answers.put((author, error.data["status"]))
    answers.put(None)


def claim_many(folder: Path, start: Any, answers: Any, end: Any) -> None:
    """Claim until nothing is left; answers with the ids, and lives until all have claimed."""
    spool = Spool(folder)
    start.wait()
    claims = []
    while (claim := spool.claim()) is not None:
        claims.append(claim)
        answers.put(claim.submission.id)
    answers.put(None)
    end.wait()


def claim_and_wait(folder: Path, claimed: Any, end: Any) -> None:
    """Claim one and keep it."""
    claim = Spool(folder).claim()
    assert claim is not None
    claimed.set()
    end.wait()


def create_many(path: Path, start: Any, answers: Any, names: list[str]) -> None:
    """Create tokens; answers with their secrets."""
    tokens = Tokens(path)
    start.wait()
    for name in names:
        answers.put(tokens.create(name).secret)
    answers.put(None)
