"""The store itself: one object over one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from kernelwright.store._connection import Connection
from kernelwright.store._prune import Pruning

_BUSY_TIMEOUT_S = 30.0


class Store(Pruning):
    """All tried and judged candidates, in one SQLite file.

    Evidence is append-only; a rerun is a new row. Any number of processes may read while one writes; a second writer
    waits. The threads of a process may share one object, but it must not be used after a fork.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    def open(cls, path: Path | str, *, readonly: bool = False, busy_timeout_s: float = _BUSY_TIMEOUT_S) -> Store:
        """Open the store at ``path``. Unless ``readonly``, create it or migrate it to the current schema.

        Args:
            path: the database file; missing parent folders are created.
            readonly: refuse to write; the file must exist and be up to date.
            busy_timeout_s: how long to wait for another writer.

        Raises:
            StoreError: the file is not a store, damaged, locked, written by a newer version, or cannot be written. It
                is left unchanged.
        """
        return cls(Connection(Path(path).absolute(), readonly=readonly, busy_timeout_s=busy_timeout_s))

    @property
    def path(self) -> Path:
        """The database file."""
        return self._connection.path

    def query(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> list[dict[str, Any]]:
        """Rows of any SELECT over the tables and views. A statement that writes raises StoreError."""
        return self._connection.read_only_rows(sql, parameters)

    def close(self) -> None:
        """Close the file. Closing twice does nothing."""
        self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
