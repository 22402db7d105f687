"""What a merge brings: each table of evidence, by what a row is known in every store, and what must agree then."""

from __future__ import annotations

from typing import NamedTuple

# Written by the triggers on the evidence, in a merge as in any other transaction.
DERIVED_TABLES = frozenset({"rulings", "standings", "improvements", "tallies", "refusals"})


# For the process that goes on with a run; another store's copy of it would be of another moment than its evidence.
OWN_TABLES = frozenset({"steps"})


class Kind(NamedTuple):
    """One table.

    Attributes:
        key: the columns by which a row is known in every store: a hash of its content, or an id unique over machines.
        local: columns that may differ between stores, because they say when or how a row came into one of them.
        part_of_evaluation: its rows come with their evaluation, and are compared only if both stores have some of them.
    """

    table: str
    key: tuple[str, ...]
    local: tuple[str, ...] = ()
    part_of_evaluation: bool = False


CLOSING = ("state", "outcome", "tokens", "cost_usd", "call_id", "updated_at")  # what changes when a request is closed
KINDS = (
    Kind("blobs", ("sha256",), ("id", "kind", "size_bytes", "content", "created_at")),
    Kind("removed", ("sha256",), ("created_at",)),
    Kind("environments", ("id",), ("record_json", "created_at")),
    Kind("problems", ("version",), ("meta_json", "path", "created_at")),
    Kind("generators", ("problem_version", "id"), ("author", "evidence_json", "created_at")),
    Kind("runs", ("id",), ("config_json", "status", "seconds", "updated_at")),
    Kind("run_problems", ("run_id", "problem"), ("state", "detail", "updated_at")),
    Kind("current_problems", ("problem",), ("version",)),
    Kind("sources", ("sha256",), ("id",)),
    Kind(
        "candidates",
        ("sha256", "problem"),
        ("id", "knobs_json", "parents_json", "operator", "author", "prompt_sha256", "note", "created_at"),
    ),
    Kind("lineage", ("child", "parent", "relation", "problem")),
    Kind("evaluations", ("id",)),
    Kind("speedups", ("evaluation_id", "baseline"), part_of_evaluation=True),
    Kind("timing_samples", ("evaluation_id", "number"), part_of_evaluation=True),
    Kind("profiles", ("evaluation_id",), part_of_evaluation=True),
    Kind("artifacts", ("evaluation_id", "name"), part_of_evaluation=True),
    Kind("quarantines", ("id",)),
    Kind("samples", ("run_id", "problem", "number"), ("created_at",)),
    Kind("llm_calls", ("id",)),
    Kind("llm_requests", ("id",)),
    Kind("llm_uses", ("run_id", "problem", "step", "role", "sample", "attempt"), ("created_at",)),
    Kind("notes", ("id",), ("number",)),
    Kind("events", ("id",)),
)
BY_TABLE = {kind.table: kind for kind in KINDS}
