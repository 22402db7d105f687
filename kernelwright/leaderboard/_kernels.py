"""The data of a kernel's page: its origin, its verdicts, its profile, and the advice and replies that led to it."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from kernelwright.errors import UsageError
from kernelwright.leaderboard._cells import path_of
from kernelwright.plots import Ceiling, Node, Series, histogram, lineage, roofline
from kernelwright.records import Candidate, Profile, Verdict
from kernelwright.store import Note, Store, StoredEvaluation

_ANCESTORS = 4  # generations that are drawn
_WIDEST = 6  # kernels of a generation that are drawn
_CHILDREN = 6
_REPLY_CHARS = 6_000
_OF_ROOFLINE = ("arithmetic_intensity", "gflops", "gbytes_per_s", "time_memory_ms", "time_compute_ms")
_METRICS = {
    "arithmetic_intensity": "operations per byte",
    "gflops": "GFLOP/s",
    "gbytes_per_s": "GB/s",
    "time_memory_ms": "ms for its necessary memory traffic at the machine's bandwidth",
    "time_compute_ms": "ms for its arithmetic at the machine's peak",
    "time_instructions_ms": "ms for issuing its instructions",
    "overhead_ms": "ms of calls",
    "expected_us": "µs a forward that a model of an H100 expects; not measured",
    "distance_to_roofline": "times slower than the roofline allows",
    "instructions_per_call": "instructions a call",
    "instructions_per_flop": "instructions for each floating-point operation",
    "traffic_ratio": "bytes moved / necessary bytes, from cold caches",
    "l1_misses_per_call": "first-level cache misses a call",
    "llc_misses_per_call": "last-level cache misses a call",
    "data_reads_per_call": "reads of memory a call",
    "data_writes_per_call": "writes of memory a call",
    "branches_per_call": "branches a call",
    "branch_misses_per_call": "mispredicted branches a call",
    "stack_accesses": "reads and writes of the stack in its inner loops",
    "vector_bytes": "bytes of vectors that the compiler chose",
    "code_bytes": "bytes of machine code",
    "vector_bits": "bits of its widest vectors",
    "vectorised_loops": "loops that the compiler vectorised",
    "missed_loops": "loops that the compiler did not vectorise",
    "explicit_vector_loops": "loops written with vector types",
    "kernel_calls": "calls of own kernels in one forward",
    "own_share": "share of the time in own kernels",
}


class Lead(NamedTuple):
    """The Judge's advice on a kernel's parents, and the model's replies that wrote the kernel, with prompts."""

    notes: Sequence[Note]
    replies: Sequence[Mapping[str, Any]]


def find(
    store: Store, sha: str, problem: str | None, evaluation: str | None
) -> tuple[Candidate, StoredEvaluation | None]:
    """A kernel and the evaluation to show: the given one, else the one that decides its place.

    Raises:
        UsageError: no such kernel or evaluation exists, or the prefix fits several kernels.
    """
    if evaluation:
        shown = store.evaluation(evaluation)
        if not shown.candidate.sha256.startswith(sha):
            raise UsageError("that evaluation is of another kernel")
        return shown.candidate, shown
    try:
        candidate = store.candidate(sha, problem=problem or None)
    except UsageError:
        rows = store.query("SELECT problem FROM candidates WHERE sha256 = ? ORDER BY problem", [sha])
        if problem or not rows:
            raise
        candidate = store.candidate(sha, problem=rows[0]["problem"])
    rows = store.query(
        "SELECT rulings.evaluation_id AS id FROM rulings JOIN candidates ON candidates.id = rulings.candidate_id "
        "WHERE candidates.sha256 = ? AND candidates.problem = ? ORDER BY decisive DESC, rulings.evaluation_id DESC",
        [candidate.sha256, candidate.problem_id],
    ) or store.query(
        "SELECT evaluations.id AS id FROM evaluations JOIN candidates ON candidates.id = evaluations.candidate_id "
        "WHERE candidates.sha256 = ? AND candidates.problem = ? ORDER BY evaluations.id DESC LIMIT 1",
        [candidate.sha256, candidate.problem_id],
    )
    return candidate, store.evaluation(rows[0]["id"]) if rows else None


