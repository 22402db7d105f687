"""What lies in a spool's folders: names that are ours, submissions that can be read, how often each was begun."""

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
MOST_BYTES: Final = 64 * 2**20  # of a file that is read at all: JSON may take six bytes for one of the source


def entries(folder: Path) -> list[str]:
    """Names in a folder; none where there is no folder."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def ids(folder: Path) -> set[str]:
    """Of the files in a folder that are named as submissions are."""
    names = (entry.removesuffix(SUFFIX) for entry in entries(folder) if entry.endswith(SUFFIX))
    return {name for name in names if is_id(name)}


def read(path: Path) -> Submission | None:
    """The submission in a file; None where there is no file, or something else is in it."""
    try:
        submission = Submission.model_validate_json(read_file(path, MOST_BYTES).data)
    except (OSError, ValidationError):
        return None
    return submission if path.name == f"{submission.id}{SUFFIX}" else None


def tries_in(data: bytes) -> tuple[int, str]:
    """How often it was begun, and why the last try ended; of a file that is not whole, nothing is known."""
    try:
        kept = json.loads(data)
        return max(0, int(kept["tries"])), storable(str(kept["reason"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return 0, ""


def write_tries(fd: int, tries: int, reason: str) -> None:
    """Keep what :func:`tries_in` reads."""
    data = json.dumps({"tries": tries, "reason": reason}).encode()
    os.pwrite(fd, data, 0)
    os.ftruncate(fd, len(data))
    os.fsync(fd)
