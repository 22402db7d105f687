"""Samples: independent answers to the problems of a run, stored before they are judged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kernelwright.errors import StoreError, UsageError
from kernelwright.records import Candidate, Problem, RunConfig
from kernelwright.records.codec import dump_json
from kernelwright.store._evaluations import Evaluations
from kernelwright.store._ids import utc_now
from kernelwright.store._rows import Sample

_SELECT = (
    "SELECT samples.problem AS sampled, samples.number, samples.reason, samples.claimed_json, candidates.* "
    "FROM samples LEFT JOIN candidates ON candidates.id = samples.candidate_id "
)


class Samples(Evaluations):
    """Methods of the store about samples."""

    def create_bench(self, config: RunConfig, problems: Sequence[Problem], samples: Sequence[Sample] = ()) -> str:
        """Start a run of a bench with its existing samples, atomically. Returns the run's id.

        Raises:
            UsageError: the store already has a bench of that name.
            StoreError: see :meth:`add_sample`.
        """
        name = (config.bench or {}).get("name")
        with self._connection.write():
            same = self._connection.rows("SELECT id FROM runs WHERE config_json ->> '$.bench.name' = ?", [name])
            if same:
                raise UsageError(
                    f"this store has a bench {name!r} already (run {same[0]['id']})",
                    hint="choose another name for this one",
                )
            run_id = self.create_run(config, problems)
            for sample in samples:
                self.add_sample(run_id, sample)
            self.set_run_status(run_id, "paused")
        return run_id

    def add_sample(self, run_id: str, sample: Sample) -> None:
        """Store one answer, atomically.

        Raises:
            StoreError: the run already has this sample, or has no such problem; or the sample has neither a candidate
                nor a reason why it has none.
        """
        candidate = sample.candidate
        with self._connection.write():
            asked = "SELECT 1 FROM run_problems WHERE run_id = ? AND problem = ?"
            if not self._connection.rows(asked, [run_id, sample.problem]):
                raise StoreError(f"run {run_id} has no problem {sample.problem!r}", hint="this is a bug in the caller")
            row = {
                "run_id": run_id,
                "problem": sample.problem,
                "number": sample.number,
                "candidate_id": None if candidate is None else self._candidate_id(candidate),
                "reason": sample.reason,
                "claimed_json": None if sample.claimed is None else dump_json(sample.claimed),
                "created_at": utc_now(),
            }
            self._connection.insert("samples", row)

    def run_samples(self, run_id: str, problem: str | None = None) -> list[Sample]:
        """The samples of a run, or of one of its problems, in the run's order of problems and then by number."""
        rows = self._connection.rows(
            f"{_SELECT} JOIN run_problems ON run_problems.run_id = samples.run_id "
            "AND run_problems.problem = samples.problem "
            "WHERE samples.run_id = :run_id AND samples.problem = coalesce(:problem, samples.problem) "
            "ORDER BY run_problems.position, samples.number",
            {"run_id": run_id, "problem": problem},
        )
        return [self._sample(row) for row in rows]

    def _sample(self, row: Mapping[str, Any]) -> Sample:
        candidate: Candidate | None = None if row["id"] is None else self._candidate_of_row(dict(row))
        return Sample(
            problem=row["sampled"],
            number=row["number"],
            candidate=candidate,
            reason=row["reason"],
            claimed=None if row["claimed_json"] is None else json.loads(row["claimed_json"]),
        )