def commands(candidate: Candidate, store_name: str) -> dict[str, str]:
    """The commands that show, verify and export a kernel."""
    words = ["-p", candidate.problem_id, "--store", store_name]
    named = " ".join(map(shlex.quote, [candidate.sha256[:16], *words]))
    return {
        "verify": f"kernelwright kernels verify {named}",
        "show": f"kernelwright kernels show {named}",
        "export": f"kernelwright kernels export {named} -o kernel.py",
    }


def metric_rows(profile: Profile | None) -> list[dict[str, Any]]:
    """A profile's figures with their meanings; figures without a known meaning come last."""
    if profile is None:
        return []
    known = [name for name in _METRICS if name in profile.metrics]
    rest = sorted(set(profile.metrics) - set(known))
    return [
        {"metric": name, "value": profile.metrics[name], "meaning": _METRICS.get(name, "")} for name in [*known, *rest]
    ]


def roofline_of(verdict: Verdict) -> Any:
    """The roofline plot of a kernel; empty if its profile lacks the figures."""
    profile, timing = verdict.profile, verdict.timing
    if profile is None or timing is None or not _has(profile, *_OF_ROOFLINE):
        return ""
    found = profile.metrics
    latency = timing.latency_ms.median
    ceiling = Ceiling(
        gflop_s=found["gflops"] * latency / found["time_compute_ms"],
        gb_s=found["gbytes_per_s"] * latency / found["time_memory_ms"],
    )
    return Markup(roofline(found["arithmetic_intensity"], found["gflops"], ceiling, "Roofline"))


def bandwidth_of(verdict: Verdict) -> tuple[float, float] | None:
    """The GB/s that a kernel reaches, and the machine's maximum; None if unknown.

    For a kernel without floating-point operations, this is all that a roofline shows.
    """
    profile, timing = verdict.profile, verdict.timing
    if profile is None or timing is None or not _has(profile, "gbytes_per_s", "time_memory_ms"):
        return None
    rate = profile.metrics["gbytes_per_s"]
    return rate, rate * timing.latency_ms.median / profile.metrics["time_memory_ms"]


def _has(profile: Profile, *names: str) -> bool:
    return all(profile.metrics.get(name, 0.0) > 0 for name in names)


def timing_plot(shown: StoredEvaluation) -> Any:
    """A histogram of the latencies of all timed windows, by candidate and baselines."""
    samples: dict[str, list[float]] = defaultdict(list)
    for sample in shown.evaluation.samples:
        samples[sample.role].append(sample.latency_ms)
    ordered = sorted(samples, key=lambda role: (role != "candidate", role))
    series = [Series(role, samples[role]) for role in ordered]
    return Markup(histogram(series, "latency in ms, mean of a window of calls", "Timing samples", log=True))


def family(store: Store, candidate: Candidate) -> tuple[Any, list[Candidate]]:
    """The drawing of a kernel's ancestors and children, and its ancestors, the nearest first."""
    edges = store.lineage(candidate.sha256)
    levels: dict[str, int] = {candidate.sha256: 0}
    for edge in edges:
        levels.setdefault(edge.parent, edge.depth)
    children = store.query(
        "SELECT DISTINCT child, parent FROM lineage WHERE parent = ? AND problem = ? AND child <> ? "
        "ORDER BY child LIMIT ?",
        [candidate.sha256, candidate.problem_id, candidate.sha256, _CHILDREN],
    )
    below = [row["child"] for row in children if row["child"] not in levels]
    near = [sha for sha, depth in levels.items() if depth <= _ANCESTORS]
    told = _told(store, [*near, *below], candidate.problem_id)
    rows: list[list[Node]] = []
    for depth in range(_ANCESTORS, -1, -1):
        here = [sha for sha in near if levels[sha] == depth][:_WIDEST]
        if here:
            rows.append([_node(sha, told.get(sha), candidate) for sha in here])
    if below:
        rows.append([_node(sha, told.get(sha), candidate) for sha in below])
    drawn = [(edge.parent, edge.child) for edge in edges] + [(row["parent"], row["child"]) for row in children]
    ancestors = []
    for sha in (sha for sha, depth in levels.items() if depth > 0):
        try:
            ancestors.append(store.candidate(sha, problem=candidate.problem_id))
        except UsageError:
            continue  # this ancestor was never judged here
        if len(ancestors) == 12:
            break
    return Markup(lineage(rows, drawn, "Lineage") if len(told) > 1 else ""), ancestors


