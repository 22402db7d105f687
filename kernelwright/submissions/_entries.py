"""Read the entries of a spool's folders: ids, submissions, and counts of tries."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from kernelwright.submissions._files import read_file
from kernelwright.submissions._ids import is_id
from kernelwright.submissions._records import Submission, storable

SUFFIX: Final = ".json"
MOST_BYTES: Final = 64 * 2**20  # of a file to read: JSON may take six bytes for one byte of the source


def entries(folder: Path) -> list[str]:
    """The names in a folder; empty if there is no folder."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def ids(folder: Path) -> set[str]:
    """The ids of a folder's files that are named like submissions."""
    names = (entry.removesuffix(SUFFIX) for entry in entries(folder) if entry.endswith(SUFFIX))
    return {name for name in names if is_id(name)}


def read(path: Path) -> Submission | None:
    """The submission in a file; None if there is no file or no valid submission in it."""
    try:
        submission = Submission.model_validate_json(read_file(path, MOST_BYTES).data)
    except (OSError, ValidationError):
        return None
    return submission if path.name == f"{submission.id}{SUFFIX}" else None


def tries_in(data: bytes) -> tuple[int, str]:
    """The number of tries, and why the last one ended; ``(0, "")`` for a damaged file."""
    try:
        kept = json.loads(data)
        return max(0, int(kept["tries"])), storable(str(kept["reason"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return 0, ""


def write_tries(fd: int, tries: int, reason: str) -> None:
    """Write the data that :func:`tries_in` reads."""
    data = json.dumps({"tries": tries, "reason": reason}).encode()
    os.pwrite(fd, data, 0)
    os.ftruncate(fd, len(data))
    os.fsync(fd)
