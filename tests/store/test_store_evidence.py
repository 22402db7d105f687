"""What is written comes back exactly, and never changes."""

from __future__ import annotations

import math
import sqlite3

import pytest

from kernelwright.errors import StoreError, UsageError
from kernelwright.records import (
    Advice,
    Correctness,
    Finding,
    InputDomain,
    LLMCall,
    Problem,
    ProblemMeta,
    RunConfig,
    Status,
    sha256_text,
)


def call(cost: float | None = 0.5) -> LLMCall:
    return LLMCall(
        role="coder",
        provider="openai",
        model="m",
        prompt_sha256=sha256_text("p"),
        reply_sha256=sha256_text("r"),
        input_tokens=10,
        output_tokens=None,
        cost_usd=cost,
        seconds=1.5,
    )


def test_a_full_evaluation_comes_back_exactly(store, make):
    given = make.evaluation(
        candidate=make.candidate(
            "source\0with nul ☃",
            knobs={"FAST": True, "BLOCK": 64, "SCALE": 1.0, "MODE": "x"},
            parents=("a" * 64, "b" * 64),
            operator="knob",
            author="offline",
            prompt_sha256=sha256_text("prompt"),
            note="rationale",
        ),
        baselines=("eager", "compile"),
        samples=250,
        artifacts={"compiler": "warning: ☃", "empty": ""},
        profile=make.profile(),
        correctness=Correctness(
            trials=1, variants=1, check_set="c", max_error=math.inf, error_budget=4.0, kernelbench_allclose=False
        ),
        findings=(Finding(rule="r", effect="informs", evidence="<b>"),),
        seconds={"build": 0.25},
        sandbox=("bwrap", "seccomp"),
        own_kernel_share=0.75,
    )
    stored = store.evaluation(store.record_evaluation(given, step=3, generation=2))
    assert stored.evaluation == given
    assert stored.candidate.sha256 == given.candidate.sha256
    assert stored.environment.id == given.environment.id
    assert (stored.step, stored.generation, stored.run_id, stored.quarantined) == (3, 2, None, None)
    assert store.samples(stored.id) == given.samples
    assert store.artifacts(stored.id) == given.artifacts


def test_nan_survives(store, make):
    nan = Correctness(
        trials=1, variants=1, check_set="c", max_error=math.nan, error_budget=4.0, kernelbench_allclose=False
    )
    given = make.evaluation(status=Status.INCORRECT_NUMERICAL, correctness=nan)
    back = store.evaluation(store.record_evaluation(given))
    assert math.isnan(back.verdict.correctness.max_error)


def test_listings_leave_the_bulk_out(store, make):
    store.record_evaluation(make.evaluation(artifacts={"log": "x"}))
    (listed,) = store.evaluations()
    assert listed.evaluation.samples == ()
    assert listed.evaluation.artifacts == {}
    assert listed.verdict == make.evaluation().verdict


def test_a_rerun_is_a_new_row_of_the_same_candidate(store, make):
    first, second = (store.record_evaluation(make.evaluation()) for _ in range(2))
    assert first < second
    assert [item.id for item in store.evaluations()] == [first, second]
    assert store.query("SELECT count(*) AS n FROM candidates") == [{"n": 1}]
    assert store.query("SELECT count(*) AS n FROM blobs WHERE kind = 'source'") == [{"n": 1}]


def test_knobs_make_another_candidate_of_the_same_source(store, make):
    for unroll in (1, 2):
        store.record_evaluation(make.evaluation(candidate=make.candidate(knobs={"UNROLL": unroll})))
    assert store.query("SELECT count(*) AS n FROM candidates") == [{"n": 2}]
    assert store.query("SELECT count(*) AS n FROM sources") == [{"n": 1}]


@pytest.mark.parametrize(
    ("field", "value"), [("candidate", "0" * 64), ("problem", "other"), ("backend", "triton"), ("environment", "e")]
)
def test_metrics_never_belong_to_another_kernel(store, make, field, value):
    evaluation = make.evaluation()
    wrong = evaluation.model_copy(update={"verdict": evaluation.verdict.model_copy(update={field: value})})
    with pytest.raises(StoreError) as caught:
        store.record_evaluation(wrong)
    assert caught.value.data["field"] == field
    assert store.evaluations() == []


def test_an_evaluation_is_written_whole_or_not_at_all(store, make):
    before = store.query("SELECT (SELECT count(*) FROM blobs) AS b, (SELECT count(*) FROM candidates) AS c")
    with pytest.raises(StoreError, match="refused a row"):
        store.record_evaluation(make.evaluation(artifacts={"log": "x"}), run_id="no such run")
    with pytest.raises(StoreError, match="was not recorded"):
        store.record_evaluation(make.evaluation(candidate=make.candidate(problem_id="unknown")))
    assert store.query("SELECT (SELECT count(*) FROM blobs) AS b, (SELECT count(*) FROM candidates) AS c") == before


