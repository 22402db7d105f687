"""The private directory of a job that has no file system of its own: ``in`` holds its files, ``job`` is writable.

The owner holds a lock on the directory. If the lock is free, the owner is dead, and the next sandbox removes the
directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from typing import Final

from kernelwright.sandbox._base import Job

_PREFIX: Final = "kernelwright-sandbox-"
_STALE_S: Final = 60.0  # long enough for an owner to lock the directory that it has just made


class Home:
    """The private directory of one job, at ``path``."""

    def __init__(self, job: Job, uid: int | None) -> None:
        self.path = tempfile.mkdtemp(prefix=_PREFIX)
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._fill(job, uid)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Remove the directory and everything that a guest left in it."""
        _remove(self.path)
        os.close(self._lock)

    def _fill(self, job: Job, uid: int | None) -> None:
        os.chmod(self.path, 0o711 if uid is not None else 0o700)
        os.mkdir(f"{self.path}/in", 0o755)
        os.mkdir(f"{self.path}/job", 0o700)
        for name, data in job.files.items():
            path = f"{self.path}/in/{name}"
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "xb") as file:
                file.write(data)
            os.chmod(path, 0o444)
        if uid is not None:
            os.chown(f"{self.path}/job", uid, uid)


def remove_stale() -> None:
    """Remove this user's directories whose owner is dead."""
    with os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                old = time.time() - status.st_mtime > _STALE_S
                if entry.name.startswith(_PREFIX) and status.st_uid == os.geteuid() and old:
                    _remove_if_free(entry.path)


def _remove_if_free(path: str) -> None:
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(path)
    finally:
        os.close(lock)


def _remove(path: str) -> None:
    """Remove a tree, whatever file modes a guest set in it. No step follows links, and the guest is already dead."""
    for directory, names, _ in os.walk(path):
        for name in names:
            inner = os.path.join(directory, name)
            if not os.path.islink(inner):
                with contextlib.suppress(OSError):
                    os.chmod(inner, 0o700)
    shutil.rmtree(path, ignore_errors=True)
