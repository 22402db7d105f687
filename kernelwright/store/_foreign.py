"""Another store's content, in a private copy that is migrated and checked. The other store is only read."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlite_utils import Database

from kernelwright.errors import StoreError, UsageError
from kernelwright.store._connection import is_fresh, refuse_newer
from kernelwright.store._errors import named_errors

_RETRIES = 3
MERGE = "merge"  # the name of a lock beside the store


def refuse_same(path: Path, other: Path) -> None:
    """Raise UsageError unless ``other`` is a file that is not ``path``."""
    if not other.exists():
        raise UsageError(f"there is no store at {other}", hint="name the file of another store")
    if other.is_dir():
        raise UsageError(f"{other} is a folder", hint="name the file of another store")
    if path.exists() and os.path.samefile(path, other):
        raise UsageError(f"{other} is the store that is merged into", hint="name the file of another store")


@contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Let one process at a time merge into a store or prune it.

    Raises:
        UsageError: another process does.
        StoreError: the folder of the store's locks cannot be written.
    """
    lock = path.with_name(f"{path.name}.locks") / f"{MERGE}.lock"
    with named_errors(path):
        lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"another process merges into {path} or prunes it", hint="wait until it is done"
            ) from error
        yield
    finally:
        os.close(descriptor)


@contextmanager
def workshop(path: Path) -> Iterator[Path]:
    """An empty folder beside a store for copies of others. It is removed afterwards. Raises as :func:`only_one`."""
    folder = path.with_name(f"{path.name}.merging")
    with only_one(path):
        with named_errors(path):
            shutil.rmtree(folder, ignore_errors=True)  # of a merge that was killed
            folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def driven_runs(path: Path) -> list[str]:
    """The names of the locks beside a store that live processes hold: runs being driven, or ``merge``."""
    held = []
    for lock in sorted(path.with_name(f"{path.name}.locks").glob("*.lock")):
        with lock.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                held.append(lock.name.removesuffix(".lock"))
    return held


def copy_store(other: Path, copy: Path) -> None:
    """Copy a store as it is now to a new file. No byte of it changes, and no file appears beside it.

    SQLite leaves files beside a store in WAL mode that it has opened for reading. If no such file exists, no process
    has the store open: it is read as immutable, and again if it changed meanwhile.

    Raises:
        StoreError: the file is no store, is damaged, was written by a newer version, or the copy cannot be written.
    """
    with named_errors(other):
        for _ in range(_RETRIES):
            before = _marks(other)
            quiet = len(before) == 1
            source = sqlite3.connect(f"{other.as_uri()}?mode=ro{'&immutable=1' if quiet else ''}", uri=True)
            try:
                database = Database(source, execute_plugins=False)
                if is_fresh(database, other):
                    raise StoreError(f"{other} is no store: it is empty", hint="name the file of another store")
                refuse_newer(database, other)
                _write_copy(source, copy)
            finally:
                source.close()
            if not quiet or _marks(other) == before:
                return
    raise StoreError(f"{other} changes while it is read", hint="merge a backup of it: 'kernelwright store backup'")


def _write_copy(source: sqlite3.Connection, copy: Path) -> None:
    """Copy a database. An error of the source is raised as it is, one of the copy as a StoreError about the copy."""
    copy.unlink(missing_ok=True)
    with named_errors(copy):
        target = sqlite3.connect(copy)
    try:
        source.backup(target)
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise
        with named_errors(copy):
            raise
    finally:
        target.close()


def _marks(path: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of a database file and of the files that SQLite keeps beside it."""
    files = [path, *(path.with_name(path.name + ending) for ending in ("-wal", "-shm", "-journal"))]
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.exists()]
