"""Writes files atomically: no reader ever sees a partial file. Says plainly what a disk refused."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kernelwright.errors import StoreError, UsageError

_HINTS: Final = {
    errno.ENOSPC: "free some space; nothing was lost",
    errno.EDQUOT: "the quota is used up: free some space; nothing was lost",
    errno.EROFS: "the place is read-only: choose another store, or mount it writable",
    errno.EACCES: "make the folder writable for the user that runs this",
    errno.EPERM: "make the folder writable for the user that runs this",
}
UNAVAILABLE: Final = 503  # HTTP: the disk is at fault


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


@contextlib.contextmanager
def disk_errors_told(doing: str) -> Iterator[None]:
    """Turn an OSError into a StoreError that names the action. Its HTTP status is 503."""
    try:
        yield
    except OSError as error:
        place = f" ({error.filename})" if error.filename else ""
        raise StoreError(
            f"cannot {doing}: {error.strerror or error}{place}",
            hint=_HINTS.get(error.errno or 0, "see whether the disk and the folder are sound"),
            status=UNAVAILABLE,
        ) from error
