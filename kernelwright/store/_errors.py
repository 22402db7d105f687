"""Converts SQLite's errors to :class:`StoreError`, with the file, the fault and a hint."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from types import TracebackType

from kernelwright.errors import StoreError

_SAFE = "everything written before is safe"
_ADVICE: dict[int, tuple[str, str]] = {
    sqlite3.SQLITE_BUSY: ("is locked by another process", f"wait for the other writer or stop it, then retry; {_SAFE}"),
    sqlite3.SQLITE_LOCKED: ("is locked by another connection", f"retry when the other one is done; {_SAFE}"),
    sqlite3.SQLITE_FULL: ("cannot grow: the disk is full", f"free some space, then resume; {_SAFE}"),
    sqlite3.SQLITE_READONLY: ("cannot be written", "make the file and its folder writable, or choose another --store"),
    sqlite3.SQLITE_PERM: ("cannot be written", "make the file and its folder writable, or choose another --store"),
    sqlite3.SQLITE_CANTOPEN: (
        "cannot be opened",
        "check that its folder exists and is writable, or choose another --store",
    ),
    sqlite3.SQLITE_NOTADB: ("is not a kernelwright store", "it is left untouched; choose another path with --store"),
    sqlite3.SQLITE_CORRUPT: ("is damaged", "run 'kernelwright store check', and restore a backup if it confirms this"),
    sqlite3.SQLITE_IOERR: ("could not be read or written", f"check the disk; {_SAFE}"),
    sqlite3.SQLITE_TOOBIG: ("was given a value that is too large", "nothing was written; shorten the text"),
    sqlite3.SQLITE_CONSTRAINT: ("refused a row", "nothing was written; rows must refer to stored rows"),
}
_LEAST_FREE_BYTES = 2**20


class named_errors:  # no generator: every statement passes here
    """Turn errors of SQLite or the file system about ``path`` into a StoreError."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, sqlite3.Error):
            raise _store_error(self._path, error) from error
        if isinstance(error, OSError):
            raise StoreError(
                f"the store {self._path} cannot be used: {error.strerror or error}",
                hint="make its folder writable, or choose another path with --store",
                path=str(self._path),
            ) from error


def _store_error(path: Path, error: sqlite3.Error) -> StoreError:
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    if primary == sqlite3.SQLITE_IOERR and _disk_is_full(path):
        primary = sqlite3.SQLITE_FULL
    what, hint = _ADVICE.get(primary or 0, ("failed", f"see the cause; {_SAFE}"))
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    return StoreError(f"the store {path} {what} [{name}: {error}]", hint=hint, path=str(path), code=name)


def _disk_is_full(path: Path) -> bool:
    try:
        return shutil.disk_usage(path.parent).free < _LEAST_FREE_BYTES
    except OSError:
        return False
