"""Results on one shape variant never mix with those on another, and a store from before there was a choice works."""

from __future__ import annotations

import sqlite3

import pytest
from sqlite_utils import Database

from kernelwright.errors import StoreError, UsageError
from kernelwright.records import InputGenerator, InputPattern, ProblemMeta
from kernelwright.records.verdicts import TimedVariant
from kernelwright.store import Store
from kernelwright.store._migrations import MIGRATIONS

META = ProblemMeta(variants={"cpu": ({"ROWS": 64}, {"ROWS": 7}, {"ROWS": 1}), "gpu": ({"ROWS": 4096},)})


@pytest.fixture
def problem(make):
    return make.problem().model_copy(update={"meta": META})


def judged_on(make, problem, source="kernel", **more):
    candidate = make.candidate(source, problem_id=problem.id)
    said = TimedVariant(number=problem.variant, inputs=(f"x float32[{problem.meta.variants_for('cpu')[0]['ROWS']}]",))
    return make.evaluation(candidate=candidate, variant=said, **more)


def test_a_variant_comes_first_and_has_an_id_of_its_own(problem):
    third = problem.at_variant(2)
    assert third.id == f"{problem.id}@2"
    assert [v["ROWS"] for v in third.meta.variants_for("cpu")] == [1, 64, 7]
    assert third.meta.variants_for("gpu") == problem.meta.variants_for("gpu")
    assert third.declared == third.at_variant(0) == problem
    assert third.at_variant(1) == problem.at_variant(1)
    assert problem.at_variant(0) is problem


def test_each_variant_has_a_board_of_its_own(store, make, problem):
    other = problem.at_variant(1)
    for one, low in ((problem, 1.5), (other, 1.1)):
        store.record_problem(one)
        store.record_evaluation(judged_on(make, one, low=low, confirmed=True))
    rows = {row.problem: row for row in store.best()}
    assert {name: (row.variant, row.inputs, row.speedup.low) for name, row in rows.items()} == {
        problem.id: (0, "x float32[64]", 1.5),
        other.id: (1, "x float32[7]", 1.1),
    }
    assert [row["variant"] for row in store.query("SELECT variant FROM best_per_problem ORDER BY problem")] == [0, 1]
    sha256 = make.candidate().sha256
    found = store.find_evaluation(candidate=sha256, problem=other.id)
    assert found is not None
    assert found.verdict.variant.number == 1
    assert store.problem(other.id) == other
    assert [one.id for one in store.variants_of(other)] == [problem.id, other.id]
    assert store.check().ok


def test_variants_of_a_changed_file_are_none_of_the_problem(store, make, problem):
    store.record_problem(problem.at_variant(1))
    changed = problem.model_copy(update={"source": "class Model: 'other'\n"})
    store.record_problem(changed)
    assert store.variants_of(changed) == (changed,)


def test_a_kernel_of_several_variants_is_found_by_its_hash(store, make, problem):
    for one in (problem.at_variant(1), problem, problem.at_variant(2)):
        store.record_problem(one)
        store.record_evaluation(judged_on(make, one))
    prefix = make.candidate().sha256[:10]
    assert store.candidate(prefix).problem_id == problem.id
    assert store.candidate(prefix, problem=f"{problem.id}@2").problem_id == f"{problem.id}@2"
    store.record_problem(make.problem("relu"))
    store.record_evaluation(make.evaluation(candidate=make.candidate(problem_id="suite/level1/relu")))
    with pytest.raises(UsageError, match="several kernels"):
        store.candidate(prefix)


def test_a_verdict_on_another_variant_is_refused(store, make, problem):
    store.record_problem(problem)
    wrong = make.evaluation(variant=TimedVariant(number=1))
    with pytest.raises(StoreError, match="about variant '1'"):
        store.record_evaluation(wrong)
    assert store.evaluations() == []


def test_the_archive_is_the_same_for_every_variant(store, problem):
    generator = InputGenerator(inputs={"x": InputPattern(kind="ties")})
    assert store.add_generators(problem.at_variant(1), [generator], author="offline", evidence={}) == 1
    assert store.archive(problem) == store.archive(problem.at_variant(2)) == (generator,)
    assert store.add_generators(problem, [generator], author="offline", evidence={}) == 0


def test_languages_are_ranked_apart(store, make):
    store.record_evaluation(make.evaluation("a", low=2.0))
    store.record_evaluation(make.evaluation(candidate=make.candidate("b", backend="triton"), low=1.2))
    assert [(row.backend, row.speedup.low) for row in store.best()] == [("cpp", 2.0), ("triton", 1.2)]


def test_a_store_from_before_variants_keeps_its_board(tmp_path, make):
    with Store.open(tmp_path / "now.db") as store:
        store.record_problem(make.problem())
        store.record_evaluation(make.evaluation("a", low=1.7))
    old = tmp_path / "old.db"
    made_as_it_was(tmp_path / "now.db", old)
    with Store.open(old) as store:
        (row,) = store.best()
        assert (row.variant, row.inputs, row.speedup.low) == (0, "", 1.7)
        assert store.evaluations()[0].verdict.variant is None
        assert store.problem(make.problem().id) == make.problem()
        store.record_problem(make.problem())
        store.record_evaluation(make.evaluation("b", low=1.9, variant=TimedVariant(inputs=("x float32[8]",))))
        assert [(row.inputs, row.speedup.low) for row in store.best()] == [("x float32[8]", 1.9)]
        assert store.check().ok


def made_as_it_was(now, old):
    """A store with the schema of before, with the same rows."""
    before = Database(old)
    MIGRATIONS.apply(before, stop_before="m009_variants")
    before.conn.close()
    with sqlite3.connect(old) as database:
        database.execute("ATTACH ? AS now", [str(now)])
        tables = [
            name
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if not name.startswith(("sqlite_", "_sqlite", "sources_fts", "notes_fts"))
        ]
        database.execute("PRAGMA defer_foreign_keys = ON")
        for table in tables:
            columns = ", ".join(row[1] for row in database.execute(f"PRAGMA main.table_info({table})"))
            database.execute(f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM now.{table}")
        database.execute("DROP TRIGGER evaluations_refuse_update")
        database.execute("UPDATE main.evaluations SET verdict_json = json_remove(verdict_json, '$.variant')")
        database.execute(
            "CREATE TRIGGER evaluations_refuse_update BEFORE UPDATE ON evaluations "
            "BEGIN SELECT RAISE(ABORT, 'evaluations is append-only'); END"
        )
    database.close()
