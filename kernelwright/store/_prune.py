"""Pruning: what may go from a store that has grown too large, and what stays."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Literal

from kernelwright.errors import StoreError, UsageError
from kernelwright.store._foreign import driven_runs, only_one
from kernelwright.store._ids import new_id, utc_now
from kernelwright.store._merge import Merging
from kernelwright.store._rows import PruneReport

Prunable = Literal["artifacts", "calls", "runs", "samples"]
PRUNABLE = ("artifacts", "calls", "runs", "samples")
_AT_ONCE = 500  # evaluations, texts or runs of one transaction, so that other writers get their turns
_NONE = "SELECT NULL WHERE 0"
_LIVE = "SELECT id FROM runs WHERE status IN ('running', 'paused', 'interrupted')"

# Candidates whose evidence stays whole: those that are or were the best of their entrant or of a problem, that a run
# named as a winner, that were confirmed or refused by a confirmation, judged hacks or withdrawn; controls; and all of
# runs that may go on.
_PROTECTED = f"""
CREATE TEMP TABLE protected AS
SELECT candidate_id AS id FROM evaluations
WHERE confirmed OR control OR failed_stage = 'confirm' OR status IN ('REWARD_HACK', 'QUARANTINED')
    OR run_id IN ({_LIVE})
UNION SELECT candidate_id FROM evaluations JOIN quarantines ON quarantines.evaluation_id = evaluations.id
UNION SELECT candidate_id FROM evaluations JOIN improvements ON improvements.evaluation_id = evaluations.id
UNION SELECT candidate_id FROM ranking WHERE rank = 1
UNION SELECT candidate_id FROM samples WHERE candidate_id IS NOT NULL AND run_id IN ({_LIVE})
UNION SELECT candidates.id FROM run_problems JOIN candidates
    ON candidates.sha256 = json_extract(detail, '$.candidate') AND candidates.problem = run_problems.problem
    WHERE detail <> ''
