"""Merging stores: everything comes, once, whole, from a store that stays as it is, or nothing does."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from test_store_file import child, foreign_sqlite
from test_store_standings import HAPPENINGS, happen, steps_before

from kernelwright.cli import cli
from kernelwright.errors import StoreError, UsageError
from kernelwright.records import Advice, InputGenerator, LLMCall, RunConfig, Status
from kernelwright.records.problems import InputPattern
from kernelwright.store import Sample, Store
from kernelwright.store._kinds import BY_TABLE, DERIVED_TABLES, OWN_TABLES

BOTH = InputGenerator(inputs={"x": InputPattern(kind="ties")})


def content(store: Store) -> dict[str, list[str]]:
    """What a store holds by table, in an order of its own: without row numbers, and without when a thing that is known
    by its content came into this store."""
    found = {}
    for table, kind in BY_TABLE.items():
        own = {"id"} if table in ("blobs", "sources", "candidates") else set()
        left_out = own | ({"number"} & set(kind.local)) | ({"created_at"} & set(kind.local))
        of = "LEFT JOIN (SELECT id AS candidate_id, sha256 AS of FROM candidates) USING (candidate_id)"
        rows = store.query(f"SELECT * FROM {table} {of if table in ('evaluations', 'samples') else ''}")
        names = {"candidate_id"} | left_out
        found[table] = sorted(repr({k: v for k, v in row.items() if k not in names}) for row in rows)
    derived = "SELECT environment_id, baseline, problem_version, author, recipe, evaluation_id, low FROM"
    for table in ("improvements", "standings"):
        found[table] = sorted(map(repr, store.query(f"{derived} {table}")))
    return found


def fill(store: Store, make, name: str = "one") -> str:
    """One of everything; returns the run."""
    problem = make.problem()
    store.record_problem(problem)
    run = store.create_run(RunConfig(problems=(problem.id,)), [problem])
    parent = make.candidate(f"parent of {name}")
    store.record_candidate(parent)
    made = make.candidate(f"kernel of {name}", parents=(parent.sha256,), author=name, knobs={"TILE": 4})
    call = LLMCall(
        role="coder",
        provider="p",
        model="m",
        prompt_sha256="",
        reply_sha256="",
        input_tokens=3,
        output_tokens=4,
        key=name,
    )
    request = store.open_request(
        run, problem=problem.id, step=1, role="coder", sample=0, attempt=0, try_number=0, provider="p", model="m",
        key=name, tokens=9, cost_usd=0.5,
    )  # fmt: skip
    reply = store.settle_request(request, call, prompt=f"prompt {name}", reply=f"reply {name}", run_id=run, step=1)
    store.record_use(
        run, reply, problem=problem.id, step=1, role="coder", sample=0, attempt=0, prompt=f"sent {name}", reused=False
    )
    evaluation = make.evaluation(
        candidate=made, confirmed=True, artifacts={"log": f"log {name}", "both": "the same"}, profile=make.profile()
    )
    first = store.record_evaluation(evaluation, run_id=run, step=1)
    shared = make.candidate("kernel of both", author=name, note=f"by {name}")
    store.record_evaluation(make.evaluation(candidate=shared, low=1.2), run_id=run)
    store.record_evaluation(make.evaluation(candidate=shared, status=Status.RUNTIME_ERROR), run_id=run)
    store.add_generators(problem, [BOTH], author=name, evidence={BOTH.id: {"why": name}})
    hack = store.record_evaluation(make.evaluation(f"hack {name}", low=9.0), run_id=run)
    store.quarantine(hack, f"too good, says {name}")
    store.add_note(made.sha256, first, "judge", Advice(mode="optimise", bottleneck="b", method="m", plan=name), run, 1)
    store.event(run, "noted", {"name": name})
    store.add_sample(run, Sample(problem=problem.id, number=0, candidate=made))
    store.add_sample(run, Sample(problem=problem.id, number=1, candidate=None, reason="no reply"))
    generator = InputGenerator(inputs={name: InputPattern(kind="equal_maxima")})
    store.add_generators(problem, [generator], author=name, evidence={generator.id: {"why": name}})
    store.set_problem_state(run, problem.id, "done", json.dumps({"problem": problem.id, "state": "done"}))
    store.set_run_status(run, "finished")
    return run


@pytest.fixture
def pair(tmp_path, make):
    """Two stores, each with one of everything of its own."""
    paths = [tmp_path / "a" / "a.db", tmp_path / "b" / "b.db"]
    for path in paths:
        with Store.open(path) as store:
            fill(store, make, path.stem)
    return paths


def test_every_table_is_merged_or_derived(store):
    tables = {row["name"] for row in store.query("SELECT name FROM pragma_table_list WHERE type = 'table'")}
    evidence = {name for name in tables if not name.startswith("sqlite_") and "_fts" not in name and name[0] != "_"}
    assert evidence == set(BY_TABLE) | DERIVED_TABLES | OWN_TABLES
    assert all(
        {*kind.key, *kind.local} <= {row["name"] for row in store.query(f"PRAGMA table_info({table})")}
        for table, kind in BY_TABLE.items()
    )


def test_everything_comes_once(pair, make):
    a, b = pair
    before = b.read_bytes()
    with Store.open(a) as store:
        expected, counts = store.merge([b], dry_run=True), content(store)
        assert content(store) == counts
        (report,) = store.merge([b])
        assert report.added == expected[0].added
        assert (report.added["evaluations"], report.added["samples"]) == (4, 2)
        known = {"environments", "problems"}  # to both
        assert {table for table, count in report.added.items() if not count} == known
        assert store.check().ok
        merged = content(store)
        assert [(row.author, row.speedup.low) for row in store.best()] == [("a", 1.5)]
        assert {run.status for run in store.runs()} == {"finished"}
        assert len(store.runs()) == 2
        assert len(store.search("kernel")) == 3
        assert store.find_reply("b").text == "reply b"
        assert [note.advice.plan for note in store.notes()] == ["a", "b"]
        (again,) = store.merge([b])
        assert not any(again.added.values())
        assert again.updated == 0
        assert content(store) == merged
    assert b.read_bytes() == before
    assert sorted(path.name for path in b.parent.iterdir()) == ["b.db"]
    assert sorted(path.name for path in a.parent.iterdir()) == ["a.db", "a.db.locks"]


def test_a_kernel_of_both_is_by_the_author_who_was_first(pair):
    a, b = pair
    with Store.open(b) as store:
        store.merge([a])
        assert store.check().ok
        assert {item.candidate.author for item in store.evaluations() if item.candidate.source == "kernel of both"} == {
            "a"
        }
        counts = {row["author"]: row["evaluations"] for row in store.tallies() if row["status"] == "RUNTIME_ERROR"}
        assert counts == {"a": 2}
        archived = {entry.generator.id: entry.author for entry in store.archived(store.problem("suite/level1/softmax"))}
        assert archived[BOTH.id] == "a"
        with sqlite3.connect(b) as other, pytest.raises(sqlite3.IntegrityError, match="append-only"):
            other.execute("UPDATE candidates SET author = 'me'")
        other.close()


def test_the_direction_makes_no_difference(pair):
    a, b = pair
    other_a = a.with_name("copy.db")
    shutil.copy(a, other_a)
    with Store.open(a) as into_a, Store.open(b) as into_b:
        into_a.merge([b])
        into_b.merge([other_a])
        assert content(into_a) == content(into_b)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mine=HAPPENINGS, theirs=HAPPENINGS, later=HAPPENINGS)
def test_boards_of_merged_stores_follow_from_the_evidence(tmp_path_factory, make, mine, theirs, later):
    folder = tmp_path_factory.mktemp("stores")
    with Store.open(folder / "a.db") as a, Store.open(folder / "b.db") as b:
        happen(a, make, mine)
        b.merge([a.path])
        happen(b, make, theirs)
        happen(a, make, later)
        a.merge([b.path])
        b.merge([a.path])
        assert a.check().damage == b.check().damage == ()
        assert {item.id for item in a.evaluations()} == {item.id for item in b.evaluations()}
        firsts = [[row.model_dump() for row in store.best()] for store in (a, b)]
        assert firsts[0] == firsts[1]
        assert content(a) == content(b)


def test_environments_never_mix(tmp_path, make):
    other = make.environment.model_copy(update={"cpu": "another cpu"})
    for name, environment, low in (("a", make.environment, 1.5), ("b", other, 3.0)):
        with Store.open(tmp_path / f"{name}.db") as store:
            store.record_problem(make.problem())
            store.record_evaluation(make.evaluation(low=low, environment=environment))  # of the same kernel
    with Store.open(tmp_path / "a.db") as store:
        store.merge([tmp_path / "b.db"])
        assert {row.environment: row.speedup.low for row in store.best()} == {make.environment.id: 1.5, other.id: 3.0}
        assert len(store.query("SELECT * FROM candidates")) == 1
        for environment, low in ((make.environment, 1.5), (other, 3.0)):
            assert [row["low"] for row in store.entrants(environment.id, "eager")] == [low]


def test_later_states_win_and_open_requests_close(tmp_path, make):
    a, b = tmp_path / "a.db", tmp_path / "b.db"
    problem = make.problem()
    asked = {
        "problem": problem.id,
        "step": 1,
        "role": "coder",
        "sample": 0,
        "attempt": 0,
        "provider": "p",
        "model": "m",
    }
    with Store.open(a) as store:
        run = store.create_run(RunConfig(problems=(problem.id,)), [problem])
        request = store.open_request(run, try_number=0, key="k", tokens=9, cost_usd=0.5, **asked)
    shutil.copy(a, b)
    with Store.open(b) as store:
        store.book_request(request, "timeout")
        store.set_problem_state(run, problem.id, "done", "{}")
        store.add_run_seconds(run, 7.0)
        store.set_run_status(run, "finished")
    with Store.open(a) as store, Store.open(b) as later:
        assert later.merge([a])[0].updated == 0
        assert later.run_status(run) == "finished"
        assert store.merge([b], dry_run=True)[0].updated == 2
        assert store.run_status(run) == "running"
        assert store.merge([b])[0].updated == 2
        assert (store.run(run).status, store.run(run).seconds) == ("finished", 7.0)
        assert store.problem_states(run)[0].state == "done"
        assert store.request_counts(run) == later.request_counts(run)
        assert content(store) == content(later)


def test_the_version_in_use_last_is_current(tmp_path, make):
    old, new = make.problem(), make.problem(source="class Model: pass  # new\n")
    with Store.open(tmp_path / "a.db") as a, Store.open(tmp_path / "b.db") as b:
        b.record_problem(new)
        a.record_problem(old)
        a.record_evaluation(make.evaluation("of the old one"))
        b.record_evaluation(make.evaluation("of the new one"))
        a.merge([b.path])
        b.merge([a.path])
        assert a.problem(old.id) == b.problem(old.id) == new
        assert [row.candidate for row in a.best()] == [make.candidate("of the new one").sha256]


CONFLICTS = {
    "evaluations": "UPDATE evaluations SET latency_ms = 0.001 WHERE status = 'PASSED' AND confirmed",
    "timing_samples": "UPDATE timing_samples SET latency_ms = 0.5 WHERE number = 1",
    "speedups": "UPDATE speedups SET low = 99.0",
    "artifacts": "UPDATE artifacts SET blob_sha256 = (SELECT source_sha256 FROM problems) WHERE name = 'log'",
    "candidates": "UPDATE candidates SET backend = 'cuda'",
    "llm_calls": "UPDATE llm_calls SET cost_usd = 7.0",
    "llm_requests": "UPDATE llm_requests SET tokens = 1",
    "notes": "UPDATE notes SET plan = 'forged'",
    "events": "UPDATE events SET data_json = '{\"forged\":1}'",
    "quarantines": "UPDATE quarantines SET reason = 'forged'",
    "samples": "UPDATE samples SET reason = 'forged' WHERE number = 1",
    "runs": "UPDATE runs SET seconds = 99.0",
    "run_problems": "UPDATE run_problems SET position = 5",
    "environments": "UPDATE environments SET threads = 64",
    "problems": "UPDATE problems SET level = 9",
}


@pytest.mark.parametrize("table", CONFLICTS)
def test_a_row_that_differs_is_named_and_nothing_is_merged(tmp_path, make, table):
    a, b = tmp_path / "a.db", tmp_path / "b.db"
    with Store.open(a) as store:
        fill(store, make)
    shutil.copy(a, b)
    with Store.open(b) as store:
        store.record_evaluation(make.evaluation("new there"))
    forge(b, CONFLICTS[table])
    with Store.open(a) as store:
        before = content(store)
        for dry_run in (True, False):
            with pytest.raises(StoreError, match=rf"differ from those with the same id in .*: .*{table} ") as caught:
                store.merge([b], dry_run=dry_run)
        assert caught.value.data["conflicts"]
        assert content(store) == before


def forge(path: Path, statement: str) -> None:
    """Change what cannot be changed, and make the tables behind the boards follow."""
    from kernelwright.store._standings import REBUILD

    with sqlite3.connect(path, isolation_level=None) as other:
        kept = other.execute("SELECT name, sql FROM sqlite_master WHERE name LIKE '%_refuse_%'").fetchall()
        for name, _ in kept:
            other.execute(f"DROP TRIGGER {name}")
        other.execute(statement)
        for sql in (*REBUILD, *(sql for _, sql in kept)):
            other.execute(sql)
    other.close()


def damage(path: Path) -> None:
    forge(path, "UPDATE blobs SET content = CAST('forged' AS BLOB) WHERE kind = 'source'")


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def make_newer(path: Path) -> None:
    forge(
        path, "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('kernelwright', 'm999_x', '')"
    )


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda path: path.write_text("notes\n" * 999), "is not a kernelwright store"),
        (lambda path: path.write_bytes(b""), "it is empty"),
        (lambda path: path.unlink() or foreign_sqlite(path), "another program"),
        (make_newer, r"newer kernelwright \(m999_x\)"),
        (damage, "is damaged: .*does not match"),
        (truncate, "is damaged"),
        (lambda path: path.unlink(), "there is no store at"),
        (lambda path: path.unlink() or path.mkdir(), "is a folder"),
        (lambda path: path.unlink() or path.symlink_to(path.parents[1] / "a" / "a.db"), "is the store that is merged"),
    ],
    ids=["text", "empty", "foreign", "newer", "forged", "truncated", "missing", "folder", "same"],
)
def test_what_cannot_be_merged_is_named_and_changes_nothing(pair, tmp_path, make, prepare, message):
    a, b = pair
    good = tmp_path / "good.db"
    shutil.copy(b, good)
    prepare(b)
    with Store.open(a) as store:
        before = content(store)
        with pytest.raises((StoreError, UsageError), match=message) as caught:
            store.merge([good, b])
        assert str(b) in caught.value.message
        assert ".merging" not in caught.value.message
        assert content(store) == before
    assert {path.name for path in a.parent.iterdir()} <= {"a.db", "a.db.locks"}
    assert sorted(path.name for path in b.parent.iterdir()) in ([], ["b.db"])


def test_a_store_in_use_and_one_of_an_earlier_version_stay_as_they_are(tmp_path, make, monkeypatch):
    from kernelwright.store import _connection

    old, live = tmp_path / "old.db", tmp_path / "live.db"
    with monkeypatch.context() as patch:
        patch.setattr(_connection, "MIGRATIONS", steps_before("m014_recipe_files"))
        with Store.open(old) as store:
            happen(store, make, [("a", "search", 3, "one")])
    with Store.open(live) as writer, Store.open(tmp_path / "a.db") as store:
        happen(writer, make, [("b", "search", 2, "one")])
        bytes_before = [old.read_bytes(), live.read_bytes()]  # the rest is in the log
        names = sorted(path.name for path in tmp_path.glob("*"))
        store.merge([old, live])
        assert [old.read_bytes(), live.read_bytes()] == bytes_before
        assert sorted({path.name for path in tmp_path.glob("*")} - {"a.db.locks"}) == names
        assert {item.candidate.source for item in store.evaluations()} == {"a", "b"}
        happen(writer, make, [("c", "search", 2, "one")])
        assert store.check().ok


KILLED = """
from kernelwright.store import _merge
_merge._AT_ONCE = 2
left = int(os.environ["TRANSACTIONS"])
inner = type(store._connection).execute
def execute(self, sql, parameters=()):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return inner(self, sql, parameters)
type(store._connection).execute = execute
store.merge([os.environ["OTHER"]])
print("done")
"""


def test_a_merge_killed_anywhere_is_completed_by_the_next(tmp_path, make, monkeypatch):
    b, whole = tmp_path / "b.db", tmp_path / "whole.db"
    with Store.open(b) as store:
        for name in "vwxyz":
            fill(store, make, name)
    with Store.open(whole) as store:
        store.record_problem(make.problem())
        store.merge([b])
        expected = content(store)
    monkeypatch.setenv("OTHER", str(b))
    for statements in (3, 60, 140, 190):
        a = tmp_path / f"{statements}.db"
        monkeypatch.setenv("TRANSACTIONS", str(statements))
        process = child(a, KILLED)
        process.communicate(timeout=240)
        assert process.returncode == -signal.SIGKILL
        with Store.open(a) as store:
            assert store.check().ok
            assert not store.query("SELECT * FROM standings WHERE low = 9.0"), "it was withdrawn"
            store.merge([b])
            assert content(store) == expected
        assert not a.with_name(f"{a.name}.merging").exists()


def test_a_merge_onto_a_full_disk_leaves_a_whole_store(pair, make):
    a, b = pair
    with Store.open(b) as store:
        for number in range(30):
            store.record_evaluation(make.evaluation(f"{number}", artifacts={"log": f"{number}" * 40_000}))
    with Store.open(a) as store:
        pages = store.query("PRAGMA page_count")[0]["page_count"]
        store.query(f"PRAGMA max_page_count = {pages + 40}")
        with pytest.raises(StoreError, match=f"{a} cannot grow: the disk is full"):
            store.merge([b])
        assert store.check().ok
        store.query("PRAGMA max_page_count = 1000000")
        store.merge([b])
        assert len(store.evaluations()) == 38
        assert store.check().ok


def test_one_merge_at_a_time(pair):
    from kernelwright.store._foreign import only_one

    a, b = pair
    with Store.open(a) as store:
        with only_one(a), pytest.raises(UsageError, match="another process merges"):
            store.merge([b])
        store.merge([b])


def test_the_command_says_what_it_adds(pair):
    a, b = pair

    def told(*words, code=0):
        done = CliRunner().invoke(cli, ["store", "merge", "--store", str(a), *map(str, words)])
        assert done.exit_code == code, done.output
        return done

    dry = told(b, "--dry-run").stdout
    assert f"{b}: would add" in dry
    assert "4 evaluations, 3 speedups, 12 timing samples" in dry
    assert told(b).stdout == dry.replace("would add", "added")
    assert f"{b}: added nothing" in told(b).stdout
    assert '"added"' in told(b, "--json").stdout
    assert "is the store that is merged into" in told(a, code=2).stderr
    listed = CliRunner().invoke(cli, ["runs", "list", "--store", str(a)])
    assert listed.stdout.count("finished") == 2
