"""The data of a run's pages: its state, its progress, its winners and its transcript."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelwright.config import NAMES
from kernelwright.errors import UsageError
from kernelwright.leaderboard._site import spec_of
from kernelwright.store import RunRow, Store

if TYPE_CHECKING:
    from kernelwright.campaign.live import Standing

LIVE = frozenset({"running", "paused", "interrupted"})
_LATEST = 15
_POINTS = 240
_EXCERPT = 280


class Latest(NamedTuple):
    """The newest parts of a run. If they differ, the run has changed."""

    evaluation: str
    event: str
    status: str
    requests: int

    @property
    def over(self) -> bool:
        """Whether the run has stopped, at least until someone resumes it."""
        return self.status != "running"


def latest_of(store: Store, run_id: str) -> Latest | None:
    """The newest evaluation and event of a run, and its status; None if there is no such run."""
    rows = store.query(
        "SELECT status, coalesce((SELECT max(id) FROM evaluations WHERE run_id = runs.id), '') AS evaluation, "
        "coalesce((SELECT max(id) FROM events WHERE run_id = runs.id), '') AS event, "
        "(SELECT count(*) FROM llm_requests WHERE run_id = runs.id) AS requests FROM runs WHERE id = ?",
        [run_id],
    )
    return None if not rows else Latest(**{name: rows[0][name] for name in Latest._fields})


def run_list(store: Store, *, before: str | None, limit: int) -> list[dict[str, Any]]:
    """Runs, the latest first, with the number of their problems, of right kernels and of evaluations."""
    rows = store.query(
        "SELECT runs.id, runs.status, runs.seconds, runs.created_at, "
        "json_extract(config_json, '$.recipe') AS recipe, json_extract(config_json, '$.coder') AS coder, "
        "json_extract(config_json, '$.backend') AS backend, "
        "(SELECT count(*) FROM run_problems WHERE run_id = runs.id) AS problems, "
        "(SELECT count(*) FROM run_problems WHERE run_id = runs.id AND state = 'done') AS 'right', "
        "(SELECT coalesce(sum(evaluations), 0) FROM tallies WHERE run_id = runs.id) AS evaluations "
        "FROM runs WHERE ? IS NULL OR runs.id < ? ORDER BY runs.id DESC LIMIT ?",
        [before, before, limit],
    )
    return [{**row, "coder": spec_of(row["coder"])} for row in rows]


def driven(store: Store) -> list[Standing]:
    """How each run stands that a live process drives, the latest first."""
    from kernelwright.campaign.live import Watcher, driven_runs

    found = []
    for run in driven_runs(store.path):
        with suppress(UsageError):  # it is not in this store
            standing = Watcher(store, run).look()
            found.append(standing.model_copy(update={"recipe": standing.recipe.rpartition("/")[2]}))
    return found


def latest_evaluations(store: Store, run_id: str) -> list[dict[str, Any]]:
    """The newest verdicts of a run."""
    return store.query(
        "SELECT evaluations.id, evaluations.step, evaluations.status, evaluations.stage, evaluations.confirmed, "
        "evaluations.latency_ms, evaluations.reason, evaluations.created_at, evaluations.purpose, "
        "candidates.sha256 AS candidate, candidates.problem, candidates.operator, candidates.author, "
        "speedups.median, speedups.low, speedups.high, speedups.faster, speedups.baseline "
        "FROM (SELECT id FROM evaluations WHERE run_id = ? ORDER BY id DESC LIMIT ?) AS newest "
        "JOIN evaluations ON evaluations.id = newest.id JOIN candidates ON candidates.id = evaluations.candidate_id "
        "LEFT JOIN runs ON runs.id = evaluations.run_id "
        "LEFT JOIN speedups ON speedups.evaluation_id = evaluations.id "
        "AND speedups.baseline = json_extract(runs.config_json, '$.baselines[0]') ORDER BY evaluations.id DESC",
        [run_id, _LATEST],
    )


def events_of(store: Store, run_id: str) -> list[dict[str, Any]]:
    """The newest events of a run."""
    rows = store.query(
        "SELECT kind, data_json, created_at FROM events WHERE run_id = ? ORDER BY id DESC LIMIT ?", [run_id, _LATEST]
    )
    return [{**row, "text": _brief(json.loads(row["data_json"]))} for row in rows]


def _brief(data: Any) -> str:
    text = ", ".join(f"{key} {value}" for key, value in data.items()) if isinstance(data, Mapping) else str(data)
    return text[:_EXCERPT]


def failures_of(tallies: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The number of evaluations by status and failed stage, the most frequent first."""
    found: Counter[tuple[str, str]] = Counter()
    for row in tallies:
        found[row["status"], row["failed_stage"]] += row["evaluations"]
    total = sum(found.values()) or 1
    return [
        {"status": status, "failed_stage": stage, "evaluations": count, "share": count / total}
        for (status, stage), count in found.most_common()
    ]


