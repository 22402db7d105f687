"""What pages share of a store's answers: asked for once, and anew as soon as something was written."""

from __future__ import annotations

import sqlite3

import pytest

from kernelwright.leaderboard._cache import Version
from kernelwright.leaderboard._reader import Answers, PageStore, Reader
from kernelwright.store import Store


@pytest.fixture
def asked(monkeypatch):
    """How often which method of a store was asked."""
    seen = []

    def counted(name, method):
        return lambda self, *words, **named: seen.append(name) or method(self, *words, **named)

    for name in ("board_places", "problems_in_use", "refusal_rules", "entrants", "progress", "tallies"):
        monkeypatch.setattr(Store, name, counted(name, getattr(Store, name)))
    return seen


@pytest.fixture
def reader(world):
    version = Version(world.path)
    made = Reader(world.path, version)
    yield made
    made.close()
    version.close()


def asks(store, environment):
    return [
        store.board_places(),
        store.problems_in_use(),
        store.refusal_rules(),
        store.entrants(environment, "eager"),
        store.entrants(environment, "eager", backend="cpp", until="2026-01-01"),
        store.progress(environment, "eager"),
        store.tallies(environment=environment),
        store.tallies(),
    ]


def test_a_question_is_asked_once_until_something_is_written(world, reader, asked):
    world.judge(world.problem("first"))
    with Store.open(world.path, readonly=True) as plain:
        environment = plain.board_places()[0]["environment"]
        expected = asks(plain, environment)
        asked.clear()
        assert [asks(reader.store, environment) for _ in range(3)] == [expected] * 3
        assert len(asked) == len(expected)  # each with its own words is one of its own
        world.judge(world.problem("second"))
        after = asks(reader.store, environment)
        assert after == asks(plain, environment) != expected


def test_without_a_version_every_page_asks_the_store(world, asked):
    reader = Reader(world.path)
    assert type(reader.store) is Store
    for _ in range(2):
        reader.store.board_places()
    assert asked == ["board_places", "board_places"]
    reader.close()


def test_a_store_that_cannot_say_its_version_is_asked(world):
    def broken():
        raise sqlite3.OperationalError("locked")

    reader = Reader(world.path, broken)
    assert isinstance(reader.store, PageStore)
    assert reader.store.problems_in_use() == []
    reader.close()


def test_no_more_rows_are_kept_than_there_is_room_for():
    asked = []

    def rows(name, count):
        return answers.get(name, lambda: asked.append(name) or [{"n": n} for n in range(count)])

    answers = Answers(lambda: 1, most_rows=10)
    rows("a", 4), rows("b", 4), rows("a", 4), rows("c", 4)  # b was used longest ago
    rows("a", 4), rows("c", 4)
    assert asked == ["a", "b", "c"]
    rows("b", 4), rows("huge", 11), rows("huge", 11)
    assert asked == ["a", "b", "c", "b", "huge", "huge"]
