"""Samples: kept once each, in order, with or without a candidate, and never changed."""

from __future__ import annotations

import sqlite3

import pytest

from kernelwright.errors import StoreError, UsageError
from kernelwright.records import RunConfig
from kernelwright.store import Sample, Store


@pytest.fixture
def run(store, make):
    problems = [make.problem("softmax"), make.problem("gelu")]
    return store.create_run(RunConfig(problems=tuple(p.id for p in problems)), problems)


def sample(make, number, /, name="softmax", **fields):
    problem = f"suite/level1/{name}"
    candidate = make.candidate(f"kernel {number}", problem_id=problem)
    return Sample(**({"problem": problem, "number": number, "candidate": candidate} | fields))


def test_samples_come_back_as_they_were_in_the_order_of_problems_and_numbers(store, make, run):
    given = [
        sample(make, 1, "gelu"),
        sample(make, 2, candidate=None, reason="no code in the reply"),
        sample(make, 0, claimed={"runtime": 1.5, "metadata": {"a": [1, None]}}),
    ]
    for one in given:
        store.add_sample(run, one)
    assert store.run_samples(run) == [given[2], given[1], given[0]]
    assert store.run_samples(run, "suite/level1/gelu") == [given[0]]
    assert store.check().ok


def test_samples_of_equal_text_share_a_candidate(store, make, run):
    same = make.candidate("one text")
    for number in range(3):
        store.add_sample(run, sample(make, number, candidate=same))
    assert [found.candidate for found in store.run_samples(run)] == [same] * 3
    assert store.check().counts["candidates"] == 1


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"problem": "suite/level1/unknown"}, "has no problem"),
        ({"candidate": None}, "CHECK constraint"),
        ({"number": -1}, "CHECK constraint"),
    ],
)
def test_what_is_no_sample_is_refused_and_leaves_nothing(store, make, run, fields, said):
    with pytest.raises(StoreError, match=said):
        store.add_sample(run, sample(make, 0, **fields))
    assert store.run_samples(run) == []
    assert store.check().counts["candidates"] == 0


def test_a_sample_is_kept_once_and_never_changes(store, make, run):
    store.add_sample(run, sample(make, 0))
    with pytest.raises(StoreError):
        store.add_sample(run, sample(make, 0, candidate=make.candidate("another")))
    database = sqlite3.connect(store.path)
    for statement in ("UPDATE samples SET reason = 'x'", "DELETE FROM samples"):
        with pytest.raises(sqlite3.IntegrityError, match="samples is append-only"):
            database.execute(statement)
    database.close()
    with Store.open(store.path) as again:
        assert [found.candidate.source for found in again.run_samples(run)] == ["kernel 0"]


def bench(name):
    return RunConfig(problems=("suite/level1/softmax",), bench={"name": name})


def test_a_bench_begins_with_all_its_samples_or_not_at_all(store, make):
    problems = [make.problem("softmax")]
    made = store.create_bench(bench("mine"), problems, [sample(make, 0), sample(make, 3)])
    assert (store.run(made).status, len(store.run_samples(made))) == ("paused", 2)
    with pytest.raises(StoreError):
        store.create_bench(bench("broken"), problems, [sample(make, 0), sample(make, 0)])
    with pytest.raises(UsageError, match="has a bench 'mine' already"):
        store.create_bench(bench("mine"), problems)
    assert [run.id for run in store.runs()] == [made]
    assert store.run(store.create_bench(bench("broken"), problems)).config.bench == {"name": "broken"}


def test_a_note_makes_no_other_version_of_a_problem(store, make):
    problem = make.problem()
    version = store.record_problem(problem)
    noted = problem.model_copy(update={"meta": problem.meta.model_copy(update={"note": "why it is hard to game"})})
    assert store.record_problem(noted) == version
