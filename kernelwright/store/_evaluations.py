"""Evaluations. Each is written in one transaction and never changed; boards are read from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kernelwright import __version__
from kernelwright.errors import StoreError, UsageError
from kernelwright.records import Evaluation, Interval, LLMCall, Speedup, Status, TimingSample, Verdict
from kernelwright.records.codec import dump_json, load_record
from kernelwright.store._calls import Calls
from kernelwright.store._ids import new_id, utc_now
from kernelwright.store._rows import BestRow, StoredEvaluation
from kernelwright.store._standings import RANKING

_SELECT = (
    "SELECT evaluations.*, candidates.sha256, candidates.problem, candidates.source_sha256, candidates.backend, "
    "candidates.knobs_json, candidates.parents_json, candidates.operator, candidates.author, "
    "candidates.prompt_sha256, candidates.note, (SELECT group_concat(reason, '; ') FROM quarantines "
    "WHERE quarantines.evaluation_id = evaluations.id) AS quarantined "
    "FROM evaluations JOIN candidates ON candidates.id = evaluations.candidate_id "
)

# The first of each ranking by the index: the places come from the small table of tallies, so no ranking is read whole.
_BEST = f"""
SELECT standings.*, problems.problem, problems.variant, candidates.sha256 AS candidate, evaluations.inputs,
    evaluations.latency_low_ms, evaluations.latency_high_ms
