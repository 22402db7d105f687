"""Files that are whole or not there: locks, atomic writes that reach the disk, reads that trust nobody's names."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from kernelwright.errors import StoreError

OURS_ALONE: Final = 0o600
_HINTS: Final = {
    errno.ENOSPC: "free some space; nothing was lost",
    errno.EDQUOT: "the quota is used up: free some space; nothing was lost",
    errno.EROFS: "the place is read-only: choose another store, or mount it writable",
    errno.EACCES: "make the folder writable for the user that runs this",
    errno.EPERM: "make the folder writable for the user that runs this",
}
UNAVAILABLE: Final = 503


class Contents(NamedTuple):
    """What a file held, and what it was like when it was read."""

    data: bytes
    status: os.stat_result


@contextmanager
def disk_errors_told(doing: str) -> Iterator[None]:
    """Turn what the file system raises into a StoreError that says what was being done; its HTTP status is 503."""
    try:
        yield
    except OSError as error:
        place = f" ({error.filename})" if error.filename else ""
        raise StoreError(
            f"cannot {doing}: {error.strerror or error}{place}",
            hint=_HINTS.get(error.errno or 0, "see whether the disk and the folder are sound"),
            status=UNAVAILABLE,
        ) from error


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of that file; whoever else wants it waits, threads of this process as well."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OURS_ALONE)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        # The file stays: unlinking it would let a process that already opened it hold a lock on nothing.
        os.close(fd)


class HeldLock:
    """The lock of a file, which the kernel gives back when its process dies, however that happens."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def close(self) -> None:
        """Give the lock back; closing twice does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def lock_now(path: Path) -> HeldLock | None:
    """The lock of that file; None where another one has it.

    Raises:
        OSError: the file cannot be made or opened.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, OURS_ALONE)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return HeldLock(fd)


def write_whole(path: Path, data: bytes, temporary: Path) -> None:
    """Put a file in its place so that nobody ever sees half of it; it is on the disk when this returns.

    Raises:
        OSError: it could not be written; what stood there before still does.
    """
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, OURS_ALONE)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def move(source: Path, target: Path) -> None:
    """Rename a file, and have both folders on the disk."""
    os.replace(source, target)
    sync_folder(target.parent)
    sync_folder(source.parent)


def make_folder(folder: Path) -> None:
    """Make a folder for its owner alone where it is missing, and have it on the disk."""
    if not folder.is_dir():
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Have the entries of a folder on the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_file(path: Path, most_bytes: int, *, follow: bool = False) -> Contents:
    """A regular file of at most ``most_bytes``; neither a pipe nor, unless ``follow``, a link is ever waited for.

    Raises:
        OSError: it is not there, is nothing of the kind, or is larger.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW))
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        if status.st_size > most_bytes:
            raise OSError(errno.EFBIG, f"it is larger than {most_bytes} bytes", str(path))
        return Contents(file.read(most_bytes), status)
