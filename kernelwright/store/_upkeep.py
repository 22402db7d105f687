"""Maintenance of the database file: integrity check, backup, vacuum."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

from kernelwright.errors import StoreError
from kernelwright.records import sha256_text
from kernelwright.store._boards import Boards
from kernelwright.store._connection import Connection
from kernelwright.store._errors import named_errors
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

    def backup(self, path: Path | str) -> Path:
        """Copy the whole store to a new file, while others may use it. Returns the new file's path.

        Raises:
            StoreError: the new file exists already or cannot be written. A partial copy is removed.
        """
        target = Path(path).absolute()
        if target.exists():
            raise StoreError(f"{target} exists already", hint="choose a new file for the backup", path=str(target))
        partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
        try:
            with self._connection.raw() as database, named_errors(partial):
                copy = sqlite3.connect(partial)
                try:
                    database.conn.backup(copy)
                finally:
                    copy.close()
                os.link(partial, target)  # unlike a rename, this fails if the target now exists
        finally:
            partial.unlink(missing_ok=True)
        return target

    def vacuum(self) -> int:
        """Rewrite the file without gaps, and empty its log. Returns the number of bytes saved."""
        before = self._connection.path.stat().st_size
        if self._connection.readonly:
            raise StoreError(f"the store {self._connection.path} was opened read-only", hint="open it for writing")
        with self._connection.raw() as database:
            database.vacuum()
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return max(0, before - self._connection.path.stat().st_size)


def _structure(connection: Connection) -> list[str]:
    lines = [str(next(iter(row.values()))) for row in connection.rows("PRAGMA integrity_check")]
    return [] if lines == ["ok"] else lines


def _references(connection: Connection) -> list[str]:
    broken = connection.rows("PRAGMA foreign_key_check")
    return [f"a row of {row['table']} refers to a missing row of {row['parent']}" for row in broken]


def _blob_hashes(connection: Connection) -> list[str]:
    damaged = []
    for row in connection.rows("SELECT sha256 FROM blobs ORDER BY id"):  # one content at a time: they may be large
        content = connection.rows("SELECT content FROM blobs WHERE sha256 = ?", [row["sha256"]])[0]["content"]
        if sha256_text(bytes(content)) != row["sha256"]:
            damaged.append(f"blob {row['sha256']} does not match its hash")
    return damaged


def _candidate_hashes(connection: Connection) -> list[str]:
    damaged = []
    for row in connection.rows("SELECT id, sha256, knobs_json FROM candidates ORDER BY id"):
        sources = connection.rows(
            "SELECT content FROM candidates JOIN blobs ON blobs.sha256 = source_sha256 WHERE candidates.id = ?",
            [row["id"]],
        )
        knobs = json.dumps(json.loads(row["knobs_json"]), sort_keys=True).encode()
        if [row["sha256"]] != [sha256_text(bytes(source["content"]) + b"\0" + knobs) for source in sources]:
            damaged.append(f"candidate {row['sha256']} does not match its source and knobs")
    return damaged


def _derived(connection: Connection) -> list[str]:
    """Compare the tables that triggers maintain with the evidence that they are derived from."""
    damaged = []
    for table, (kept, meant) in DERIVED.items():
        both = ((kept, meant), (meant, kept))
        queries = [f"SELECT count(*) AS n FROM (SELECT * FROM ({a}) EXCEPT SELECT * FROM ({b}))" for a, b in both]
        wrong = sum(connection.rows(query)[0]["n"] for query in queries)
        if wrong:
            damaged.append(f"{wrong} rows of {table} do not follow from the evidence")
    return damaged