UNION SELECT candidate_id FROM (
    SELECT evaluations.candidate_id, speedups.low, max(speedups.low) OVER (
        PARTITION BY environment_id, baseline, problem_version, backend, author,
            json_extract(runs.config_json, '$.recipe'), confirmed
        ORDER BY evaluations.id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS before
    FROM speedups JOIN evaluations ON evaluations.id = speedups.evaluation_id
    JOIN candidates ON candidates.id = evaluations.candidate_id
    LEFT JOIN runs ON runs.id = evaluations.run_id
    WHERE evaluations.status = 'PASSED' AND evaluations.control = 0
) WHERE before IS NULL OR low > before
"""
_LOSERS = """
CREATE TEMP TABLE losers AS SELECT id FROM evaluations
WHERE created_at < :before AND candidate_id NOT IN (SELECT id FROM temp.protected) AND {has}
ORDER BY id
"""
# Calls whose texts may go. A reply that led to a protected kernel or that a live run used stays.
_CALLS = f"""
CREATE TEMP TABLE calls AS SELECT id FROM llm_calls
WHERE created_at < :before
    AND (run_id IS NULL OR run_id NOT IN ({_LIVE}))
    AND id NOT IN (SELECT call_id FROM llm_uses WHERE run_id IN ({_LIVE}))
    AND prompt_sha256 NOT IN (
        SELECT prompt_sha256 FROM candidates JOIN temp.protected USING (id) WHERE prompt_sha256 IS NOT NULL
    )
    AND (evaluation_id IS NULL OR evaluation_id NOT IN (
        SELECT id FROM evaluations WHERE candidate_id IN (SELECT id FROM temp.protected)
    ))
ORDER BY id
"""
# The texts that only what goes refers to.
_TEXTS = """
CREATE TEMP TABLE texts AS SELECT sha256 AS id FROM blobs
WHERE sha256 IN ({going}) AND sha256 NOT IN (SELECT sha256 FROM removed) AND sha256 NOT IN (
    SELECT sha256 FROM sources UNION SELECT source_sha256 FROM problems
    UNION SELECT blob_sha256 FROM artifacts WHERE evaluation_id NOT IN ({evaluations})
    UNION SELECT prompt_sha256 FROM llm_calls WHERE id NOT IN ({calls})
    UNION SELECT reply_sha256 FROM llm_calls WHERE id NOT IN ({calls})
    UNION SELECT prompt_sha256 FROM llm_uses WHERE call_id NOT IN ({calls})
    UNION SELECT prompt_sha256 FROM candidates JOIN temp.protected USING (id) WHERE prompt_sha256 IS NOT NULL
) ORDER BY id
"""
_TEXTS_OF_CALLS = (
    "SELECT prompt_sha256 FROM llm_calls WHERE id IN (SELECT id FROM temp.calls) "
    "UNION SELECT reply_sha256 FROM llm_calls WHERE id IN (SELECT id FROM temp.calls) "
    "UNION SELECT prompt_sha256 FROM llm_uses WHERE call_id IN (SELECT id FROM temp.calls)"
)
# Why a cancelled or failed run stays, most important first.
_REASONS = {
    "evidence that stays": "EXISTS (SELECT 1 FROM evaluations WHERE run_id = runs.id "
    "AND candidate_id IN (SELECT id FROM temp.protected))",
    "a kernel judged in another run too": "EXISTS (SELECT 1 FROM evaluations AS e JOIN evaluations AS f "
    "ON f.candidate_id = e.candidate_id AND f.run_id IS NOT e.run_id WHERE e.run_id = runs.id)",
    "replies that another run used": "EXISTS (SELECT 1 FROM llm_calls JOIN llm_uses ON llm_uses.call_id = llm_calls.id "
    "WHERE llm_calls.run_id = runs.id AND llm_uses.run_id <> runs.id)",
    "a later run that is not over and may have learned from it": f"EXISTS (SELECT 1 FROM ({_LIVE}) AS l "
    "WHERE l.id > runs.id)",
}
_OLD_RUNS = "FROM runs WHERE status IN ('cancelled', 'failed') AND updated_at < :before"


# Texts that new evidence refers to since the pruning began stay: a new verdict, a new reply, or one that is used again.
_STILL_GOING = f"""
SELECT id FROM temp.texts WHERE rowid >= :first AND rowid < :end AND id NOT IN (
    SELECT blob_sha256 FROM artifacts WHERE evaluation_id > :began
    UNION SELECT prompt_sha256 FROM llm_calls WHERE id > :began
    UNION SELECT reply_sha256 FROM llm_calls WHERE id > :began
    UNION SELECT prompt_sha256 FROM llm_uses WHERE run_id IN ({_LIVE})
    UNION SELECT reply_sha256 FROM llm_uses JOIN llm_calls ON llm_calls.id = call_id WHERE llm_uses.run_id IN ({_LIVE})
)
"""
_GONE = "SELECT id FROM temp.gone"  # evaluations of a run that goes
# What goes with a run, in this order. Its texts are swept afterwards.
_WITH_A_RUN = (
    "INSERT INTO notes_fts (notes_fts, rowid, bottleneck, method, plan, expected) "
    "SELECT 'delete', number, bottleneck, method, plan, expected "
    f"FROM notes WHERE run_id = :run OR evaluation_id IN ({_GONE})",
    f"DELETE FROM notes WHERE run_id = :run OR evaluation_id IN ({_GONE})",
    "DELETE FROM llm_requests WHERE run_id = :run",
    "DELETE FROM llm_uses WHERE run_id = :run",
    f"DELETE FROM llm_calls WHERE run_id = :run OR evaluation_id IN ({_GONE})",
    "DELETE FROM events WHERE run_id = :run",
    "DELETE FROM samples WHERE run_id = :run",
    "DELETE FROM run_problems WHERE run_id = :run",
    "DELETE FROM steps WHERE run_id = :run",
    "DELETE FROM tallies WHERE run_id = :run",
    *(
        f"DELETE FROM {table} WHERE evaluation_id IN ({_GONE})"
        for table in ("standings", "rulings", "refusals", "speedups", "timing_samples", "profiles", "artifacts")
    ),
)
_TEXTS_OF_A_RUN = f"""
INSERT INTO temp.going
SELECT blob_sha256 FROM artifacts WHERE evaluation_id IN ({_GONE})
UNION SELECT source_sha256 FROM candidates JOIN evaluations ON candidate_id = candidates.id WHERE run_id = :run
UNION SELECT prompt_sha256 FROM candidates JOIN evaluations ON candidate_id = candidates.id WHERE run_id = :run
UNION SELECT prompt_sha256 FROM llm_calls WHERE run_id = :run
UNION SELECT reply_sha256 FROM llm_calls WHERE run_id = :run
UNION SELECT prompt_sha256 FROM llm_uses WHERE run_id = :run
"""
# Candidates that only this run judged or sampled, and from which no other candidate descends.
_ONLY_OF_RUN = """
CREATE TEMP TABLE lonely AS SELECT DISTINCT candidate_id AS id FROM evaluations AS e
JOIN candidates AS c ON c.id = e.candidate_id
WHERE e.run_id = :run
    AND NOT EXISTS (SELECT 1 FROM samples WHERE candidate_id = c.id AND samples.run_id <> :run)
    AND NOT EXISTS (
        SELECT 1 FROM lineage JOIN candidates AS d ON d.sha256 = lineage.child AND d.problem = lineage.problem
        WHERE lineage.parent = c.sha256 AND NOT EXISTS (
            SELECT 1 FROM evaluations AS f WHERE f.candidate_id = d.id AND f.run_id = :run
        )
    )
"""
_TEXTS_LEFT = """
CREATE TEMP TABLE texts AS SELECT sha256 AS id FROM blobs
WHERE sha256 IN (SELECT id FROM temp.going) AND sha256 NOT IN (
    SELECT source_sha256 FROM candidates UNION SELECT source_sha256 FROM problems
    UNION SELECT blob_sha256 FROM artifacts
    UNION SELECT prompt_sha256 FROM llm_calls UNION SELECT reply_sha256 FROM llm_calls
    UNION SELECT prompt_sha256 FROM llm_uses
    UNION SELECT prompt_sha256 FROM candidates WHERE prompt_sha256 IS NOT NULL
)
"""
_SWEEP = (
    "INSERT INTO sources_fts (sources_fts, rowid, source) SELECT 'delete', id, source FROM source_texts "
    "WHERE id IN (SELECT id FROM sources WHERE sha256 IN temp.texts)",
    "DELETE FROM sources WHERE sha256 IN temp.texts",
    "DELETE FROM removed WHERE sha256 IN temp.texts",
    "DELETE FROM blobs WHERE sha256 IN temp.texts",
)


class Pruning(Merging):
    """Methods of the store that remove what is no longer needed."""

    def prune(self, before: str, what: Collection[Prunable], *, dry_run: bool = False) -> PruneReport:
        """Remove evidence recorded before a time (ISO 8601, UTC). Returns what went and what stayed.

        Of losing candidates: the texts of ``artifacts``, and raw timing ``samples``. Of ``calls``: the texts of
        prompts and replies; such a reply is not used again. Whole cancelled or failed ``runs``. Verdicts stay, except
        those of removed runs. Nothing goes that belongs to a candidate that is or was the best of its entrant, won a
        run, was confirmed, withdrawn or judged a hack, or to a run that is not over.

        Args:
            dry_run: count only; nothing is removed.

        Raises:
            UsageError: ``what`` is empty, or another process merges into this store or prunes it.
        """
        if not what or set(what) - set(PRUNABLE):
            raise UsageError("what shall be pruned?", hint=f"any of {', '.join(PRUNABLE)}")
        if not dry_run and self._connection.readonly:
            raise StoreError(f"the store {self._connection.path} was opened read-only", hint="open it for writing")
        removed: dict[str, int] = {}
        text_bytes, kept, began = 0, {}, new_id()
        with only_one(self._connection.path):
            try:
                self._table(_PROTECTED)
                if "runs" in what:
                    kept = self._prune_runs(before, removed, dry_run)
                if "samples" in what:
                    removed["timing samples"] = self._prune_samples(before, dry_run)
                if "artifacts" in what:
                    has = "EXISTS (SELECT 1 FROM artifacts WHERE evaluation_id = evaluations.id)"
                    self._table(_LOSERS.format(has=has), before=before)
                    going = "SELECT blob_sha256 FROM artifacts WHERE evaluation_id IN (SELECT id FROM temp.losers)"
                    self._table(_TEXTS.format(going=going, evaluations="SELECT id FROM temp.losers", calls=_NONE))
                    removed["texts of artifacts"], size = self._remove_texts(began, dry_run)
                    text_bytes += size
                if "calls" in what:
                    self._table(_CALLS, before=before)
                    calls = "SELECT id FROM temp.calls"
                    self._table(_TEXTS.format(going=_TEXTS_OF_CALLS, evaluations=_NONE, calls=calls))
                    removed["texts of calls"], size = self._remove_texts(began, dry_run)
                    text_bytes += size
            finally:
                for name in ("protected", "losers", "calls", "texts", "going", "gone", "lonely"):
                    self._connection.rows(f"DROP TABLE IF EXISTS temp.{name}")
        return PruneReport(removed=removed, text_bytes=text_bytes, kept_runs=kept)

    def _table(self, sql: str, **parameters: str) -> int:
        """Make a temporary table anew. Returns its number of rows."""
        name = sql.split("TEMP TABLE ", 1)[1].split(" ", 1)[0]
        self._connection.rows(f"DROP TABLE IF EXISTS temp.{name}")
        self._connection.rows(sql, parameters)
        return self._count(f"temp.{name}")

    def _count(self, source: str, **parameters: str) -> int:
        return int(self._connection.rows(f"SELECT count(*) AS n FROM {source}", parameters)[0]["n"])

    def _prune_samples(self, before: str, dry_run: bool) -> int:
        has = "EXISTS (SELECT 1 FROM timing_samples WHERE evaluation_id = evaluations.id)"
        losers, removed = self._table(_LOSERS.format(has=has), before=before), 0
        if dry_run:
            return self._count("timing_samples WHERE evaluation_id IN (SELECT id FROM temp.losers)")
        for first in range(1, losers + 1, _AT_ONCE):
            with self._unlocked("timing_samples"):
                removed += self._connection.execute(
                    "DELETE FROM timing_samples WHERE evaluation_id IN "
                    "(SELECT id FROM temp.losers WHERE rowid >= ? AND rowid < ?)",
                    [first, first + _AT_ONCE],
                )
        return removed

    def _remove_texts(self, began: str, dry_run: bool) -> tuple[int, int]:
        """Empty the texts of ``temp.texts``. Returns their number and size in bytes."""
        rows = self._connection.rows(
            "SELECT count(*) AS n, coalesce(sum(size_bytes), 0) AS size FROM blobs "
            "WHERE sha256 IN (SELECT id FROM temp.texts)"
        )
        count, size = int(rows[0]["n"]), int(rows[0]["size"])
        for first in range(1, 0 if dry_run else count + 1, _AT_ONCE):
            with self._connection.write():
                batch = {"first": first, "end": first + _AT_ONCE, "began": began, "now": utc_now()}
                self._connection.execute(f"INSERT INTO removed SELECT id, :now FROM ({_STILL_GOING})", batch)
                self._connection.execute(
                    "UPDATE blobs SET content = x'' WHERE sha256 IN (SELECT sha256 FROM removed) AND sha256 IN "
                    "(SELECT id FROM temp.texts WHERE rowid >= :first AND rowid < :end)",
                    batch,
                )
        return count, size

    # --------------------------------------------------------------------------------------------------- runs

    def _prune_runs(self, before: str, removed: dict[str, int], dry_run: bool) -> dict[str, int]:
        """Remove old cancelled and failed runs. Returns how many stay, by reason."""
        driven = {name.split(".")[0] for name in driven_runs(self._connection.path)}
        kept: dict[str, int] = {}
        removed |= {"runs": 0, "evaluations": 0, "candidates": 0}
        self._table("CREATE TEMP TABLE going AS SELECT '' AS id")
        for row in self._connection.rows(f"SELECT id {_OLD_RUNS} ORDER BY id", {"before": before}):
            run_id = str(row["id"])
            reason = "it is being driven" if run_id in driven else self._reason_to_keep(run_id)
            if reason is None and not dry_run:
                reason = self._remove_run(run_id, removed)
            elif reason is None:
                removed["evaluations"] += self._count("evaluations WHERE run_id = :run", run=run_id)
                removed["candidates"] += self._table(_ONLY_OF_RUN, run=run_id)
            if reason is None:
                removed["runs"] += 1
            else:
                kept[reason] = kept.get(reason, 0) + 1
        if removed["runs"] and not dry_run:
            self._sweep_texts()
        return kept

    def _reason_to_keep(self, run_id: str) -> str | None:
        for reason, condition in _REASONS.items():
            if self._connection.rows(f"SELECT 1 FROM runs WHERE id = ? AND {condition}", [run_id]):
                return reason
        return None

    def _remove_run(self, run_id: str, removed: dict[str, int]) -> str | None:
        """Remove a run with everything that only it has. Returns a reason to keep it after all, or None."""
        run = {"run": run_id}
        with self._unlocked():
            if reason := self._reason_to_keep(run_id):
                return reason
            self._table("CREATE TEMP TABLE gone AS SELECT id FROM evaluations WHERE run_id = :run", **run)
            self._table(_ONLY_OF_RUN, **run)
            self._connection.execute(_TEXTS_OF_A_RUN, run)
            for statement in _WITH_A_RUN:
                self._connection.execute(statement, run)
            removed["evaluations"] += self._connection.execute(f"DELETE FROM evaluations WHERE id IN ({_GONE})")
            self._connection.execute(
                "DELETE FROM lineage WHERE (child, problem) IN "
                "(SELECT sha256, problem FROM candidates JOIN temp.lonely USING (id))"
            )
            removed["candidates"] += self._connection.execute("DELETE FROM candidates WHERE id IN temp.lonely")
            self._connection.execute("DELETE FROM runs WHERE id = :run", run)
        return None

    def _sweep_texts(self) -> None:
        """Remove the texts that only removed runs had."""
        with self._unlocked():
            self._table(_TEXTS_LEFT)
            for statement in _SWEEP:
                self._connection.execute(statement)

    @contextmanager
    def _unlocked(self, *tables: str) -> Iterator[None]:
        """A transaction in which evidence may be removed: without the triggers that refuse it, and without looking for
        rows that refer to each removed one, which go as well."""
        found = "SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'trigger' AND name LIKE '%_refuse_delete'"
        with self._connection.raw():  # no other thread in between
            self._connection.rows("PRAGMA foreign_keys = OFF")
            try:
                with self._connection.write():
                    triggers = [row for row in self._connection.rows(found) if not tables or row["tbl_name"] in tables]
                    for row in triggers:
                        self._connection.execute(f"DROP TRIGGER {row['name']}")
                    yield
                    for row in triggers:
                        self._connection.execute(row["sql"])
            finally:
                self._connection.rows("PRAGMA foreign_keys = ON")
