"""Whole runs as rows: the attempts on a problem in a run, in order, with their rewards."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kernelwright.records import RunConfig
from kernelwright.rl._asking import stored_text
from kernelwright.rl._evidence import Evidence
from kernelwright.rl._rows import problem_columns
from kernelwright.rl._scrub import reveals, scrub
from kernelwright.rl.rewards import Attempt, kernelwright_reward

if TYPE_CHECKING:
    from kernelwright.store import Store, StoredEvaluation

__all__ = ["trajectories"]

Row = dict[str, Any]


def trajectories(store: Store, evidence: Evidence, allowed: Callable[[str], bool]) -> Iterator[Row]:
    """A row for each run and language in which the problem was tried, oldest run first.

    Args:
        allowed: whether a prompt may be published. Other prompts and their replies are left empty.
    """
    runs: dict[tuple[str, str], list[StoredEvaluation]] = {}
    for entry in evidence.entries:
        if entry.run_id is not None:
            runs.setdefault((entry.run_id, entry.candidate.backend), []).append(entry)
    for (run_id, _), entries in sorted(runs.items()):
        config = store.run(run_id).config
        reader = _Reader(store, run_id, evidence.problem.id, allowed)
        steps = [reader.step(number, entry) for number, entry in enumerate(entries)]
        yield {
            "run": run_id,
            **problem_columns(evidence, entries[0].candidate.backend),
            **_told(config),
            "best_reward": max(step["reward"] for step in steps),
            "steps": steps,
        }


def _told(config: RunConfig) -> Row:
    return {"recipe": scrub(config.recipe), "coder": scrub(config.coder), "judge": scrub(config.judge)}


class _Reader:
    """Reads the steps of one run on one problem."""

    def __init__(self, store: Store, run_id: str, problem: str, allowed: Callable[[str], bool]) -> None:
        self._store = store
        self._allowed = allowed
        self._advice = _advice(store, run_id, problem)
        self._calls = _calls(store, run_id, problem)

    def step(self, number: int, entry: StoredEvaluation) -> Row:
        """The step of one evaluation."""
        candidate, verdict = entry.candidate, entry.verdict
        eager, compiled = verdict.speedup("eager"), verdict.speedup("compile")
        withdrawn = entry.quarantined is not None
        prompt, reply = self._texts(entry)
        return {
            "number": number,
            "round": entry.step,
            "purpose": entry.purpose,
            "mode": _mode(entry),
            "parents": list(candidate.parents),
            "candidate": candidate.sha256,
            "author": scrub(candidate.author),
            "backend": candidate.backend,
            "source": scrub(candidate.source) if reveals(candidate.source) else candidate.source,
            "knobs": json.dumps(candidate.knobs, sort_keys=True),
            "reasoning": scrub(candidate.note.strip()),
            "status": verdict.status.value,
            "stage": None if verdict.stage is None else verdict.stage.value,
            "reason": scrub(verdict.reason),
            "withdrawn": withdrawn,
            "environment": entry.environment.id,
            "speedup_eager": eager and eager.median,
            "speedup_eager_low": eager and eager.low,
            "speedup_eager_high": eager and eager.high,
            "speedup_compile": compiled and compiled.median,
            "reward": 0.0 if withdrawn else kernelwright_reward(Attempt.of(verdict, candidate)),
            "advice": self._advice.get(entry.id, ""),
            "prompt": prompt,
            "reply": reply,
        }

    def _texts(self, entry: StoredEvaluation) -> tuple[str, str]:
        """The prompt and the reply of the call that wrote the kernel; empty if none did, or it may not be published."""
        call = self._calls.get(str(entry.action.get("call") or ""))
        if call is None:
            return "", ""
        prompt = stored_text(self._store, call["prompt_sha256"])
        if not self._allowed(prompt):
            return "", ""
        return scrub(prompt), scrub(stored_text(self._store, call["reply_sha256"]))


def _mode(entry: StoredEvaluation) -> str:
    """The task of the Coder; ``confirm`` if a kernel was only measured again."""
    asked = str(entry.action.get("mode") or "")
    again = entry.verdict.failed_stage == "confirm" or (entry.verdict.timing and entry.verdict.timing.confirmed)
    return asked or ("confirm" if again else entry.candidate.operator)


def _advice(store: Store, run_id: str, problem: str) -> Mapping[str, str]:
    """The Judge's advice in a run as JSON, by the id of the evaluation that it is about."""
    rows = store.query(
        "SELECT notes.evaluation_id, notes.mode, bottleneck, method, plan, expected FROM notes "
        "JOIN evaluations ON evaluations.id = notes.evaluation_id "
        "JOIN candidates ON candidates.id = evaluations.candidate_id "
        "WHERE notes.run_id = ? AND candidates.problem = ? ORDER BY notes.number",
        [run_id, problem],
    )
    names = ("mode", "bottleneck", "method", "plan", "expected")
    return {
        row["evaluation_id"]: json.dumps({name: scrub(row[name]) for name in names}, ensure_ascii=False) for row in rows
    }


def _calls(store: Store, run_id: str, problem: str) -> Mapping[str, Mapping[str, str]]:
    """The prompt and the reply of each call that a run used for a problem, by the call's id."""
    rows = store.query(
        "SELECT call_id, llm_uses.prompt_sha256, reply_sha256 FROM llm_uses "
        "JOIN llm_calls ON llm_calls.id = call_id WHERE llm_uses.run_id = ? AND llm_uses.problem = ?",
        [run_id, problem],
    )
    return {row["call_id"]: row for row in rows}
