"""Tables from which boards are read: after anything that can happen they are what the evidence says."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelwright.records import RunConfig, Status
from kernelwright.store import Store
from kernelwright.store._migrations import STEPS
from kernelwright.store._standings import DERIVED, REBUILD

HOW = {
    "confirm": {"confirmed": True},
    "library": {"eligible": False},
    "refuse": {"status": Status.REWARD_HACK},
    "ineligible": {"status": Status.INELIGIBLE, "eligible": False},
    "strict": {"status": Status.INELIGIBLE},
    "crash": {"status": Status.RUNTIME_ERROR},
    "control": {"control": True},
}
HAPPENINGS = st.lists(
    st.tuples(
        st.sampled_from("abc"),  # the kernel
        st.sampled_from(["search", "withdraw", "run", *HOW]),
        st.integers(1, 4),  # how fast
        st.sampled_from(["one", "two"]),  # the author
    ),
    max_size=14,
)

ENTRY = "environment_id, baseline, problem_version, backend, author, recipe, evaluation_id"
FIRST = """
SELECT * FROM (
    SELECT *, row_number() OVER (
        PARTITION BY environment_id, baseline, problem_version, backend, author, recipe ORDER BY rank
    ) AS place FROM ranking WHERE eligible
) WHERE place = 1"""


def texts(store, query) -> list[str]:
    return sorted(map(repr, store.query(query)))


def derived(store) -> dict[str, list[str]]:
    return {table: texts(store, query) for table, (query, _) in DERIVED.items()}


def happen(store, make, happenings) -> None:
    problem = make.problem()
    store.record_problem(problem)
    run: str | None = None
    recorded: list[str] = []
    for kernel, what, speed, author in happenings:
        if what == "run":
            run = store.create_run(RunConfig(problems=(problem.id,), recipe=f"recipe{speed}"), [problem])
            continue
        if what == "withdraw":
            if recorded:
                store.quarantine(recorded[speed % len(recorded)], "too good to be true")
            continue
        how = HOW.get(what, {})
        candidate = make.candidate(kernel, author=author)
        recorded.append(
            store.record_evaluation(make.evaluation(candidate=candidate, low=float(speed), **how), run_id=run)
        )


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(happenings=HAPPENINGS)
def test_what_triggers_keep_is_what_the_evidence_says(tmp_path_factory, make, happenings):
    with Store.open(tmp_path_factory.mktemp("store") / "store.db") as store:
        happen(store, make, happenings)
        assert store.check().damage == ()
        kept = derived(store)
        with store._connection.write():
            for statement in REBUILD:
                store._connection.execute(statement)
        assert derived(store) == kept
        for place in store.rankings_of(make.problem().id):
            shown = store.ranked(make.problem().id, place["environment"], place["baseline"], place["backend"])
            meant = store.query("SELECT evaluation_id, rank FROM leaderboard WHERE eligible ORDER BY rank")
            assert [(row["evaluation_id"], row["rank"]) for row in shown] == [tuple(row.values()) for row in meant]
        for row in store.query("SELECT *, count(*) OVER (PARTITION BY eligible) AS of FROM leaderboard"):
            place = (row["environment_id"], row["baseline"], row["backend"])
            found = store.rank_of(row["candidate"], row["problem"], *place)
            assert found == {"rank": row["rank"], "of": row["of"]}
        assert texts(store, f"SELECT {ENTRY} FROM best_per_entrant") == texts(store, f"SELECT {ENTRY} FROM ({FIRST})")


def steps_before(name):
    """The migrations that a store of an earlier version had, and the table that every writer asks."""
    from sqlite_utils import Migrations

    before = Migrations("kernelwright")
    names = [step.__name__ for step in STEPS]
    for step in (*STEPS[: names.index(name)], STEPS[names.index("m015_removed")]):
        before()(step)
    return before


def test_a_store_from_before_gets_its_tables_from_its_evidence(tmp_path, make, monkeypatch):
    from kernelwright.store import _connection

    before = steps_before("m012_standings")
    path = tmp_path / "store.db"
    with monkeypatch.context() as patch:
        patch.setattr(_connection, "MIGRATIONS", before)
        with Store.open(path) as store:
            happen(store, make, [("a", "search", 3, "one"), ("a", "confirm", 2, "one"), ("b", "search", 4, "two")])
            assert store.query("SELECT name FROM sqlite_master WHERE name = 'standings'") == []
    with Store.open(path) as store:
        assert store.check().ok
        assert [(row["author"], row["confirmed"]) for row in store.query("SELECT * FROM ranking ORDER BY rank")] == [
            ("one", 1),
            ("two", 0),
        ]


def test_recipes_of_a_store_from_before_lose_their_folders(tmp_path, make, monkeypatch):
    from kernelwright.store import _connection

    path, problem = tmp_path / "store.db", make.problem()
    with monkeypatch.context() as patch:
        patch.setattr(_connection, "MIGRATIONS", steps_before("m014_recipe_files"))
        with Store.open(path) as store:
            store.record_problem(problem)
            for number, recipe in enumerate(("/home/x/own/mine.toml", "recipes/other.toml", "default")):
                asked = RunConfig(problems=(problem.id,)).model_copy(update={"recipe": recipe})
                run = store.create_run(asked, [problem])
                store.record_evaluation(make.evaluation(candidate=make.candidate(str(number)), low=2.0), run_id=run)
    with Store.open(path) as store:
        assert store.check().ok
        shown = ["default", "mine.toml", "other.toml"]
        assert sorted(run.config.recipe for run in store.runs()) == shown
        assert sorted(row["recipe"] for row in store.query("SELECT recipe FROM ranking")) == shown
        assert sorted(row["recipe"] for row in store.query("SELECT recipe FROM tallies")) == shown


@pytest.mark.parametrize("table", sorted(DERIVED))
def test_a_check_sees_what_does_not_follow_from_the_evidence(tmp_path, make, table):
    path = tmp_path / "store.db"
    with Store.open(path) as store:
        happen(store, make, [("a", "search", 3, "one"), ("b", "refuse", 1, "one"), ("a", "confirm", 2, "one")])
        other = sqlite3.connect(path, isolation_level=None)
        if table == "standings":
            other.execute("DROP TRIGGER standings_fall")
        other.execute(f"DELETE FROM {table}")
        other.close()
        assert any(f"rows of {table} do not follow from the evidence" in line for line in store.check().damage)
