"""Locks, atomic writes that reach the disk, and reads that do not trust the file at a path."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

OURS_ALONE: Final = 0o600


class Contents(NamedTuple):
    """The data of a file, and its status when it was read."""

    data: bytes
    status: os.stat_result


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file. Other processes, and other threads of this process, wait for it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OURS_ALONE)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        # The file stays. Without it, a process that already opened it would lock a deleted file.
        os.close(fd)


class HeldLock:
    """The lock of a file. The operating system releases it when the process dies, for whatever reason."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def close(self) -> None:
        """Release the lock; closing twice does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def lock_now(path: Path) -> HeldLock | None:
    """Take the lock of a file without waiting; None if it is taken.

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
    """Write a file atomically: no reader sees a part of it, and it is on the disk when this returns.

    Raises:
        OSError: it could not be written; an earlier file is unchanged.
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
    """Rename a file, and sync both folders to the disk."""
    os.replace(source, target)
    sync_folder(target.parent)
    sync_folder(source.parent)


def make_folder(folder: Path) -> None:
    """Create a missing folder with access only for its owner, and sync it to the disk."""
    if not folder.is_dir():
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Sync the entries of a folder to the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_file(path: Path, most_bytes: int, *, follow: bool = False) -> Contents:
    """Read a regular file of at most ``most_bytes``. Never waits for a pipe; follows a link only with ``follow``.

    Raises:
        OSError: the file is missing, not regular, or too large.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW))
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if status.st_size > most_bytes:
            raise OSError(errno.EFBIG, f"larger than {most_bytes} bytes", str(path))
        return Contents(file.read(most_bytes), status)
