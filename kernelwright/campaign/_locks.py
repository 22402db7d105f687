"""One process at a time may drive a run."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from kernelwright.errors import StoreError, UsageError


def folder_of_locks(store_path: Path) -> Path:
    """The folder beside a store that holds the locks of its runs."""
    return store_path.with_name(f"{store_path.name}.locks")


def is_held(store_path: Path, name: str) -> bool:
    """Whether a live process holds the lock of that name now."""
    return is_locked(folder_of_locks(store_path) / f"{name}.lock")


def is_locked(path: Path) -> bool:
    """Whether a live process holds the lock at a path now. Nothing is written."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


class RunLock:
    """An advisory lock beside the store, held while a process drives a run.

    The kernel drops it when its holder dies, however that happens, so there is no stale lock to clear. The file holds
    the holder's process id, for the message only.

    Raises (on entering):
        UsageError: another live process drives this run.
        StoreError: the folder cannot be written.
    """

    def __init__(self, store_path: Path, run_id: str) -> None:
        self.run_id = run_id
        self.path = folder_of_locks(store_path) / f"{run_id}.lock"
        self._fd = -1

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(
                f"cannot lock run {self.run_id}: {self.path}: {error.strerror}", hint="make the store's folder writable"
            ) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._fd, 32, 0).decode(errors="replace").strip()
            os.close(self._fd)
            raise UsageError(
                f"run {self.run_id} is being driven by process {holder or 'unknown'}",
                hint="wait for it, or stop it with 'kernelwright runs cancel'",
                run=self.run_id,
                pid=holder,
            ) from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, str(os.getpid()).encode(), 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The file stays: unlinking it would let a process that already opened it hold a lock on nothing.
        os.close(self._fd)