EVIDENCE = [
    "artifacts",
    "blobs",
    "candidates",
    "environments",
    "evaluations",
    "events",
    "lineage",
    "llm_calls",
    "notes",
    "problems",
    "profiles",
    "quarantines",
    "sources",
    "speedups",
    "timing_samples",
]


def test_evidence_is_append_only(store, store_path, make):
    candidate = make.candidate(parents=("a" * 64,))
    evaluation = make.evaluation(candidate=candidate, artifacts={"log": "x"}, profile=make.profile())
    evaluation_id = store.record_evaluation(evaluation, llm_calls=[call()])
    store.add_note(candidate.sha256, evaluation_id, "judge", Advice(mode="stop", bottleneck="b", method="m", plan="p"))
    store.quarantine(evaluation_id, "too good")
    store.event(None, "started", {})
    other = sqlite3.connect(store_path)
    for table in EVIDENCE:
        assert other.execute(f"SELECT count(*) FROM {table}").fetchone()[0], table
        column = other.execute(f"SELECT name FROM pragma_table_info('{table}')").fetchone()[0]
        for statement in (f"UPDATE {table} SET {column} = {column}", f"DELETE FROM {table}"):
            with pytest.raises(sqlite3.IntegrityError, match=f"{table} is append-only"):
                other.execute(statement)
    other.close()


def test_tables_are_strict_and_keys_are_enforced(store):
    tables = store.query("SELECT name, strict FROM pragma_table_list WHERE type = 'table' AND schema = 'main'")
    loose = {row["name"] for row in tables if not row["strict"]}
    assert {name for name in loose if not name.startswith(("sqlite_", "_sqlite_"))} == set()
    assert store.query("PRAGMA foreign_keys") == [{"foreign_keys": 1}]
    assert store.query("PRAGMA journal_mode") == [{"journal_mode": "wal"}]
    assert store.query("PRAGMA synchronous") == [{"synchronous": 1}]


def test_queries_of_others_cannot_write(store):
    with pytest.raises(StoreError, match="cannot be written"):
        store.query("UPDATE current_problems SET version = 'x'")
    store.event(None, "still writable", {})


def test_blobs_are_named_by_content(store):
    first = store.put_blob("text ☃", "prompt")
    assert first == sha256_text("text ☃") == store.put_blob("text ☃".encode(), "other")
    assert store.get_blob(first) == "text ☃".encode()
    assert store.get_text(first) == "text ☃"
    assert store.get_text(store.put_blob("lone \ud800 surrogate", "reply")) == "lone \ud800 surrogate"
    with pytest.raises(UsageError):
        store.get_blob("0" * 64)


def test_candidate_is_found_by_a_unique_prefix(store, make):
    candidate = make.candidate(knobs={"A": 1})
    store.record_evaluation(make.evaluation(candidate=candidate))
    assert store.candidate(candidate.sha256[:6]) == candidate
    assert store.candidate(candidate.sha256.upper()) == candidate
    for bad in ("abc", "zzzzzz", "%%%%%%", ""):
        with pytest.raises(UsageError, match="not a kernel hash"):
            store.candidate(bad)
    absent = "0" * 12 if candidate.sha256[0] != "0" else "f" * 12
    with pytest.raises(UsageError, match="no kernel"):
        store.candidate(absent)


def test_an_ambiguous_prefix_lists_its_matches(store, make):
    store.record_problem(make.problem("relu"))
    one, two = make.candidate(), make.candidate(problem_id="suite/level1/relu")
    store.record_candidate(one), store.record_candidate(two)
    with pytest.raises(UsageError) as caught:
        store.candidate(one.sha256)
    assert len(caught.value.data["matches"]) == 2
    assert store.candidate(one.sha256, problem="suite/level1/relu") == two


def test_lineage_has_many_parents_and_survives_circles(store, make):
    a, b = make.candidate("a"), make.candidate("b")
    c = make.candidate("c", parents=(a.sha256, b.sha256), operator="merge")
    d = make.candidate("d", parents=(c.sha256,), operator="improve")
    for candidate in (a, b, c, d, make.candidate("a", parents=(d.sha256,), operator="knob")):
        store.record_candidate(candidate)
    edges = store.lineage(d.sha256)
    assert [(edge.child, edge.parent, edge.relation, edge.depth) for edge in edges] == [
        (d.sha256, c.sha256, "improve", 1),
        *sorted([(c.sha256, a.sha256, "merge", 2), (c.sha256, b.sha256, "merge", 2)]),
        (a.sha256, d.sha256, "knob", 3),
    ]
    assert store.candidate(c.sha256) == c
    assert store.candidate(a.sha256).parents == ()