FROM (
    SELECT (
        SELECT evaluation_id FROM standings
        WHERE standings.environment_id = places.environment_id AND standings.baseline = :baseline
            AND standings.problem_version = places.problem_version AND standings.backend = places.backend
        ORDER BY {RANKING} LIMIT 1
    ) AS evaluation_id
    FROM (
        SELECT DISTINCT environment_id, problem_version, backend FROM tallies
        WHERE status = 'PASSED' AND environment_id = coalesce(:environment, environment_id) AND problem_version IN (
            SELECT version FROM current_problems WHERE problem = coalesce(:problem, problem)
        )
    ) AS places
) AS firsts
JOIN standings ON standings.evaluation_id = firsts.evaluation_id AND standings.baseline = :baseline
JOIN problems ON problems.version = standings.problem_version
JOIN candidates ON candidates.id = standings.candidate_id
JOIN evaluations ON evaluations.id = standings.evaluation_id
"""


class Evaluations(Calls):
    """Methods of the store about verdicts and their evidence."""

    def record_evaluation(
        self,
        evaluation: Evaluation,
        *,
        run_id: str | None = None,
        step: int | None = None,
        generation: int | None = None,
        llm_calls: Sequence[LLMCall] = (),
        purpose: str = "search",
        action: Mapping[str, Any] | None = None,
    ) -> str:
        """Write a verdict with all its evidence, atomically. Returns the evaluation's id.

        It belongs to the version of the problem that the run is pinned to, or else the current one. A candidate is
        stored once for each problem; judging it again makes a new evaluation. ``purpose``: ``contest`` if a search had
        it judged again beside its rivals, ``remeasure`` if it was only judged again. ``action`` records in plain JSON
        the requested and performed action; the state of a search follows from it.

        Raises:
            StoreError: verdict, candidate and environment do not belong together; the problem or run is unknown; the
                database is locked or the disk full. Nothing is written then.
        """
        _refuse_mismatch(evaluation)
        with self._connection.write():
            evaluation_id = new_id()  # under the lock: ids are in the order of commits
            self.record_environment(evaluation.environment)
            version = self._version_in_use(evaluation.verdict.problem, run_id)
            self._refuse_other_variant(evaluation.verdict, version)
            row = {
                "id": evaluation_id,
                "candidate_id": self._candidate_id(evaluation.candidate),
                "problem_version": version,
                "environment_id": evaluation.verdict.environment,
                "run_id": run_id,
                "step": step,
                "generation": generation,
                "purpose": purpose,
                "action_json": json.dumps(dict(action or {}), sort_keys=True),
                **_verdict_columns(evaluation.verdict),
                "software_version": __version__,
                "created_at": utc_now(),
            }
            self._connection.insert("evaluations", row)
            self._insert_evidence(evaluation_id, evaluation)
            self.record_llm_calls(llm_calls, run_id=run_id, step=step, evaluation_id=evaluation_id)
        return evaluation_id

    def _refuse_other_variant(self, verdict: Verdict, version: str) -> None:
        """Raise StoreError if the verdict is about another variant: a time on one shape never counts for another."""
        if verdict.variant is None:
            return
        rows = self._connection.rows("SELECT variant FROM problems WHERE version = ?", [version])
        if [verdict.variant.number] != [row["variant"] for row in rows]:
            raise _mismatch("variant", str(verdict.variant.number), verdict.problem)

    def _insert_evidence(self, evaluation_id: str, evaluation: Evaluation) -> None:
        key = {"evaluation_id": evaluation_id}
        timing, profile = evaluation.verdict.timing, evaluation.verdict.profile
        speedups = timing.speedup.items() if timing else ()
        self._connection.insert_all(
            "speedups", [{**key, "baseline": name, **speedup.model_dump()} for name, speedup in speedups]
        )
        self._connection.insert_all(
            "timing_samples",
            [{**key, "number": number, **_sample_row(sample)} for number, sample in enumerate(evaluation.samples)],
        )
        if profile is not None:
            texts = {"metrics_json": dump_json(profile.metrics), "notes_json": dump_json(profile.notes)}
            texts["kernels_json"] = dump_json([kernel.model_dump() for kernel in profile.kernels])
            self._connection.insert("profiles", {**key, "rung": profile.rung, "bound": profile.bound, **texts})
        for name, text in evaluation.artifacts.items():
            blob = self.put_blob(text, "artifact")
            self._connection.insert("artifacts", {**key, "name": name, "blob_sha256": blob})

    def quarantine(self, evaluation_id: str, reason: str) -> None:
        """Withdraw an evaluation: it is kept, but counts on no board. Raises UsageError for an unknown id."""
        if not reason:
            raise UsageError("a quarantine needs a reason")
        with self._connection.write():
            self._rows_of_evaluation(evaluation_id)
            row = {"id": new_id(), "evaluation_id": evaluation_id, "reason": reason, "created_at": utc_now()}
            self._connection.insert("quarantines", row)

    # ---------------------------------------------------------------------------------------------- reading

    def evaluation(self, evaluation_id: str) -> StoredEvaluation:
        """One evaluation with its raw samples and artifacts. Raises UsageError for an unknown id."""
        return self._stored(self._rows_of_evaluation(evaluation_id)[0], whole=True)

    def _rows_of_evaluation(self, evaluation_id: str) -> list[dict[str, Any]]:
        rows = self._connection.rows(f"{_SELECT} WHERE evaluations.id = ?", [evaluation_id])
        if not rows:
            raise UsageError(f"the store holds no evaluation {evaluation_id!r}")
        return rows

    def find_evaluation(
        self,
        *,
        candidate: str,
        problem: str,
        run_id: str | None = None,
        environment: str | None = None,
        control: bool = False,
        confirmed: bool | None = None,
        purpose: str | None = None,
    ) -> StoredEvaluation | None:
        """The latest evaluation of a candidate, without samples and artifacts; None if it was never judged.

        Only evaluations of the version in use (the run's, or the current one) count. Quarantined ones do not.

        Args:
            candidate: full hash.
            run_id: only evaluations of this run.
            environment: only evaluations in the environment with this id.
            control: search control evaluations instead of those of candidates.
            confirmed: True: only those whose confirmation ran, passed or not; False: only the others; None: all.
            purpose: only evaluations for this purpose.
        """
        found = self.evaluations(
            run_id=run_id,
            problem=problem,
            candidate=candidate,
            environment=environment,
            control=control,
            confirmed=confirmed,
            purpose=purpose,
            current_only=run_id is None,
            newest_first=True,
        )
        return next((item for item in found if item.quarantined is None), None)

    def evaluations(
        self,
        run_id: str | None = None,
        problem: str | None = None,
        *,
        candidate: str | None = None,
        environment: str | None = None,
        control: bool | None = None,
        confirmed: bool | None = None,
        passed: bool | None = None,
        purpose: str | None = None,
        before: str | None = None,
        current_only: bool = False,
        newest_first: bool = False,
        limit: int | None = None,
    ) -> list[StoredEvaluation]:
        """Evaluations in the order of recording, without samples and artifacts.

        Each given argument narrows the selection. ``before``: only those recorded before the record with that id, for
        example a run. ``current_only`` leaves out those of earlier versions of a problem.
        """
        wanted = {
            # The plus keeps SQLite from reading a whole run for the few evaluations of one candidate.
            f"{'' if candidate is None else '+'}evaluations.run_id = ?": run_id,
            "candidates.problem = ?": problem,
            "candidates.sha256 = ?": candidate,
            "evaluations.environment_id = ?": environment,
            "evaluations.control = ?": control,
            "(evaluations.confirmed OR evaluations.failed_stage IS 'confirm') = ?": confirmed,
            "(evaluations.status = 'PASSED') = ?": passed,
            "evaluations.purpose = ?": purpose,
            "evaluations.id < ?": before,
        }
        given = {condition: value for condition, value in wanted.items() if value is not None}
        conditions = ["1", *given]
        if current_only:
            conditions.append("evaluations.problem_version IN (SELECT version FROM current_problems)")
        order = "DESC" if newest_first else "ASC"
        rows = self._connection.rows(
            f"{_SELECT} WHERE {' AND '.join(conditions)} ORDER BY evaluations.id {order} LIMIT ?",
            [*given.values(), -1 if limit is None else limit],
        )
        return [self._stored(row, whole=False) for row in rows]

    def samples(self, evaluation_id: str) -> tuple[TimingSample, ...]:
        """The raw timing samples of an evaluation, in the order of measurement."""
        rows = self._connection.rows(
            'SELECT role, process, pair, position AS "order", calls, latency_ms, phase FROM timing_samples '
            "WHERE evaluation_id = ? ORDER BY number",
            [evaluation_id],
        )
        return tuple(TimingSample(**row) for row in rows)

    def artifacts(self, evaluation_id: str) -> dict[str, str]:
        """The texts stored with an evaluation, by name, except removed ones. They may quote hostile text: escape them
        before display."""
        rows = self._connection.rows(
            "SELECT name, content FROM artifacts JOIN blobs ON blobs.sha256 = artifacts.blob_sha256 "
            "WHERE evaluation_id = ? AND blob_sha256 NOT IN (SELECT sha256 FROM removed) ORDER BY name",
            [evaluation_id],
        )
        return {row["name"]: bytes(row["content"]).decode("utf-8", "surrogatepass") for row in rows}

    def best(
        self,
        problem: str | None = None,
        *,
        environment: str | None = None,
        baseline: str = "eager",
        confirmed_only: bool = False,
    ) -> list[BestRow]:
        """The candidate with the greatest lower bound of its speedup, for each problem, language and environment.

        A problem with another variant timed is a separate problem with its own id.

        Only evaluations of the current version count, and only if they passed, were timed, and are neither controls nor
        quarantined. A candidate's confirmation replaces its search timing, and no search timing ranks above a
        confirmation. An ineligible kernel, which is on no board, is the best if no eligible one ranks above it.
        """
        rows = self._connection.rows(
            f"{_BEST} {'WHERE standings.confirmed' if confirmed_only else ''} "
            "ORDER BY problems.problem, standings.environment_id, standings.backend",
            {"baseline": baseline, "problem": problem, "environment": environment},
        )
        return [_best(row) for row in rows]

    def search_statuses(self, run_id: str) -> dict[tuple[str, str], Status]:
        """The status of each of a run's candidates in the search, by problem and candidate hash."""
        rows = self._connection.rows(
            "SELECT problem, sha256, status FROM evaluations JOIN candidates ON candidates.id = candidate_id "
            "WHERE run_id = ? AND confirmed = 0 AND control = 0 AND coalesce(failed_stage, '') <> 'confirm' "
            "AND purpose = 'search' "
            "ORDER BY evaluations.id",
            [run_id],
        )
        return {(row["problem"], row["sha256"]): Status(row["status"]) for row in rows}

    def _stored(self, row: dict[str, Any], *, whole: bool) -> StoredEvaluation:
        evidence: dict[str, Any] = {}
        if whole:
            evidence = {"samples": self.samples(row["id"]), "artifacts": self.artifacts(row["id"])}
        evaluation = Evaluation(
            candidate=self._candidate_of_row(row),
            verdict=load_record(Verdict, row["verdict_json"]),
            environment=self.environment(row["environment_id"]),
            **evidence,
        )
        names = ("id", "run_id", "step", "generation", "purpose", "problem_version", "quarantined", "created_at")
        action = json.loads(row["action_json"])
        return StoredEvaluation(evaluation=evaluation, action=action, **{name: row[name] for name in names})


def _refuse_mismatch(evaluation: Evaluation) -> None:
    """Raise StoreError if the verdict is about another kernel, problem or machine than the evaluation."""
    verdict, candidate = evaluation.verdict, evaluation.candidate
    pairs = {
        "candidate": (verdict.candidate, candidate.sha256),
        "problem": (verdict.problem, candidate.problem_id),
        "backend": (verdict.backend, candidate.backend),
        "environment": (verdict.environment, evaluation.environment.id),
    }
    for what, (said, held) in pairs.items():
        if said != held:
            raise _mismatch(what, said, held)


def _mismatch(what: str, said: str, held: str) -> StoreError:
    return StoreError(
        f"the verdict is about {what} {said!r}, but the evaluation holds {held!r}",
        hint="this is a bug in the referee; nothing was written",
        field=what,
    )


def _verdict_columns(verdict: Verdict) -> dict[str, Any]:
    timing = verdict.timing
    return {
        "status": verdict.status.value,
        "stage": None if verdict.stage is None else verdict.stage.value,
        "failed_stage": verdict.failed_stage,
        "reason": verdict.reason,
        "control": verdict.control,
        "confirmed": timing is not None and timing.confirmed,
        "latency_ms": timing.latency_ms.median if timing else None,
        "latency_low_ms": timing.latency_ms.low if timing else None,
        "latency_high_ms": timing.latency_ms.high if timing else None,
        "inputs": ", ".join(verdict.variant.inputs) if verdict.variant else "",
        "verdict_json": dump_json(verdict),
    }


def _sample_row(sample: TimingSample) -> dict[str, Any]:
    row = sample.model_dump()
    row["position"] = row.pop("order")  # "order" is an SQL keyword
    return row


def _best(row: dict[str, Any]) -> BestRow:
    names = ("problem", "variant", "inputs", "baseline", "candidate", "backend", "author", "evaluation_id", "run_id")
    return BestRow(
        created_at=row["created_at"],
        environment=row["environment_id"],
        speedup=Speedup(median=row["median"], low=row["low"], high=row["high"], faster=bool(row["faster"])),
        latency_ms=Interval(median=row["latency_ms"], low=row["latency_low_ms"], high=row["latency_high_ms"]),
        confirmed=bool(row["confirmed"]),
        eligible=bool(row["eligible"]),
        **{name: row[name] for name in names},
    )
