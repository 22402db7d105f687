"""Merging: brings the content of other stores into this one, by hashes and by ids that are unique over machines."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from kernelwright.errors import StoreError, UsageError
from kernelwright.store._connection import Connection
from kernelwright.store._foreign import copy_store, refuse_same, workshop
from kernelwright.store._kinds import BY_TABLE, CLOSING, KINDS, Kind
from kernelwright.store._rows import MergeReport
from kernelwright.store._standings import PUT_BACK, TAKE_OUT
from kernelwright.store._upkeep import Upkeep

_AT_ONCE = 200  # candidates, calls or texts of one transaction, so that other writers get their turns
_POINTERS = frozenset({"current_problems", "sources", "removed"})  # rows that only point at others
_NAMED = 10  # conflicts that a message names
_OF = "(SELECT sha256 || ' ' || problem FROM {schema}.candidates AS c WHERE c.id = {row}.candidate_id)"  # in any store
_OURS = (
    "(SELECT m.id FROM other.candidates AS c JOIN main.candidates AS m "
    "ON m.sha256 = c.sha256 AND m.problem = c.problem WHERE c.id = o.candidate_id)"
)
# Candidates of which anything is missing here: the row, an ancestor, an evaluation, or the withdrawal of one.
_MOVING = """
CREATE TEMP TABLE moving AS SELECT o.id FROM other.candidates AS o WHERE
    NOT EXISTS (SELECT 1 FROM main.candidates AS m WHERE m.sha256 = o.sha256 AND m.problem = o.problem)
    OR EXISTS (
        SELECT 1 FROM other.evaluations AS e WHERE e.candidate_id = o.id AND (
            NOT EXISTS (SELECT 1 FROM main.evaluations AS m WHERE m.id = e.id)
            OR EXISTS (
                SELECT 1 FROM other.quarantines AS q WHERE q.evaluation_id = e.id
                AND NOT EXISTS (SELECT 1 FROM main.quarantines AS m WHERE m.id = q.id)
            )
        )
    )
    OR EXISTS (
        SELECT 1 FROM other.lineage AS l WHERE l.child = o.sha256 AND l.problem = o.problem AND NOT EXISTS (
            SELECT 1 FROM main.lineage AS m WHERE m.child = l.child AND m.parent = l.parent
            AND m.relation = l.relation AND m.problem = l.problem
        )
    )
    OR EXISTS (
        SELECT 1 FROM main.candidates AS m WHERE m.sha256 = o.sha256 AND m.problem = o.problem AND {earlier}
    )