def test_search_finds_sources_and_notes(store, make):
    fast = make.candidate("float row_max(const float* x) { return _mm256_max_ps(x); }", knobs={"U": 1})
    store.record_evaluation(make.evaluation(candidate=fast))
    store.record_evaluation(make.evaluation("something else"))
    advice = Advice(mode="optimise", bottleneck="memory", method="fuse the epilogue", plan="one pass", action={"k": 1})
    store.add_note(fast.sha256, None, "judge", advice)
    (hit,) = store.search("_mm256_max_ps row_max")
    assert (hit.kind, hit.candidate, hit.problem) == ("source", fast.sha256, "suite/level1/softmax")
    assert "_mm256_max_ps" in hit.excerpt
    (hit,) = store.search("epilogue")
    assert (hit.kind, hit.candidate, hit.problem) == ("note", fast.sha256, "suite/level1/softmax")
    (note,) = store.notes(candidate=fast.sha256)
    assert (note.advice, note.role) == (advice, "judge")


@pytest.mark.parametrize("text", ["", "   ", '"', "AND OR NOT", "a* ^b (c", "x) OR (y", "kernel -other:"])
def test_search_takes_any_text(store, make, text):
    store.record_evaluation(make.evaluation())
    assert isinstance(store.search(text), list)


def test_problems_are_versioned_by_content(store, make):
    domain = ProblemMeta(inputs={"x": InputDomain(fill="normal")}, variants={"cpu": ({"N": 4},)})
    given = Problem(**(make.problem().model_dump() | {"meta": domain, "path": "/some/where.py"}))
    version = store.record_problem(given)
    assert store.record_problem(given) == version
    assert store.problem(given.id) == given
    assert store.problem(given.id).meta.inputs["x"].high == math.inf
    first = store.record_problem(make.problem())
    assert first != version
    assert store.problem(given.id) == make.problem()
    assert store.problem(given.id, version=version) == given
    with pytest.raises(UsageError):
        store.problem("unknown")


def test_llm_calls_come_back_and_unknown_cost_stays_unknown(store, make):
    run_id = store.create_run(RunConfig(problems=("suite/level1/softmax",)), [make.problem()])
    evaluation_id = store.record_evaluation(make.evaluation(), run_id=run_id, step=1, llm_calls=[call(0.5)])
    (stored,) = store.llm_calls(evaluation_id=evaluation_id)
    assert (stored.call, stored.run_id, stored.step) == (call(0.5), run_id, 1)
    assert store.run_costs(run_id).cost_usd == 0.5
    store.record_llm_calls([call(None)], run_id=run_id)
    costs = store.run_costs(run_id)
    assert costs.cost_usd is None
    assert (costs.known_cost_usd, costs.calls_of_unknown_cost) == (0.5, 1)
    assert (costs.calls, costs.input_tokens, costs.output_tokens, costs.evaluations) == (2, 20, 0, 1)
    assert len(store.llm_calls(run_id=run_id)) == 2


def test_an_unknown_evaluation_is_a_usage_error(store):
    with pytest.raises(UsageError):
        store.evaluation("nothing")
    with pytest.raises(UsageError):
        store.quarantine("nothing", "reason")
    with pytest.raises(UsageError, match="reason"):
        store.quarantine("nothing", "")


def test_a_run_goes_on_to_more_problems(store, make):
    first, second = make.problem(), make.problem("gelu")
    run_id = store.create_run(RunConfig(problems=()), [])
    for problem in (first, second, first):
        store.add_run_problem(run_id, problem)
    assert [state.problem for state in store.problem_states(run_id)] == [first.id, second.id]
    assert store.run(run_id).config.problems == (first.id, second.id)
    with pytest.raises(UsageError, match="no run"):
        store.add_run_problem("0" * 26, first)


def test_finding_an_evaluation_costs_the_same_in_a_long_run(store, make):
    problem = make.problem()
    store.record_problem(problem)
    run = store.create_run(RunConfig(problems=(problem.id,)), [problem])
    worked = {}
    for number in range(240):
        store.record_evaluation(make.evaluation(f"kernel {number}", samples=0), run_id=run)
        if number in (20, 239):
            steps = []
            with store._connection.raw() as database:
                database.conn.set_progress_handler(lambda steps=steps: steps.append(None), 1)
            sha256 = make.candidate(f"kernel {number // 2}").sha256
            assert store.find_evaluation(candidate=sha256, problem=problem.id, run_id=run, confirmed=False)
            with store._connection.raw() as database:
                database.conn.set_progress_handler(None, 1)
            worked[number] = len(steps)
    assert worked[239] < 1.2 * worked[20]
