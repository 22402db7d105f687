"""Maintenance of the database file: integrity check, backup, vacuum."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernelwright.errors import StoreError, UsageError
from kernelwright.records import sha256_text
from kernelwright.store._boards import Boards
from kernelwright.store._connection import Connection
from kernelwright.store._errors import named_errors
from kernelwright.store._foreign import MERGE, driven_runs
from kernelwright.store._rows import IntegrityReport
from kernelwright.store._standings import DERIVED

_COUNTED = (
    "blobs",
    "problems",
    "runs",
    "candidates",
    "evaluations",
    "samples",
    "timing_samples",
    "llm_calls",
    "notes",
    "events",
)
_ORPHANS = """
SELECT sha256 FROM blobs WHERE sha256 NOT IN (
    SELECT source_sha256 FROM problems UNION SELECT sha256 FROM sources UNION SELECT blob_sha256 FROM artifacts
    UNION SELECT prompt_sha256 FROM llm_calls UNION SELECT reply_sha256 FROM llm_calls
    UNION SELECT prompt_sha256 FROM llm_uses
    UNION SELECT prompt_sha256 FROM candidates WHERE prompt_sha256 IS NOT NULL
) ORDER BY sha256
"""
_IN_A_TURN = 500
_KEPT = "sha256 NOT IN (SELECT sha256 FROM removed)"
_UNKNOWN_PARENTS = "SELECT DISTINCT parent FROM lineage WHERE parent NOT IN (SELECT sha256 FROM candidates) ORDER BY 1"


class Upkeep(Boards):
    """Methods of the store about its file."""

    def check(self) -> IntegrityReport:
        """Verify the file's structure, all references, and the hash of every blob and candidate."""
        damage: list[str] = []
        for look in (_structure, _references, _blob_hashes, _candidate_hashes, _derived):
            try:
                damage += look(self._connection)
            except StoreError as error:
                if not isinstance(error.__cause__, sqlite3.DatabaseError) or error.data.get("code") == "SQLITE_BUSY":
                    raise
                damage.append(error.message)
                break
        if damage:
            return IntegrityReport(damage=tuple(damage), orphan_blobs=(), unknown_parents=(), counts={})
        rows = self._connection.rows
        return IntegrityReport(
            damage=(),
            orphan_blobs=tuple(row["sha256"] for row in rows(_ORPHANS)),
            unknown_parents=tuple(row["parent"] for row in rows(_UNKNOWN_PARENTS)),
            counts={table: rows(f"SELECT count(*) AS n FROM {table}")[0]["n"] for table in _COUNTED},
        )

    def backup(self, path: Path | str, *, replace: bool = False) -> Path:
        """Copy the whole store to a new file, while others may use it, and check the copy. Returns the new file's path.

        Args:
            replace: replace an existing file, when the copy is whole.

        Raises:
            StoreError: the new file exists already, cannot be written, or is damaged as the store is. A partial copy is
                removed.
        """
        target = Path(path).absolute()
        _refuse_target(target, self._connection.path, replace)
        partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
        try:
            with self._connection.raw() as database, named_errors(target):
                copy = sqlite3.connect(partial, isolation_level=None)
                try:
                    database.conn.backup(copy)  # in one read transaction
                    _refuse_damaged(copy, self._connection.path)
                finally:
                    copy.close()
                if replace:
                    os.replace(partial, target)
                else:
                    os.link(partial, target)  # unlike a rename, this fails if the target now exists
        finally:
            for ending in ("", "-journal", "-wal", "-shm"):
                partial.with_name(partial.name + ending).unlink(missing_ok=True)
        return target

    def vacuum(self) -> tuple[int, int]:
        """Rewrite the file without gaps, and empty its log. Returns the bytes of the file and its log before and after.

        Raises:
            UsageError: a process drives a run of this store or merges into it.
            StoreError: there is no room for the rewritten copy, or another process uses the store.
        """
        path = self._connection.path
        if self._connection.readonly:
            raise StoreError(f"the store {path} was opened read-only", hint="open it for writing")
        driven = driven_runs(path)
        if driven:
            names = ", ".join("a merge" if name == MERGE else f"run {name.split('.')[0]}" for name in driven)
            raise UsageError(f"the store {path} is in use: {names}", hint="wait until it is done, or pause the run")
        before = _size_bytes(path)
        self._refuse_crowded(path)
        with self._connection.raw() as database, named_errors(path):
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            database.vacuum()
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return before, _size_bytes(path)

    def _refuse_crowded(self, path: Path) -> None:
        """Raise StoreError without room for a copy of the content in SQLite's temporary folder, and one in the log."""
        page = {name: self._connection.rows(f"PRAGMA {name}")[0][name] for name in ("page_size", "page_count")}
        free_pages = self._connection.rows("PRAGMA freelist_count")[0]["freelist_count"]
        content = (page["page_count"] - free_pages) * page["page_size"]
        needed: dict[int, tuple[Path, int]] = {}
        for folder in (path.parent, _temporary_folder()):
            device = folder.stat().st_dev
            needed[device] = (folder, needed.get(device, (folder, 0))[1] + content)
        for folder, size in needed.values():
            free = shutil.disk_usage(folder).free
            if free < size:
                raise StoreError(
                    f"no room to rewrite the store {path}: {size} bytes are needed in {folder}, {free} are free",
                    hint="free some space; SQLITE_TMPDIR names another folder for SQLite's temporary files",
                    path=str(path),
                )