"""
# When a version was last in use: the ids of runs and evaluations sort by time.
_LATEST_USE = """
max(
    coalesce((SELECT max(run_id) FROM main.run_problems WHERE version = {version}), ''),
    coalesce((
        SELECT max(e.id) FROM main.candidates AS c CROSS JOIN main.evaluations AS e ON e.candidate_id = c.id
        WHERE c.problem = m.problem AND e.problem_version = {version}
    ), '')
)"""
# What changes of a run and of its problems: the table, its key, and the columns.
_STATES = (
    ("runs", ("id",), ("config_json", "status", "seconds", "updated_at")),
    ("run_problems", ("run_id", "problem"), ("state", "detail", "updated_at")),
)
# What a thing that both stores made has from the store that made it first.
_ORIGINS = {
    "candidates": ("created_at", "author", "operator", "note", "parents_json", "prompt_sha256"),
    "generators": ("created_at", "author", "evidence_json"),
}
_RECIPE = "json_extract({row}.config_json, '$.recipe')"


class Merging(Upkeep):
    """Methods of the store about other stores."""

    def merge(self, others: Sequence[Path | str], *, dry_run: bool = False) -> list[MergeReport]:
        """Bring everything from other stores into this one. Returns a report for each.

        The result is the store that all machines would have written together. What is known already is not added
        again, so a merge may be repeated, and one that was interrupted is completed by the next. Every transaction
        brings candidates with all their evaluations and withdrawals: boards are right at any time. A candidate that
        both stores have is by the author who proposed it first. States of runs and problems are the later ones.

        Args:
            dry_run: count only; nothing is written. Each store is counted as if it were the only one.

        Raises:
            UsageError: one of the others is missing, or is this store.
            StoreError: one of the others is no store, is damaged, or was written by a newer version; or a row has the
                key of a row here and other content (the message names it). Nothing is written then.
        """
        paths = [Path(other).absolute() for other in others]
        for path in paths:
            refuse_same(self._connection.path, path)
        if not dry_run and self._connection.readonly:
            raise StoreError(f"the store {self._connection.path} was opened read-only", hint="open it for writing")
        with workshop(self._connection.path) as folder:
            copies = [folder / f"{number}.db" for number in range(len(paths))]
            for path, copy in zip(paths, copies, strict=True):
                copy_store(path, copy)
                _bring_up_to_date(copy, path)
            return [self._merge_one(path, copy, dry_run) for path, copy in zip(paths, copies, strict=True)]

    def _merge_one(self, other: Path, copy: Path, dry_run: bool) -> MergeReport:
        with ExitStack() as stack:
            stack.enter_context(self._connection.attached(copy))
            self._refuse_conflicts(other)
            if dry_run:
                later = [f"SELECT count(*) AS n FROM main.{_later(*state[:2])}" for state in _STATES]
                updated = sum(self._connection.rows(query)[0]["n"] for query in later)
                return MergeReport(other=str(other), added=self._missing(), updated=updated)
            added = dict.fromkeys(BY_TABLE, 0)
            for name in ("moving", "batch", "fresh", "credited"):
                stack.callback(self._connection.rows, f"DROP TABLE IF EXISTS temp.{name}")
            self._connection.rows("CREATE TEMP TABLE batch (id TEXT PRIMARY KEY)")
            self._connection.rows("CREATE TEMP TABLE fresh (id TEXT PRIMARY KEY)")
            self._connection.rows("CREATE TEMP TABLE credited (id TEXT PRIMARY KEY)")
            self._bring_texts(added)
            updated = self._bring_runs(added)
            self._bring_candidates(added)
            self._bring_calls(added)
            self._bring_rest(added)
            return MergeReport(other=str(other), added=_told(added), updated=updated)

    # -------------------------------------------------------------------------------------------- conflicts

    def _refuse_conflicts(self, other: Path) -> None:
        found = [conflict for kind in KINDS for conflict in self._conflicts(kind)]
        same_id = (
            "SELECT o.id FROM other.candidates AS o JOIN main.candidates AS m ON m.id = o.id "
            f"WHERE (m.sha256, m.problem) IS NOT (o.sha256, o.problem) LIMIT {_NAMED + 1}"
        )
        found += [f"candidates {row['id']}" for row in self._connection.rows(same_id)]
        if not found:
            return
        shown = ", ".join(found[:_NAMED]) + (", ..." if len(found) > _NAMED else "")
        raise StoreError(
            f"{other} has rows that differ from those with the same id in {self._connection.path}: {shown}",
            hint="nothing was merged; one of the stores was changed by hand: compare these rows in both",
            conflicts=found[:_NAMED],
        )

    def _conflicts(self, kind: Kind) -> list[str]:
        """The first rows of the other store whose key is known here, but whose content differs."""
        fixed = [name for name in self._columns(kind.table) if name not in (*kind.key, *kind.local)]
        if kind.table == "llm_requests":
            early = [name for name in fixed if name not in CLOSING]
            closed = "o.state <> 'open' AND m.state <> 'open'"
            differs = f"{_any_differs(early)} OR ({closed} AND {_any_differs(fixed)})"
        elif kind.table == "runs":
            recipes = " IS NOT ".join(_RECIPE.format(row=row) for row in "om")
            differs = f"{_any_differs(fixed)} OR {recipes} OR {_at_one_time(('status', 'seconds', 'config_json'))}"
        elif kind.table == "run_problems":
            differs = f"{_any_differs(fixed)} OR {_at_one_time(('state', 'detail'))}"
        else:
            differs = _any_differs(fixed)
        where = ""
        if kind.part_of_evaluation:
            # A row that is missing here differs too, unless all are: then they were pruned.
            first = f"m.{kind.key[0]}"
            differs = f"{first} IS NULL OR {differs}"
            where = (
                f" AND EXISTS (SELECT 1 FROM main.{kind.table} AS n WHERE n.evaluation_id = o.evaluation_id)"
                " AND EXISTS (SELECT 1 FROM main.evaluations AS n WHERE n.id = o.evaluation_id)"
            )
        join = "LEFT JOIN" if kind.part_of_evaluation else "JOIN"
        rows = self._connection.rows(
            f"SELECT DISTINCT {', '.join(f'o.{name}' for name in kind.key)} FROM other.{kind.table} AS o "
            f"{join} main.{kind.table} AS m ON {_same_key(kind)} WHERE ({differs}){where} LIMIT {_NAMED + 1}"
        )
        return [f"{kind.table} {' '.join(str(value) for value in row.values())}" for row in rows]

    def _columns(self, table: str) -> list[str]:
        return [str(row["name"]) for row in self._connection.rows(f"PRAGMA main.table_info({table})")]

    def _missing(self) -> dict[str, int]:
        """How many rows of the other store are not here, by table."""
        counts = {}
        for kind in KINDS:
            known = f"SELECT 1 FROM main.{kind.table} AS m WHERE {_same_key(kind)}"
            if kind.part_of_evaluation:
                known = "SELECT 1 FROM main.evaluations AS m WHERE m.id = o.evaluation_id"
            rows = self._connection.rows(
                f"SELECT count(*) AS n FROM other.{kind.table} AS o WHERE NOT EXISTS ({known})"
            )
            counts[kind.table] = rows[0]["n"]
        return _told(counts)

    # ---------------------------------------------------------------------------------------------- bringing

    def _insert(self, added: dict[str, int], table: str, where: str = "1", order: str = "o.rowid") -> None:
        """Insert the other store's rows that are not here."""
        kind = BY_TABLE[table]
        own_numbers = {"blobs": "id", "sources": "id", "notes": "number"}.get(table)
        names = [name for name in self._columns(table) if name != own_numbers]
        values = ", ".join(_OURS if name == "candidate_id" else f"o.{name}" for name in names)
        known = f"SELECT 1 FROM main.{table} AS m WHERE {_same_key(kind)}"
        added[table] += self._connection.execute(
            f"INSERT INTO main.{table} ({', '.join(names)}) SELECT {values} FROM other.{table} AS o "
            f"WHERE ({where}) AND NOT EXISTS ({known}) ORDER BY {order}"
        )

    def _batches(self, wanted: str) -> Sequence[range]:
        """Write the ids of a query to ``moving``; gives the row numbers of each batch."""
        self._connection.rows("DROP TABLE IF EXISTS temp.moving")
        self._connection.rows(wanted)
        count = self._connection.rows("SELECT count(*) AS n FROM temp.moving")[0]["n"]
        return [range(first, first + _AT_ONCE) for first in range(1, count + 1, _AT_ONCE)]

    def _next(self, batch: range) -> None:
        """Fill ``batch``, inside a transaction."""
        self._connection.execute("DELETE FROM temp.batch")
        self._connection.execute(
            "INSERT INTO temp.batch SELECT id FROM temp.moving WHERE rowid >= ? AND rowid < ?",
            [batch.start, batch.stop],
        )

    def _bring_texts(self, added: dict[str, int]) -> None:
        missing = (
            "CREATE TEMP TABLE moving AS SELECT o.sha256 AS id FROM other.blobs AS o "
            "WHERE NOT EXISTS (SELECT 1 FROM main.blobs AS m WHERE m.sha256 = o.sha256) ORDER BY o.id"
        )
        for batch in self._batches(missing):
            with self._connection.write():
                self._next(batch)
                self._insert(added, "removed", "o.sha256 IN temp.batch", "1")  # one that never was here
                self._insert(added, "blobs", "o.sha256 IN temp.batch", "o.id")

    def _bring_runs(self, added: dict[str, int]) -> int:
        """Bring environments, problems and runs; returns how many states were brought up to date."""
        with self._connection.write():
            for table in ("environments", "problems", "generators", "runs", "run_problems"):
                self._insert(added, table)
            self._take_origins("generators")
            return sum(self._connection.execute(_update(*state)) for state in _STATES)

    def _bring_candidates(self, added: dict[str, int]) -> None:
        """Bring candidates, each with all its evaluations and their withdrawals in one transaction."""
        of_batch = "o.evaluation_id IN (SELECT id FROM other.evaluations WHERE candidate_id IN temp.batch)"
        for batch in self._batches(_MOVING.format(earlier=_earlier("candidates"))):
            with self._connection.write():
                self._next(batch)
                self._connection.execute("DELETE FROM temp.fresh")
                self._connection.execute(
                    "INSERT INTO temp.fresh SELECT e.id FROM other.evaluations AS e WHERE e.candidate_id IN temp.batch "
                    "AND NOT EXISTS (SELECT 1 FROM main.evaluations AS m WHERE m.id = e.id)"
                )
                self._insert(
                    added,
                    "sources",
                    "o.sha256 IN (SELECT source_sha256 FROM other.candidates WHERE id IN temp.batch)",
                    "o.id",
                )
                self._insert(added, "candidates", "o.id IN temp.batch", "o.id")
                self._insert(
                    added,
                    "lineage",
                    "(o.child, o.problem) IN (SELECT sha256, problem FROM other.candidates WHERE id IN temp.batch)",
                )
                self._insert(added, "evaluations", "o.id IN temp.fresh", "o.id")
                for table in ("speedups", "timing_samples", "profiles", "artifacts"):
                    self._insert(added, table, "o.evaluation_id IN temp.fresh", "1, 2")
                self._insert(added, "quarantines", of_batch, "o.id")
                self._restore("SELECT blob_sha256 FROM other.artifacts WHERE evaluation_id IN temp.fresh")
                self._credit_the_first()

    def _credit_the_first(self) -> None:
        """Give the batch's candidates the author of the earlier proposal, as if both machines had shared one store."""
        self._connection.execute("DELETE FROM temp.credited")
        found = self._connection.execute(
            "INSERT INTO temp.credited SELECT m.id FROM other.candidates AS o JOIN main.candidates AS m "
            f"ON {_same_key(BY_TABLE['candidates'])} WHERE o.id IN temp.batch AND {_earlier('candidates')}"
        )
        if found:
            for statement in TAKE_OUT:
                self._connection.execute(statement)
            self._take_origins("candidates", "m.id IN (SELECT id FROM temp.credited)")
            for statement in PUT_BACK:
                self._connection.execute(statement)

    def _take_origins(self, table: str, where: str = "1") -> None:
        """Take the other store's origins where they are earlier, inside a transaction."""
        source = f"main.{table} AS m JOIN other.{table} AS o ON {_same_key(BY_TABLE[table])}"
        if not self._connection.rows(f"SELECT 1 FROM {source} WHERE {_earlier(table)} AND {where} LIMIT 1"):
            return
        trigger = f"{table}_refuse_update"
        (row,) = self._connection.rows("SELECT sql FROM main.sqlite_master WHERE name = ?", [trigger])
        self._connection.execute(f"DROP TRIGGER main.{trigger}")
        changes = ", ".join(f"{name} = o.{name}" for name in _ORIGINS[table])
        self._connection.execute(
            f"UPDATE main.{table} AS m SET {changes} FROM other.{table} AS o "
            f"WHERE {_same_key(BY_TABLE[table])} AND {_earlier(table)} AND {where}"
        )
        self._connection.execute(row["sql"])

    def _bring_calls(self, added: dict[str, int]) -> None:
        missing = (
            "CREATE TEMP TABLE moving AS SELECT o.id FROM other.llm_calls AS o "
            "WHERE NOT EXISTS (SELECT 1 FROM main.llm_calls AS m WHERE m.id = o.id) ORDER BY o.id"
        )
        for batch in self._batches(missing):
            with self._connection.write():
                self._next(batch)
                self._insert(added, "llm_calls", "o.id IN temp.batch", "o.id")
                for column in ("prompt_sha256", "reply_sha256"):
                    self._restore(f"SELECT {column} FROM other.llm_calls WHERE id IN temp.batch")

    def _restore(self, hashes: str) -> None:
        """Give texts back that were removed here, and that new evidence refers to."""
        rows = self._connection.rows(
            f"SELECT sha256, content FROM other.blobs WHERE sha256 IN ({hashes}) "
            "AND sha256 IN (SELECT sha256 FROM main.removed) AND sha256 NOT IN (SELECT sha256 FROM other.removed)"
        )
        for row in rows:
            self._give_back(row["sha256"], row["content"])

    def _bring_rest(self, added: dict[str, int]) -> None:
        for table, order in (("samples", "1, 2, 3"), ("llm_uses", "1, 2, 3"), ("notes", "o.id"), ("events", "o.id")):
            with self._connection.write():
                self._insert(added, table, order=order)
        with self._connection.write():
            self._insert(added, "llm_requests", order="o.id")
            changes = ", ".join(f"{name} = o.{name}" for name in CLOSING)
            self._connection.execute(
                f"UPDATE main.llm_requests AS m SET {changes} FROM other.llm_requests AS o "
                "WHERE o.id = m.id AND m.state = 'open' AND o.state <> 'open'"
            )
            self._insert(added, "current_problems")
            rows = self._connection.rows(
                "SELECT m.problem, o.version FROM other.current_problems AS o "
                "JOIN main.current_problems AS m ON m.problem = o.problem AND m.version <> o.version "
                f"WHERE {_LATEST_USE.format(version='o.version')} > {_LATEST_USE.format(version='m.version')}"
            )
            for row in rows:
                self._connection.execute(
                    "UPDATE main.current_problems SET version = ? WHERE problem = ?", [row["version"], row["problem"]]
                )