def _told(store: Store, shas: Sequence[str], problem: str) -> dict[str, dict[str, Any]]:
    """By hash: a kernel's operator, speedups and latest status."""
    marks = ", ".join("?" * len(shas))
    rows = store.query(
        "SELECT candidates.sha256, candidates.operator, "
        "max(iif(standings.baseline = 'eager', standings.median, NULL)) AS eager, max(standings.median) AS most, "
        "(SELECT status FROM evaluations WHERE candidate_id = candidates.id ORDER BY id DESC LIMIT 1) AS status "
        "FROM candidates LEFT JOIN standings ON standings.candidate_id = candidates.id "
        f"WHERE candidates.problem = ? AND candidates.sha256 IN ({marks}) GROUP BY candidates.id",
        [problem, *shas],
    )
    return {row["sha256"]: row for row in rows}


def _node(sha: str, told: Mapping[str, Any] | None, shown: Candidate) -> Node:
    href = "" if told is None else f"{path_of('kernels', sha)}?problem={path_of(shown.problem_id)[1:]}"
    if told is None:
        return Node(sha, sha[:10], "", "not judged here", sha == shown.sha256)
    median = told["eager"] or told["most"]
    fared = str(told["status"] or "").lower() if median is None else f"{median:.2f}x"
    return Node(sha, f"{sha[:8]} {told['operator'][:9]}", href, fared, sha == shown.sha256)


def _written_at(store: Store, candidate: Candidate, run_id: str) -> int | None:
    """The step of a run at which a kernel was first judged. The reply that wrote it has the same step."""
    rows = store.query(
        "SELECT min(step) AS step FROM evaluations JOIN candidates ON candidates.id = candidate_id "
        "WHERE run_id = ? AND sha256 = ? AND problem = ?",
        [run_id, candidate.sha256, candidate.problem_id],
    )
    return None if rows[0]["step"] is None else int(rows[0]["step"])


def lead_of(store: Store, candidate: Candidate, shown: StoredEvaluation | None) -> Lead:
    """The advice and the replies that led to a kernel, in the run that judged it."""
    notes: list[Note] = []
    for parent in candidate.parents[:4]:
        notes += [n for n in store.notes(candidate=parent) if shown is None or n.run_id in (None, shown.run_id)]
    if shown is not None and shown.step is not None:
        notes = [note for note in notes if note.step is None or note.step <= shown.step]
    replies: list[dict[str, Any]] = []
    step = None if shown is None or shown.run_id is None else _written_at(store, candidate, shown.run_id)
    if shown is not None and step is not None:
        rows = store.query(
            "SELECT call_id, llm_uses.role, llm_uses.sample, llm_uses.attempt, llm_uses.prompt_sha256, reply_sha256, "
            "model, output_tokens, cost_usd FROM llm_uses JOIN llm_calls ON llm_calls.id = call_id "
            "WHERE llm_uses.run_id = ? AND llm_uses.problem = ? AND llm_uses.step = ? "
            "AND llm_uses.role NOT LIKE 'judge%' "
            "ORDER BY llm_uses.role, llm_uses.sample, llm_uses.attempt LIMIT 8",
            [shown.run_id, candidate.problem_id, step],
        )
        matching = [row for row in rows if row["prompt_sha256"] == candidate.prompt_sha256]
        for row in matching or rows:
            try:
                text = store.get_text(row["reply_sha256"])
            except UsageError:  # it was pruned
                continue
            replies.append({**row, "call": row, "text": text[:_REPLY_CHARS], "cut": len(text) > _REPLY_CHARS})
    return Lead(notes[-4:], replies)
