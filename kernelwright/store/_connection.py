"""One SQLite connection: opens and recognises a file, runs transactions and plain queries."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlite_utils import Database

from kernelwright.errors import StoreError
from kernelwright.store._errors import named_errors
from kernelwright.store._migrations import APPLICATION_ID, MIGRATIONS, STEPS

_CHOOSE = "it is left untouched; choose another path with --store"
_BETWEEN_TRIES_S = 0.02
_LOG_PAGES = 4000  # 16 MB; a page that is written often is then copied from the log to the file more seldom


class Connection:
    """A connection shared by the threads of one process, for one statement or transaction at a time."""

    def __init__(self, path: Path, *, readonly: bool, busy_timeout_s: float) -> None:
        self.path = path
        self.readonly = readonly
        self._lock = threading.RLock()
        with named_errors(path):
            self._database = _connect(path, readonly, busy_timeout_s)
            try:
                _prepare(self._database, path, readonly, busy_timeout_s)
            except BaseException:
                self._database.close()
                raise

    def close(self) -> None:
        """Close the connection. Closing twice does nothing."""
        with self._lock, named_errors(self.path):
            self._database.close()

    @contextmanager
    def write(self) -> Iterator[None]:
        """A transaction. A nested one joins the outer one. It takes the write lock at once, because SQLite can wait for
        another writer here; a read transaction that turns into a writer fails instead."""
        if self.readonly:
            raise StoreError(
                f"the store {self.path} was opened read-only", hint="open it for writing", path=str(self.path)
            )
        with self._lock, named_errors(self.path):
            if self._database.conn.in_transaction:
                yield
                return
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._database.execute("COMMIT")
            except BaseException:
                self._database.rollback()
                raise

    def rows(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> list[dict[str, Any]]:
        """All rows of a query."""
        with self._lock, named_errors(self.path):
            cursor = self._database.execute(sql, parameters)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def read_only_rows(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> list[dict[str, Any]]:
        """Like :meth:`rows`, for SQL from users: statements that would write are refused."""
        with self._lock:
            self.rows("PRAGMA query_only = ON")
            try:
                return self.rows(sql, parameters)
            finally:
                self.rows("PRAGMA query_only = OFF")

    def insert(self, table: str, row: Mapping[str, Any], *, unless_present: bool = False) -> int:
        """Insert one row. ``unless_present`` keeps an existing row with the same key; other constraints still hold.
        Returns the number of new rows."""
        return self.insert_all(table, [row], unless_present=unless_present)

    def insert_all(self, table: str, rows: Iterable[Mapping[str, Any]], *, unless_present: bool = False) -> int:
        """Insert rows that have the same columns, inside a transaction. Returns the number of new rows."""
        materialised = list(rows)
        if not materialised:
            return 0
        names = list(materialised[0])
        places = ", ".join(f":{name}" for name in names)
        conflict = " ON CONFLICT DO NOTHING" if unless_present else ""
        with self.write():
            cursor = self._database.conn.executemany(
                f"INSERT INTO {table} ({', '.join(names)}) VALUES ({places}){conflict}", materialised
            )
            return int(cursor.rowcount)

    def execute(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> int:
        """Run one writing statement in a transaction. Returns the number of changed rows."""
        with self.write():
            return int(self._database.execute(sql, parameters).rowcount)

    @contextmanager
    def attached(self, path: Path) -> Iterator[None]:
        """Have another database attached as ``other``, for reading, outside of a transaction."""
        with self._lock:
            self.rows("ATTACH DATABASE ? AS other", [f"{path.as_uri()}?mode=ro"])
            try:
                yield
            finally:
                self.rows("DETACH DATABASE other")

    @contextmanager
    def raw(self) -> Iterator[Database]:
        """The sqlite-utils database, for operations that must run outside a transaction (backup, vacuum)."""
        with self._lock, named_errors(self.path):
            yield self._database


def _connect(path: Path, readonly: bool, busy_timeout_s: float) -> Database:
    if path.is_dir():
        raise StoreError(f"the store {path} is a folder", hint="give --store the path of a file", path=str(path))
    if readonly and not path.exists():
        raise StoreError(f"there is no store at {path}", hint="run 'kernelwright optimize' first", path=str(path))
    if not readonly:
        path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(
        f"{path.as_uri()}?{_mode(path, readonly)}", uri=True, timeout=busy_timeout_s, check_same_thread=False
    )
    try:
        database = Database(connection, execute_plugins=False)
        database.execute("PRAGMA foreign_keys = ON")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}").fetchall()
    except BaseException:
        connection.close()
        raise
    return database


def _mode(path: Path, readonly: bool) -> str:
    """The mode parameters of the file's URI. In a read-only folder, SQLite cannot make an index of the write-ahead log.
    If there is no log, no process is writing, and the file can be read as immutable."""
    if not readonly:
        return "mode=rwc"
    quiet = not path.with_name(f"{path.name}-wal").exists() and not os.access(path.parent, os.W_OK)
    return "mode=ro&immutable=1" if quiet else "mode=ro"


def _prepare(database: Database, path: Path, readonly: bool, busy_timeout_s: float) -> None:
    """Refuse files that are not stores. Create and migrate the schema of a store."""
    fresh = is_fresh(database, path)
    if readonly:
        if fresh or MIGRATIONS.pending(database):
            raise StoreError(
                f"the store {path} is not up to date",
                hint="any command that writes brings it up to date",
                path=str(path),
            )
        refuse_newer(database, path)
        return
    refuse_newer(database, path)
    _enable_wal(database, time.monotonic() + busy_timeout_s)
    if fresh or MIGRATIONS.pending(database):
        database.execute("BEGIN IMMEDIATE")
        try:
            is_fresh(database, path)  # another process may have been faster
            MIGRATIONS.apply(database)
            database.execute("COMMIT")
        except BaseException:
            database.rollback()
            raise


def is_fresh(database: Database, path: Path) -> bool:
    """Whether the database is empty (True) or a kernelwright store (False).

    Raises:
        StoreError: the file is a database of another program.
    """
    marker = database.execute("PRAGMA application_id").fetchone()[0]
    tables = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if marker == APPLICATION_ID:
        return False
    if marker == 0 and tables == 0:
        return True
    raise StoreError(f"{path} is a SQLite database of another program", hint=_CHOOSE, path=str(path))


def refuse_newer(database: Database, path: Path) -> None:
    """Raise StoreError if a newer version wrote the store."""
    known = {step.__name__ for step in STEPS}
    unknown = [applied.name for applied in MIGRATIONS.applied(database) if applied.name not in known]
    if unknown:
        raise StoreError(
            f"the store {path} was written by a newer kernelwright ({', '.join(unknown)})",
            hint="upgrade kernelwright, or choose another path with --store",
            path=str(path),
        )


def _enable_wal(database: Database, deadline: float) -> None:
    """Switch to write-ahead logging. SQLite does not wait for a lock here, so this function does."""
    while True:
        try:
            database.enable_wal()
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
        time.sleep(_BETWEEN_TRIES_S)
