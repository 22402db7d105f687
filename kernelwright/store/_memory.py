"""Data that later runs can learn from: all kernels with their measurements, and the insights of Judges."""

from __future__ import annotations

import json
from typing import Any

from kernelwright.records import Interval, Status
from kernelwright.records.runs import Insight
from kernelwright.store._rows import StoredInsight, TriedKernel
from kernelwright.store._samples import Samples

# Evaluations recorded before a run began that are not its own. The run gets the same rows whenever it asks.
_EARLIER = "(:run IS NULL OR (evaluations.id < :run AND evaluations.run_id IS NOT :run))"
_JUDGED = (
    "FROM evaluations JOIN candidates ON candidates.id = evaluations.candidate_id "
    "JOIN environments ON environments.id = evaluations.environment_id "
)
_IN_FORCE = (
    f"WHERE {_EARLIER} AND (:backend IS NULL OR candidates.backend = :backend) AND evaluations.control = 0 "
    "AND evaluations.id NOT IN (SELECT evaluation_id FROM quarantines) "
)


class Memory(Samples):
    """Methods of the store about tried kernels and insights."""

    def tried(self, *, before_run: str | None = None, backend: str | None = None) -> list[TriedKernel]:
        """All evaluations of candidates in the order of recording, without the kernels' texts.

        Args:
            before_run: only evaluations recorded before this run began, and none of its own.
            backend: only kernels in this language.
        """
        rows = self._connection.rows(
            "SELECT evaluations.id, evaluations.run_id, evaluations.purpose, candidates.problem, "
            "evaluations.problem_version AS version, evaluations.environment_id AS environment, environments.device, "
            "environments.device_class, candidates.sha256 AS candidate, candidates.backend, candidates.knobs_json, "
            "candidates.parents_json, candidates.operator, candidates.author, candidates.note, evaluations.status, "
            "coalesce(json_extract(verdict_json, '$.profile.bound'), 'unknown') AS bound, "
            "coalesce(json_extract(verdict_json, '$.timing.speedup'), '{}') AS speedup_json, "
            "coalesce(json_extract(verdict_json, '$.timing.rivals'), '{}') AS rivals_json, evaluations.action_json "
            f"{_JUDGED} {_IN_FORCE} ORDER BY evaluations.id",
            {"run": before_run, "backend": backend},
        )
        return [_tried(row) for row in rows]

    def insights(self, *, before_run: str | None = None, backend: str | None = None) -> list[StoredInsight]:
        """The insights of Judges, oldest first. The arguments are those of :meth:`tried`."""
        rows = self._connection.rows(
            "SELECT notes.id AS note_id, notes.run_id, candidates.problem, evaluations.problem_version AS version, "
            "candidates.backend, environments.device_class, "
            "coalesce(json_extract(verdict_json, '$.profile.bound'), 'unknown') AS bound, notes.insights_json "
            f"{_JUDGED} JOIN notes ON notes.evaluation_id = evaluations.id {_IN_FORCE} "
            "AND notes.insights_json <> '[]' AND (:run IS NULL OR (notes.id < :run AND notes.run_id IS NOT :run)) "
            "ORDER BY notes.id",
            {"run": before_run, "backend": backend},
        )
        return [
            StoredInsight(insight=Insight.model_validate(entry), **row)
            for row in rows
            for entry in json.loads(row.pop("insights_json"))
        ]

    def problem_sources(self) -> dict[str, str]:
        """The text of each version of each problem, by version."""
        rows = self._connection.rows(
            "SELECT version, content FROM problems JOIN blobs ON blobs.sha256 = problems.source_sha256"
        )
        return {row["version"]: bytes(row["content"]).decode("utf-8", "surrogatepass") for row in rows}


def _tried(row: dict[str, Any]) -> TriedKernel:
    """Turn a row into a record without validation: rows may be many, and they were validated when stored."""
    return TriedKernel.model_construct(
        status=Status(row.pop("status")),
        knobs=json.loads(row.pop("knobs_json")),
        parents=tuple(json.loads(row.pop("parents_json"))),
        speedup=_intervals(row.pop("speedup_json")),
        rivals=_intervals(row.pop("rivals_json")),
        action=json.loads(row.pop("action_json")),
        **row,
    )


def _intervals(text: str) -> dict[str, Interval]:
    found = json.loads(text)
    return {
        name: Interval(median=one["median"], low=one["low"], high=one["high"])
        for name, one in found.items()
        if None not in (one["median"], one["low"], one["high"])
    }
