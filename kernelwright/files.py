"""Files that are written whole: nobody ever sees half of one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from kernelwright.errors import UsageError


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file in place of what is there; make its folder. Readable by all.

    Raises:
        OSError: it cannot be written; what was there stays.
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
    """Write a file that a user asked for; ``what`` it is called in the error.

    Raises:
        UsageError: the place cannot be written.
    """
    try:
        write_whole(path, content)
    except OSError as error:
        raise UsageError(f"cannot write {what}{path}: {error.strerror}", hint=hint) from error
