"""A problem's archive of input generators: append-only, by the problem's version."""

from __future__ import annotations

import sqlite3

import pytest

from kernelwright.records import InputGenerator, InputPattern
from kernelwright.store import Store

TIES = InputGenerator(inputs={"x": InputPattern(kind="ties", count=2)})
SPARSE = InputGenerator(inputs={"x": InputPattern(kind="sparse", magnitude=-3.5, place="last")})


@pytest.fixture
def store(store_path):
    with Store.open(store_path) as opened:
        yield opened


def test_generators_come_back_as_they_were_given(store, make):
    evidence = {TIES.id: {"catches": ["tie-of-two of 123"]}}
    assert store.add_generators(make.problem(), [TIES, SPARSE], author="offline", evidence=evidence) == 2
    assert set(store.archive(make.problem())) == {TIES, SPARSE}
    found = {row.generator: row for row in store.archived(make.problem())}
    assert found[TIES].evidence == evidence[TIES.id]
    assert found[SPARSE].evidence == {}
    assert {row.author for row in found.values()} == {"offline"}
    assert all(row.created_at for row in found.values())


def test_the_same_generator_is_kept_once(store, make):
    assert store.add_generators(make.problem(), [TIES], author="offline", evidence={}) == 1
    assert store.add_generators(make.problem(), [SPARSE, TIES, SPARSE], author="user", evidence={}) == 1
    assert len(store.archive(make.problem())) == 2
    assert {row.generator: row.author for row in store.archived(make.problem())}[TIES] == "offline"


def test_another_version_of_a_problem_has_an_archive_of_its_own(store, make):
    store.add_generators(make.problem(), [TIES], author="offline", evidence={})
    changed = make.problem(source="class Model: 1\n")
    assert store.archive(changed) == ()
    store.add_generators(changed, [SPARSE], author="offline", evidence={})
    assert store.archive(make.problem()) == (TIES,)
    assert store.archive(changed) == (SPARSE,)
    assert store.archive(make.problem("other")) == ()


def test_a_problems_place_is_no_part_of_its_version(store, make):
    store.add_generators(make.problem(), [TIES], author="offline", evidence={})
    moved = make.problem().model_copy(update={"path": "/elsewhere/softmax.py"})
    assert store.archive(moved) == (TIES,)


@pytest.mark.parametrize("change", ["UPDATE generators SET author = 'other'", "DELETE FROM generators"])
def test_no_generator_is_changed_or_removed(store_path, make, change):
    with Store.open(store_path) as store:
        store.add_generators(make.problem(), [TIES], author="offline", evidence={})
    with sqlite3.connect(store_path) as other, pytest.raises(sqlite3.IntegrityError, match="append-only"):
        other.execute(change)
    other.close()