def _bring_up_to_date(copy: Path, other: Path) -> None:
    """Migrate the copy of another store, and check it. Raises StoreError, about the other store, if it is damaged."""
    opened = Upkeep()
    try:
        with closing(Connection(copy, readonly=False, busy_timeout_s=0)) as opened._connection:
            damage = opened.check().damage
    except (StoreError, UsageError) as error:
        raise type(error)(error.message.replace(str(copy), str(other)), hint=error.hint, path=str(other)) from error
    if damage:
        raise StoreError(
            f"the store {other} is damaged: {damage[0].replace(str(copy), str(other))}",
            hint=f"nothing was merged; see 'kernelwright store check --store {other}', or merge a backup of it",
            path=str(other),
        )


def _later(table: str, key: Sequence[str]) -> str:
    """The rows of a table whose state in the other store is later than here."""
    same = " AND ".join(f"o.{name} = m.{name}" for name in key)
    return f"{table} AS m JOIN other.{table} AS o ON {same} AND o.updated_at > m.updated_at"


def _update(table: str, key: Sequence[str], columns: Sequence[str]) -> str:
    same = " AND ".join(f"o.{name} = m.{name}" for name in key)
    changes = ", ".join(f"{name} = o.{name}" for name in columns)
    return (
        f"UPDATE main.{table} AS m SET {changes} FROM other.{table} AS o WHERE {same} AND o.updated_at > m.updated_at"
    )


def _told(added: dict[str, int]) -> dict[str, int]:
    """The counts that a report gives."""
    return {table: count for table, count in added.items() if table not in _POINTERS}


def _earlier(table: str) -> str:
    """Whether the other store's row was made before the row here; of two at one time, the lesser text counts."""
    sides = [", ".join(f"coalesce({row}.{name}, '')" for name in _ORIGINS[table]) for row in "om"]
    return f"({sides[0]}) < ({sides[1]})"


def _same_key(kind: Kind) -> str:
    return " AND ".join(f"m.{name} = o.{name}" for name in kind.key)


def _any_differs(names: Sequence[str]) -> str:
    pairs = [
        f"{_OF.format(schema='main', row='m')} IS NOT {_OF.format(schema='other', row='o')}"
        if name == "candidate_id"
        else f"m.{name} IS NOT o.{name}"
        for name in names
    ]
    return f"({' OR '.join(pairs)})" if pairs else "0"


def _at_one_time(names: Sequence[str]) -> str:
    """A state that changed at one time cannot be two states."""
    return f"(m.updated_at = o.updated_at AND {_any_differs(names)})"
