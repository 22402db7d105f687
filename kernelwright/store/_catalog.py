"""The records that evaluations refer to: blobs, problems, environments, candidates with ancestry, notes; and search."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from kernelwright.errors import StoreError, UsageError
from kernelwright.records import Advice, Candidate, Environment, InputGenerator, Problem, ProblemMeta, sha256_text
from kernelwright.records.codec import dump_json, load_record
from kernelwright.store._connection import Connection
from kernelwright.store._ids import new_id, utc_now
from kernelwright.store._rows import ArchivedGenerator, LineageEdge, Note, SearchHit

_LEAST_PREFIX = 6
_HEX = re.compile(r"[0-9a-f]+")
_EXCERPT_WORDS = 16


def version_of(problem: Problem) -> str:
    """The content hash of a version of a problem, 16 hex digits.

    The path, the variant and the note are left out: the id already names the variant, and a note affects no verdict.
    """
    identity = problem.model_dump(mode="python", exclude={"path": True, "variant": True, "meta": {"note"}})
    return sha256_text(dump_json(identity, sort_keys=True))[:16]


class Catalog:
    """Methods of the store about problems, environments, candidates and notes."""

    _connection: Connection

    # ------------------------------------------------------------------------------------------------ blobs

    def put_blob(self, content: str | bytes, kind: str) -> str:
        """Store a text or bytes. Returns its SHA-256. Equal content is stored once, under its first kind."""
        data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
        sha256 = sha256_text(data)
        row = {"sha256": sha256, "kind": kind, "size_bytes": len(data), "content": data, "created_at": utc_now()}
        with self._connection.write():
            new = self._connection.insert("blobs", row, unless_present=True)
            if not new and self._connection.rows("SELECT 1 FROM removed WHERE sha256 = ?", [sha256]):
                self._give_back(sha256, data)
        return sha256

    def _give_back(self, sha256: str, content: bytes) -> None:
        """Store a text again that was removed to save space, inside a transaction."""
        self._connection.execute("UPDATE blobs SET content = ? WHERE sha256 = ?", [content, sha256])
        self._connection.execute("DELETE FROM removed WHERE sha256 = ?", [sha256])

    def get_blob(self, sha256: str) -> bytes:
        """The content with this hash.

        Raises:
            UsageError: the store has no such content, or it was removed to save space.
        """
        rows = self._connection.rows("SELECT content FROM blobs WHERE sha256 = ?", [sha256])
        if not rows:
            raise UsageError(f"the store holds no content {sha256!r}", hint="give the full SHA-256")
        gone = self._connection.rows("SELECT created_at FROM removed WHERE sha256 = ?", [sha256])
        if gone:
            raise UsageError(
                f"the text {sha256} was removed from the store on {gone[0]['created_at'][:10]}",
                hint="'kernelwright store prune' removed it; a backup from before that date has it",
            )
        return bytes(rows[0]["content"])

    def get_text(self, sha256: str) -> str:
        """The text with this hash. Raises UsageError like :meth:`get_blob`."""
        return self.get_blob(sha256).decode("utf-8", "surrogatepass")

    # --------------------------------------------------------------------------------------------- problems

    def record_problem(self, problem: Problem) -> str:
        """Store this version of a problem and make it the current one. Returns the version.

        A version is the hash of identity, source and metadata. Boards and queries use only evaluations of the current
        version, so a changed reference starts from scratch.
        """
        version = version_of(problem)
        with self._connection.write():
            row = {
                "version": version,
                "problem": problem.id,
                "suite": problem.suite,
                "level": problem.level,
                "name": problem.name,
                "number": problem.number,
                "source_sha256": self.put_blob(problem.source, "problem"),
                "meta_json": dump_json(problem.meta),
                "path": problem.path,
                "variant": problem.variant,
                "created_at": utc_now(),
            }
            self._connection.insert("problems", row, unless_present=True)
            self._connection.execute(
                "INSERT INTO current_problems (problem, version) VALUES (?, ?) "
                "ON CONFLICT (problem) DO UPDATE SET version = excluded.version",
                [problem.id, version],
            )
        return version

    def problem(self, problem_id: str, *, version: str | None = None) -> Problem:
        """A recorded problem, in its current version or the given one.

        Raises:
            UsageError: it was never recorded.
        """
        rows = self._connection.rows(
            "SELECT * FROM problems WHERE problem = :problem AND version = coalesce(:version, "
            "(SELECT version FROM current_problems WHERE problem = :problem))",
            {"problem": problem_id, "version": version},
        )
        if not rows:
            raise UsageError(f"the store knows no problem {problem_id!r}", hint="'kernelwright problems list' has all")
        row = rows[0]
        return Problem(
            id=row["problem"],
            suite=row["suite"],
            level=row["level"],
            name=row["name"],
            number=row["number"],
            source=self.get_text(row["source_sha256"]),
            meta=load_record(ProblemMeta, row["meta_json"]),
            path=row["path"],
            variant=row["variant"],
        )

    def variants_of(self, problem: Problem) -> tuple[Problem, ...]:
        """A problem in each variant that was ever recorded as the timed one, in current versions, sorted by number.

        Variants recorded from another text of the file, or with other domains, are left out.
        """
        rows = self._connection.rows(
            "SELECT problem FROM current_problems JOIN problems USING (version, problem) "
            "WHERE suite = ? AND level = ? AND name = ? ORDER BY variant",
            [problem.suite, problem.level, problem.name],
        )
        wanted = version_of(problem.declared)
        found = (self.problem(row["problem"]) for row in rows)
        return tuple(one for one in found if version_of(one.declared) == wanted)

    def _version_in_use(self, problem_id: str, run_id: str | None) -> str:
        """The version that a run is pinned to, or else the current one."""
        rows = self._connection.rows(
            "SELECT version FROM run_problems WHERE run_id = :run AND problem = :problem "
            "UNION ALL SELECT version FROM current_problems WHERE problem = :problem LIMIT 1",
            {"run": run_id, "problem": problem_id},
        )
        if not rows:
            raise StoreError(f"problem {problem_id!r} was not recorded", hint="call record_problem first")
        return str(rows[0]["version"])

    def add_generators(
        self, problem: Problem, wanted: Iterable[InputGenerator], *, author: str, evidence: Mapping[str, Any]
    ) -> int:
        """Add generators to the archive of this version of a problem. Returns how many were new.

        All variants share one archive, because all of them are checked whichever is timed.

        Args:
            author: the author of the proposal.
            evidence: by generator id, the reason for admitting it; stored as JSON.
        """
        with self._connection.write():
            version = self.record_problem(problem.declared)
            known = {row["id"] for row in self._generators(version)}
            new = {generator.id: generator for generator in wanted if generator.id not in known}
            for generator in new.values():
                row = {
                    "problem_version": version,
                    "id": generator.id,
                    "definition_json": dump_json(generator),
                    "author": author,
                    "evidence_json": dump_json(evidence.get(generator.id, {})),
                    "created_at": utc_now(),
                }
                self._connection.insert("generators", row)
        return len(new)

    def archive(self, problem: Problem) -> tuple[InputGenerator, ...]:
        """The generators of this version of a problem, oldest first. A changed text or domain makes a new version."""
        rows = self._generators(version_of(problem.declared))
        return tuple(load_record(InputGenerator, row["definition_json"]) for row in rows)

    def archived(self, problem: Problem) -> tuple[ArchivedGenerator, ...]:
        """Like :meth:`archive`, with each generator's author, time and evidence."""
        return tuple(
            ArchivedGenerator(
                generator=load_record(InputGenerator, row["definition_json"]),
                author=row["author"],
                created_at=row["created_at"],
                evidence=json.loads(row["evidence_json"]),
            )
            for row in self._generators(version_of(problem.declared))
        )

    def _generators(self, version: str) -> list[dict[str, Any]]:
        return self._connection.rows(
            "SELECT * FROM generators WHERE problem_version = ? ORDER BY created_at, id", [version]
        )

    # ----------------------------------------------------------------------------------------- environments

    def record_environment(self, environment: Environment) -> str:
        """Store an environment. Returns its id."""
        environment_id = environment.id
        if self._connection.rows("SELECT 1 FROM environments WHERE id = ?", [environment_id]):
            return environment_id
        row = {
            "id": environment_id,
            "device": environment.device,
            "device_class": environment.device_class,
            "torch": environment.torch,
            "threads": environment.threads,
            "record_json": dump_json(environment),
            "created_at": utc_now(),
        }
        self._connection.insert("environments", row, unless_present=True)
        return environment_id

    def environment(self, environment_id: str) -> Environment:
        """A recorded environment. Raises UsageError for an unknown id."""
        rows = self._connection.rows("SELECT record_json FROM environments WHERE id = ?", [environment_id])
        if not rows:
            raise UsageError(f"the store knows no environment {environment_id!r}")
        return load_record(Environment, rows[0]["record_json"])

    # ------------------------------------------------------------------------------------------- candidates

    def record_candidate(self, candidate: Candidate) -> str:
        """Store a candidate before it is judged. Returns its hash.

        A candidate that the problem already has keeps its first author, operator and note. New parents are added to its
        lineage.
        """
        with self._connection.write():
            self._candidate_id(candidate)
        return candidate.sha256

    def _candidate_id(self, candidate: Candidate) -> str:
        """The row id of a candidate. Makes the row if it is missing."""
        key = [candidate.sha256, candidate.problem_id]
        rows = self._connection.rows("SELECT id FROM candidates WHERE sha256 = ? AND problem = ?", key)
        if not rows:
            source_sha256 = self.put_blob(candidate.source, "source")
            self._connection.insert("sources", {"sha256": source_sha256}, unless_present=True)
            rows = [_candidate_row(candidate, source_sha256)]
            self._connection.insert("candidates", rows[0])
        edges = [
            {"child": key[0], "parent": parent, "relation": candidate.operator, "problem": key[1]}
            for parent in candidate.parents
        ]
        self._connection.insert_all("lineage", edges, unless_present=True)
        return str(rows[0]["id"])

    def candidate(self, sha_prefix: str, *, problem: str | None = None) -> Candidate:
        """The candidate whose hash begins with ``sha_prefix`` (at least 6 hex digits).

        Args:
            problem: needed only if one kernel was judged on several problems. Without it, the first of several variants
                of one problem is used.

        Raises:
            UsageError: the prefix is malformed, or matches no candidate or several (the message lists them).
        """
        prefix = sha_prefix.strip().lower()
        if len(prefix) < _LEAST_PREFIX or not _HEX.fullmatch(prefix):
            raise UsageError(f"{sha_prefix!r} is not a kernel hash", hint=f"give at least {_LEAST_PREFIX} hex digits")
        rows = self._connection.rows(
            "SELECT candidates.*, variant, suite, level, name FROM candidates "
            "LEFT JOIN current_problems USING (problem) LEFT JOIN problems USING (version) "
            "WHERE candidates.sha256 >= :prefix AND candidates.sha256 < :prefix || 'g' "
            "AND candidates.problem = coalesce(:problem, candidates.problem) ORDER BY variant, candidates.id",
            {"prefix": prefix, "problem": problem},
        )
        if not rows:
            raise UsageError(f"no kernel {sha_prefix!r} in the store", hint="'kernelwright kernels best' lists winners")
        if len({(row["sha256"], row["suite"], row["level"], row["name"]) for row in rows}) > 1:
            matches = [f"{row['sha256']} ({row['problem']})" for row in rows]
            raise UsageError(
                f"{sha_prefix!r} names several kernels: {', '.join(matches)}",
                hint="give more digits, or the problem",
                matches=matches,
            )
        return self._candidate_of_row(rows[0])

    def _candidate_of_row(self, row: dict[str, Any]) -> Candidate:
        return Candidate(
            problem_id=row["problem"],
            source=self.get_text(row["source_sha256"]),
            backend=row["backend"],
            knobs=json.loads(row["knobs_json"]),
            parents=tuple(json.loads(row["parents_json"])),
            operator=row["operator"],
            author=row["author"],
            prompt_sha256=row["prompt_sha256"],
            note=row["note"],
        )

    def lineage(self, sha256: str) -> list[LineageEdge]:
        """All edges above a candidate, nearest first, each once. Edges may form a cycle (a knob turned back)."""
        edges: dict[tuple[str, str, str], LineageEdge] = {}
        seen, layer, depth = {sha256}, [sha256], 1
        while layer:
            marks = ", ".join("?" * len(layer))
            found = self._connection.rows(
                f"SELECT DISTINCT child, parent, relation FROM lineage WHERE child IN ({marks}) "
                "ORDER BY child, parent, relation",
                layer,
            )
            for row in found:
                edges.setdefault((row["child"], row["parent"], row["relation"]), LineageEdge(depth=depth, **row))
            layer = _unseen((row["parent"] for row in found), seen)
            depth += 1
        return list(edges.values())

    # ------------------------------------------------------------------------------------- notes and search

    def add_note(
        self,
        candidate_sha: str,
        evaluation_id: str | None,
        role: str,
        advice: Advice,
        run_id: str | None = None,
        step: int | None = None,
    ) -> str:
        """Store a piece of advice about a candidate. Returns its id."""
        with self._connection.write():
            note_id = new_id()  # under the lock: ids are in the order of commits
            row = {
                "id": note_id,
                "candidate": candidate_sha,
                "evaluation_id": evaluation_id,
                "run_id": run_id,
                "step": step,
                "role": role,
                "mode": advice.mode,
                "bottleneck": advice.bottleneck,
                "method": advice.method,
                "plan": advice.plan,
                "expected": advice.expected,
                "action_json": dump_json(advice.action),
                "insights_json": dump_json([insight.model_dump() for insight in advice.insights]),
                "created_at": utc_now(),
            }
            self._connection.insert("notes", row)
        return note_id

    def notes(self, *, candidate: str | None = None, run_id: str | None = None) -> list[Note]:
        """Notes, oldest first."""
        given = {"candidate = ?": candidate, "run_id = ?": run_id}
        wanted = {condition: value for condition, value in given.items() if value is not None}
        rows = self._connection.rows(
            f"SELECT * FROM notes WHERE {' AND '.join(['1', *wanted])} ORDER BY id", list(wanted.values())
        )
        return [_note(row) for row in rows]

    def search(self, text: str, *, limit: int = 50) -> list[SearchHit]:
        """Candidates whose source or notes contain all words of ``text``: sources before notes, best matches first."""
        with self._connection.raw() as database:
            query = str(database.quote_fts(text))
        if not query.replace('"', "").strip():
            return []
        parameters = {"query": query, "limit": limit}
        sources = self._connection.rows(
            "SELECT 'source' AS kind, candidates.sha256 AS candidate, candidates.problem AS problem, excerpt FROM ("
            f"SELECT rowid AS number, rank, snippet(sources_fts, -1, '', '', '…', {_EXCERPT_WORDS}) AS excerpt "
            "FROM sources_fts WHERE sources_fts MATCH :query ORDER BY rank LIMIT :limit) AS hits "
            "JOIN sources ON sources.id = hits.number JOIN candidates ON candidates.source_sha256 = sources.sha256 "
            "ORDER BY hits.rank, candidates.id LIMIT :limit",
            parameters,
        )
        notes = self._connection.rows(
            "SELECT 'note' AS kind, notes.candidate AS candidate, coalesce((SELECT problem FROM candidates "
            "WHERE candidates.sha256 = notes.candidate ORDER BY id), '') AS problem, excerpt FROM ("
            f"SELECT rowid AS number, rank, snippet(notes_fts, -1, '', '', '…', {_EXCERPT_WORDS}) AS excerpt "
            "FROM notes_fts WHERE notes_fts MATCH :query ORDER BY rank LIMIT :limit) AS hits "
            "JOIN notes ON notes.number = hits.number ORDER BY hits.rank, notes.number",
            parameters,
        )
        return [SearchHit(**row) for row in [*sources, *notes]][:limit]


def _candidate_row(candidate: Candidate, source_sha256: str) -> dict[str, Any]:
    return {
        "id": new_id(),
        "sha256": candidate.sha256,
        "problem": candidate.problem_id,
        "source_sha256": source_sha256,
        "backend": candidate.backend,
        "knobs_json": dump_json(candidate.knobs),
        "parents_json": dump_json(candidate.parents),
        "operator": candidate.operator,
        "author": candidate.author,
        "prompt_sha256": candidate.prompt_sha256,
        "note": candidate.note,
        "created_at": utc_now(),
    }


def _note(row: dict[str, Any]) -> Note:
    advice = {name: row[name] for name in ("mode", "bottleneck", "method", "plan", "expected")}
    return Note(
        **{name: row[name] for name in ("id", "candidate", "evaluation_id", "run_id", "step", "role", "created_at")},
        advice=Advice(
            action=json.loads(row["action_json"]), insights=tuple(json.loads(row["insights_json"])), **advice
        ),
    )


def _unseen(names: Iterable[str], seen: set[str]) -> list[str]:
    fresh = [name for name in dict.fromkeys(names) if name not in seen]
    seen.update(fresh)
    return fresh
