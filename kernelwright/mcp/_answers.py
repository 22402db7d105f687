"""Answers of tools that judge nothing: problems from disk, and results from the store."""

from __future__ import annotations

import functools
from typing import Any, get_args

from kernelwright.config import Settings
from kernelwright.datasets import Suite, find_problem, load_suite, suites
from kernelwright.evaluator import Device, device_of
from kernelwright.mcp._contract import rules
from kernelwright.records import Backend, Candidate, DeviceClass, Evaluation, Problem
from kernelwright.records.base import plain
from kernelwright.store import Store, StoredEvaluation


class Answers:
    """Reads problems and the store. Safe to use from several threads."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store

    def find(self, problem: str) -> Problem:
        """The problem that an agent named.

        Raises:
            UsageError: no problem or several problems have that name.
            InvalidReferenceError: its file breaks the contract.
        """
        return find_problem(problem, self._settings.suite_dirs)

    def problems(self, suite: str | None, level: int | None) -> dict[str, Any]:
        """Every problem of a suite, or of all suites."""
        names = (suite,) if suite else suites(self._settings.suite_dirs)
        loaded: list[Suite] = [load_suite(name, level, self._settings.suite_dirs) for name in names]
        answer: dict[str, Any] = plain(
            {
                "backends": {backend: self._place(backend) for backend in get_args(Backend)},
                "problems": [
                    {
                        "id": problem.id,
                        "title": problem.meta.title,
                        "category": problem.meta.category,
                        "dtype": problem.meta.dtype,
                        "variants": problem.meta.variants,
                    }
                    for one in loaded
                    for problem in one
                ],
                "broken": [{"id": fault.id, "reason": str(fault.error)} for one in loaded for fault in one.broken],
            }
        )
        return answer

    def problem(self, name: str) -> dict[str, Any]:
        """Everything that the author of a candidate needs to know about a problem."""
        found = self.find(name)
        answer: dict[str, Any] = plain(
            {
                "id": found.id,
                "sha256": found.sha256,
                "reference": found.source,
                "meta": found.meta,
                "backends": {
                    backend: {**self._place(backend), "variants": found.meta.variants_for(self._class_of(backend))}
                    for backend in get_args(Backend)
                },
                "baselines": self._settings.baselines,
                "rules": rules(found, self._settings),
            }
        )
        return answer

    def _place(self, backend: Backend) -> dict[str, Any]:
        """The device class of a backend on this machine, and whether its candidates are timed."""
        device_class = self._class_of(backend)
        return {"device_class": device_class, "timed": device_class != "interpreter"}

    def _class_of(self, backend: Backend) -> DeviceClass:
        return self._device.class_for(backend)

    @functools.cached_property
    def _device(self) -> Device:
        return device_of(self._settings)

    def best(self, problem: str | None, baseline: str, with_source: bool) -> dict[str, Any]:
        """The best kernels by problem and environment."""
        rows = self._store.best(self.find(problem).id if problem else None, baseline=baseline)
        kernels = []
        for row in rows:
            candidate = self._store.candidate(row.candidate, problem=row.problem)
            more = {"knobs": candidate.knobs} | ({"source": candidate.source} if with_source else {})
            kernels.append({**plain(row), **more})
        return {"baseline": baseline, "kernels": plain(kernels)}

    def history(self, problem: str, limit: int) -> dict[str, Any]:
        """The latest evaluations of a problem, newest first."""
        found = self.find(problem)
        rows = self._store.evaluations(problem=found.id, current_only=True, newest_first=True, limit=limit)
        return {"problem": found.id, "evaluations": plain([self._entry(row) for row in rows])}

    def _entry(self, row: StoredEvaluation) -> dict[str, Any]:
        candidate, verdict = row.candidate, row.verdict
        notes = self._store.notes(candidate=candidate.sha256)
        return {
            "evaluation": row.id,
            "created_at": row.created_at,
            "candidate": candidate.sha256,
            "parents": candidate.parents,
            "backend": candidate.backend,
            "knobs": candidate.knobs,
            "author": candidate.author,
            "note": candidate.note,
            "control": verdict.control,
            "status": verdict.status,
            "stage": verdict.stage,
            "failed_stage": verdict.failed_stage,
            "reason": verdict.reason,
            "quarantined": row.quarantined,
            "environment": verdict.environment,
            "confirmed": verdict.timing is not None and verdict.timing.confirmed,
            "latency_ms": verdict.timing.latency_ms if verdict.timing else None,
            "speedup": verdict.timing.speedup if verdict.timing else {},
            "advice": [note.advice for note in notes if note.evaluation_id in (None, row.id)],
        }

    def keep(self, problem: Problem, evaluation: Evaluation) -> dict[str, Any]:
        """Record an evaluation. The answer has its id, and its candidate's rank by the first baseline."""
        self._store.record_problem(problem)
        evaluation_id = self._store.record_evaluation(evaluation)
        return {"evaluation": evaluation_id, "rank": self._rank(evaluation)}

    def _rank(self, evaluation: Evaluation) -> dict[str, Any] | None:
        verdict, baseline = evaluation.verdict, self._settings.baselines[0]
        found = self._store.rank_of(verdict.candidate, verdict.problem, verdict.environment, baseline, verdict.backend)
        return {"baseline": baseline, **found} if found else None

    def candidate(self, sha_prefix: str, problem: Problem) -> Candidate:
        """A stored candidate for a problem. Raises UsageError if no candidate or several match the hash."""
        return self._store.candidate(sha_prefix, problem=problem.id)