def progress_of(store: Store, run: RunRow) -> dict[str, Any]:
    """A chart of the geometric mean of the problems' best kernels so far, after each evaluation of the search."""
    baseline = run.config.baselines[0]
    rows = store.query(
        "SELECT evaluations.problem_version AS problem, evaluations.candidate_id, speedups.low, speedups.median "
        "FROM evaluations LEFT JOIN speedups ON speedups.evaluation_id = evaluations.id AND speedups.baseline = ? "
        "WHERE evaluations.run_id = ? AND evaluations.control = 0 AND evaluations.confirmed = 0 "
        "ORDER BY evaluations.id",
        [baseline, run.id],
    )
    count = max(len(run.config.problems), 1)
    best: dict[str, tuple[float, float]] = {}
    total, means = 0.0, []
    for row in rows:
        held = best.get(row["problem"])
        if row["low"] is not None and row["low"] > 0 and (held is None or row["low"] > held[0]):
            total += math.log(row["median"]) - (math.log(held[1]) if held else 0.0)
            best[row["problem"]] = (row["low"], row["median"])
        means.append(math.exp(total / count))
    every = max(1, len(means) // _POINTS)
    places = sorted({*range(0, len(means), every), len(means) - 1}) if means else []
    return {
        "x": [place + 1 for place in places],
        "series": [{"label": f"mean speedup over {baseline}", "y": [round(means[place], 4) for place in places]}],
        "x_label": "evaluations",
        "y_label": f"geometric mean over {count} problems, best so far",
    }


def winners_of(store: Store, run: RunRow) -> list[dict[str, Any]]:
    """Each problem of a run with its state, and its winner if it has one."""
    rows = []
    for state in store.problem_states(run.id):
        found: dict[str, Any] = json.loads(state.detail) if state.state in ("done", "failed") and state.detail else {}
        speedup = (found.get("speedup") or {}).get(run.config.baselines[0]) or {}
        latency = found.get("latency_ms") or {}
        rows.append(
            {
                "problem": state.problem,
                "state": state.state,
                "status": found.get("status"),
                "candidate": found.get("candidate"),
                "evaluation": found.get("evaluation"),
                "confirmed": bool(found.get("confirmed")),
                "median": speedup.get("median"),
                "low": speedup.get("low"),
                "high": speedup.get("high"),
                "faster": speedup.get("faster"),
                "latency_ms": latency.get("median"),
                "rounds": found.get("rounds", 0),
                "seconds": found.get("seconds", 0.0),
                "reason": found.get("reason", ""),
            }
        )
    return rows


def settings_of(run: RunRow) -> str:
    """The settings of a run as JSON, without the paths of its machine."""
    told = without_paths(run).config.model_dump(mode="json", exclude={"suite_dirs", "problems"})
    return json.dumps(told, indent=2, default=str)


def without_paths(run: RunRow) -> RunRow:
    """The run, with all paths of its machine removed from its configuration."""
    config = run.config
    changed = {
        **{name: spec_of(getattr(config, name)) for name in ("coder", "judge", "verifier")},
        "models": tuple(map(spec_of, config.models)),
        "suite_dirs": (),
        "settings": {name: value for name, value in NAMES.recorded(config.settings).items() if not _has_path(value)},
    }
    return run.model_copy(update={"config": config.model_copy(update=changed)})


def _has_path(value: Any) -> bool:
    if isinstance(value, Mapping):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        return any(map(_has_path, value))
    return isinstance(value, str) and "/" in value


def transcript_of(store: Store, run_id: str, *, problem: str | None, offset: int, limit: int) -> list[dict[str, Any]]:
    """The prompts and replies of a run, by problem and step."""
    rows = store.query(
        "SELECT llm_uses.problem, llm_uses.step, llm_uses.role, llm_uses.sample, llm_uses.attempt, llm_uses.reused, "
        "llm_uses.call_id, llm_uses.prompt_sha256, llm_uses.created_at, llm_calls.provider, llm_calls.model, "
        "llm_calls.input_tokens, llm_calls.output_tokens, llm_calls.cost_usd, llm_calls.seconds, "
        "substr(blobs.content, 1, ?) AS excerpt, blobs.size_bytes "
        "FROM llm_uses JOIN llm_calls ON llm_calls.id = llm_uses.call_id "
        "JOIN blobs ON blobs.sha256 = llm_calls.reply_sha256 "
        "WHERE llm_uses.run_id = ? AND (? IS NULL OR llm_uses.problem = ?) "
        "ORDER BY llm_uses.problem, llm_uses.step, llm_uses.role, llm_uses.sample, llm_uses.attempt "
        "LIMIT ? OFFSET ?",
        [4 * _EXCERPT, run_id, problem, problem, limit, offset],
    )
    # A reply may contain invalid UTF-8, which SQLite does not return as text. A character has four bytes at most.
    return [{**row, "excerpt": row["excerpt"].decode("utf-8", "replace")[:_EXCERPT]} for row in rows]