def _refuse_target(target: Path, store: Path, replace: bool) -> None:
    """Raise StoreError if a backup must not be written to ``target``."""
    if target.exists() and (not replace or target.is_dir()):
        hint = "choose a new file for the backup"
        raise StoreError(f"{target} exists already", hint=hint, path=str(target))
    if target.exists() and os.path.samefile(target, store):
        raise StoreError(f"{target} is the store itself", hint="choose another file for the backup", path=str(target))
    for ending in ("-wal", "-journal"):
        log = target.with_name(target.name + ending)
        if log.exists():  # SQLite would replay it into the new file
            raise StoreError(
                f"{log} belongs to a database that was at this place or is in use",
                hint="choose a new file for the backup",
                path=str(target),
            )


def _refuse_damaged(copy: sqlite3.Connection, store: Path) -> None:
    lines = [str(row[0]) for row in copy.execute("PRAGMA integrity_check(1)")]
    if lines != ["ok"]:
        raise StoreError(
            f"the store {store} is damaged, and so is its copy: {lines[0]}",
            hint="run 'kernelwright store check'; an earlier backup may be whole",
            path=str(store),
        )


def _size_bytes(path: Path) -> int:
    files = (path, path.with_name(f"{path.name}-wal"))
    return sum(file.stat().st_size for file in files if file.exists())


def _temporary_folder() -> Path:
    """The folder for SQLite's temporary files (https://sqlite.org/tempfiles.html, section 5)."""
    named = (os.environ.get("SQLITE_TMPDIR"), os.environ.get("TMPDIR"), "/var/tmp", "/usr/tmp", "/tmp")
    return next((Path(name) for name in named if name and os.access(name, os.W_OK | os.X_OK)), Path.cwd())


def _structure(connection: Connection) -> list[str]:
    lines = [str(next(iter(row.values()))) for row in connection.rows("PRAGMA integrity_check")]
    return [] if lines == ["ok"] else lines


def _references(connection: Connection) -> list[str]:
    broken = connection.rows("PRAGMA foreign_key_check")
    return [f"a row of {row['table']} refers to a missing row of {row['parent']}" for row in broken]


def _blob_hashes(connection: Connection) -> list[str]:
    lost = f"SELECT sha256 FROM blobs WHERE NOT ({_KEPT}) AND length(content) > 0"
    damaged = [f"blob {row['sha256']} is marked as removed, but has content" for row in connection.rows(lost)]
    for row in _in_turns(connection, f"SELECT id AS turn, sha256, content FROM blobs WHERE id > :after AND {_KEPT}"):
        if sha256_text(bytes(row["content"])) != row["sha256"]:
            damaged.append(f"blob {row['sha256']} does not match its hash")
    return damaged


def _candidate_hashes(connection: Connection) -> list[str]:
    damaged = []
    query = (
        "SELECT candidates.rowid AS turn, candidates.sha256, knobs_json, content FROM candidates "
        "LEFT JOIN blobs ON blobs.sha256 = source_sha256 WHERE candidates.rowid > :after"
    )
    for row in _in_turns(connection, query):
        knobs = json.dumps(json.loads(row["knobs_json"]), sort_keys=True).encode()
        if row["content"] is None or row["sha256"] != sha256_text(bytes(row["content"]) + b"\0" + knobs):
            damaged.append(f"candidate {row['sha256']} does not match its source and knobs")
    return damaged


def _in_turns(connection: Connection, query: str) -> Iterator[dict[str, Any]]:
    """The rows of a query in the order of its column ``turn``, few at a time: they may be many, and large."""
    after = 0
    while rows := connection.rows(f"{query} ORDER BY turn LIMIT {_IN_A_TURN}", {"after": after}):
        yield from rows
        after = rows[-1]["turn"]


def _derived(connection: Connection) -> list[str]:
    """Compare the tables that triggers maintain with the evidence that they are derived from."""
    damaged = []
    for table, (kept, meant) in DERIVED.items():
        columns = ", ".join(row["name"] for row in connection.rows("SELECT name FROM pragma_table_info(?)", [table]))
        # Each query runs once, which EXCEPT in both directions would not allow.
        wrong = connection.rows(
            f"SELECT count(*) AS n FROM (SELECT sum(side) AS balance FROM (SELECT 1 AS side, * FROM ({kept}) "
            f"UNION ALL SELECT -1, * FROM ({meant})) GROUP BY {columns} HAVING balance <> 0)"
        )[0]["n"]
        if wrong:
            damaged.append(f"{wrong} rows of {table} do not follow from the evidence")
    return damaged
