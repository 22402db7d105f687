"""Writes files atomically: no reader ever sees a partial file."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from kernelwright.errors import UsageError


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file that all may read, atomically, and create its folder. An existing file is replaced.

    Raises:
        OSError: the file cannot be written. An existing file is unchanged.
    """
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def write_for_user(path: Path, content: str | bytes, *, what: str = "", hint: str = "choose another place") -> None:
    """Write a file that a user requested. ``what`` names it in the error message.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        write_whole(path, content)
    except OSError as error:
        raise UsageError(f"cannot write {what}{path}: {error.strerror}", hint=hint) from error
