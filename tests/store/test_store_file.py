"""The file: what may be opened, what happens when it is locked, full, damaged, shared or its writer is killed."""

from __future__ import annotations

import os
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import kernelwright.store
from kernelwright.errors import StoreError
from kernelwright.store import Store

HERE = Path(__file__).parent
ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")

CHILD = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from conftest import Makers
from kernelwright.store import Store
make = Makers()
store = Store.open(sys.argv[1])
store.record_problem(make.problem())
"""


def child(store_path: Path, program: str, **options) -> subprocess.Popen[str]:
    """Another process that has the store open as ``store`` and runs ``program``."""
    command = [sys.executable, "-c", CHILD + program, str(store_path), str(HERE)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, **options)


def test_face_is_explicit_and_sorted():
    assert kernelwright.store.__all__ == sorted(kernelwright.store.__all__)
    assert all(hasattr(kernelwright.store, name) for name in kernelwright.store.__all__)


def test_the_trusted_process_needs_no_torch(store_path):
    process = child(store_path, "print('torch' in sys.modules, len(store.evaluations()))")
    assert process.communicate(timeout=240)[0].split() == ["False", "0"]


def test_opening_makes_folders_and_reopening_keeps_all(store_path, make):
    with Store.open(store_path) as store:
        store.record_problem(make.problem())
        evaluation_id = store.record_evaluation(make.evaluation())
    with Store.open(str(store_path)) as store:
        assert store.path == store_path
        assert store.evaluation(evaluation_id).evaluation == make.evaluation()
        assert ULID.fullmatch(evaluation_id)
    store.close()


def test_reading_only(store_path, make):
    with pytest.raises(StoreError, match="no store"):
        Store.open(store_path, readonly=True)
    assert not store_path.parent.exists()
    with Store.open(store_path) as writer, Store.open(store_path, readonly=True) as reader:
        writer.record_problem(make.problem())
        writer.record_evaluation(make.evaluation())
        assert len(reader.evaluations()) == 1
        for attempt in (lambda: reader.event(None, "x"), reader.vacuum):
            with pytest.raises(StoreError, match="read-only"):
                attempt()


def foreign_sqlite(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE precious (x)")
        other.execute("INSERT INTO precious VALUES (1)")
    other.close()


def marked_sqlite(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA application_id = 12345")
    other.close()


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda path: path.write_text("my precious notes\n" * 100), "not a kernelwright store"),
        (foreign_sqlite, "another program"),
        (marked_sqlite, "another program"),
    ],
    ids=["text", "tables", "marker"],
)
@pytest.mark.parametrize("readonly", [False, True])
def test_foreign_files_are_named_and_left_alone(tmp_path, prepare, message, readonly):
    path = tmp_path / "foreign.db"
    prepare(path)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=message) as caught:
        Store.open(path, readonly=readonly)
    assert caught.value.data["path"] == str(path)
    assert "--store" in caught.value.hint
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_empty_file_becomes_a_store(tmp_path, make):
    path = tmp_path / "with space?#%.db"
    path.touch()
    with pytest.raises(StoreError, match="not up to date"):
        Store.open(path, readonly=True)
    with Store.open(path) as store:
        assert store.check().ok
    assert path.stat().st_size > 0


def test_a_newer_schema_is_refused(store_path, make):
    with Store.open(store_path) as store:
        store.record_problem(make.problem())
    with sqlite3.connect(store_path) as other:
        other.execute(
            "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES (?, ?, '')",
            ["kernelwright", "m999_future"],
        )
    other.close()
    for readonly in (False, True):
        with pytest.raises(StoreError, match=r"newer kernelwright \(m999_future\)"):
            Store.open(store_path, readonly=readonly)


@pytest.mark.parametrize("bad", ["/proc/kernelwright/store.db", "folder", "file/store.db"])
def test_impossible_places_are_named(tmp_path, bad):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=bad) as caught:
        Store.open(tmp_path / bad)
    assert caught.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_permission(tmp_path, make):
    folder = tmp_path / "locked"
    with Store.open(folder / "store.db") as store:
        store.record_problem(make.problem())
    folder.chmod(0o500)
    try:
        with pytest.raises(StoreError, match="cannot be"):
            Store.open(folder / "new.db")
        with Store.open(folder / "store.db", readonly=True) as reader:
            assert reader.problem(make.problem().id) == make.problem()
    finally:
        folder.chmod(0o700)


def test_a_locked_store_is_named_and_loses_nothing(store_path, make):
    with Store.open(store_path, busy_timeout_s=0.01) as store:
        store.record_problem(make.problem())
        other = sqlite3.connect(store_path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match=f"{store_path} is locked"):
            store.record_evaluation(make.evaluation())
        assert store.evaluations() == []
        other.execute("ROLLBACK")
        other.close()
        store.record_evaluation(make.evaluation())
        assert store.check().ok


def test_a_full_database_loses_nothing(store, make):
    kept = store.record_evaluation(make.evaluation("first"))
    pages = store.query("PRAGMA page_count")[0]["page_count"]
    store.query(f"PRAGMA max_page_count = {pages + 4}")
    with pytest.raises(StoreError, match="disk is full") as caught:
        store.record_evaluation(make.evaluation("second", samples=3000, artifacts={"log": "x" * 100_000}))
    assert "everything written before is safe" in caught.value.hint
    assert [item.id for item in store.evaluations()] == [kept]
    assert store.check().ok
    store.query("PRAGMA max_page_count = 1000000")
    store.record_evaluation(make.evaluation("second", samples=3000))
    assert store.evaluation(kept).evaluation == make.evaluation("first")


def test_a_file_that_may_not_grow_loses_nothing(store_path, make):
    with Store.open(store_path) as store:
        store.record_problem(make.problem())
        kept = store.record_evaluation(make.evaluation("first"))
    limit = store_path.stat().st_size + 200_000
    program = """
from kernelwright.errors import StoreError
try:
    for number in range(100):
        store.record_evaluation(make.evaluation(f"more {number}", artifacts={"log": str(number) * 50_000}))
except StoreError as error:
    print(error.data["code"], len(store.evaluations()))
"""

    def forbid_growth() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    process = child(store_path, program, preexec_fn=forbid_growth)
    code, count = process.communicate(timeout=240)[0].split()
    assert process.returncode == 0
    assert code.startswith(("SQLITE_IOERR", "SQLITE_FULL"))
    with Store.open(store_path) as store:
        assert store.check().ok
        assert len(store.evaluations()) == int(count) >= 1
        assert store.evaluation(kept).evaluation == make.evaluation("first")


def test_a_writer_killed_in_mid_transaction_leaves_nothing(store_path, make):
    program = """
class Deadly(list):
    def __iter__(self):
        os.kill(os.getpid(), signal.SIGKILL)
store.record_evaluation(make.evaluation("whole", samples=500))
store.record_evaluation(make.evaluation("torn", samples=500, artifacts={"log": "x" * 500_000}), llm_calls=Deadly())
"""
    process = child(store_path, program)
    process.communicate(timeout=240)
    assert process.returncode == -signal.SIGKILL
    with Store.open(store_path) as store:
        assert store.check().ok
        assert [item.candidate.source for item in store.evaluations()] == ["whole"]
        assert store.query("SELECT count(*) AS n FROM timing_samples") == [{"n": 500}]
        assert store.query("SELECT count(*) AS n FROM candidates") == [{"n": 1}]
        store.record_evaluation(make.evaluation("torn"))


def test_a_writer_killed_anywhere_leaves_whole_evaluations(store_path):
    program = """
for number in range(10_000):
    store.record_evaluation(make.evaluation(f"kernel {number}", samples=40, artifacts={"log": f"{number}" * 5000}))
    print(number, flush=True)
"""
    process = child(store_path, program)
    for _ in range(25):
        process.stdout.readline()
    process.kill()
    process.communicate(timeout=240)
    with Store.open(store_path) as store:
        assert store.check().ok
        found = store.evaluations()
        assert len(found) >= 25
        for item in (found[0], found[-1]):
            whole = store.evaluation(item.id)
            assert len(whole.evaluation.samples) == 40
            assert set(whole.evaluation.artifacts) == {"log"}
        counts = store.query("SELECT count(*) AS n FROM timing_samples GROUP BY evaluation_id")
        assert {row["n"] for row in counts} == {40}


def test_writers_take_turns_while_others_read(store_path, make):
    program = """
for number in range(15):
    store.record_evaluation(make.evaluation(f"{os.getpid()} {number}", samples=20))
"""
    writers = [child(store_path, program) for _ in range(2)]
    with Store.open(store_path) as store:
        seen = [0]
        while any(writer.poll() is None for writer in writers):
            seen.append(len(store.evaluations()))
        assert seen == sorted(seen)
        for writer in writers:
            writer.communicate(timeout=240)
            assert writer.returncode == 0
        assert len(store.evaluations()) == 30
        assert store.check().ok


def test_threads_may_share_a_store(store, make):
    failures: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for number in range(5):
                store.record_evaluation(make.evaluation(f"{name} {number}"))
                store.best()
        except StoreError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    ids = [item.id for item in store.evaluations()]
    assert len(set(ids)) == 20


def test_check_counts_and_names_orphans(store, make):
    store.record_evaluation(make.evaluation(candidate=make.candidate(parents=("a" * 64,))))
    orphan = store.put_blob("referred to by nothing", "proposal")
    report = store.check()
    assert report.ok
    assert report.orphan_blobs == (orphan,)
    assert report.unknown_parents == ("a" * 64,)
    assert (report.counts["evaluations"], report.counts["timing_samples"]) == (1, 3)


@pytest.mark.parametrize(
    ("damage", "names"),
    [
        ("UPDATE blobs SET content = CAST('forged' AS BLOB) WHERE kind = 'source'", ["blob", "candidate"]),
        ("UPDATE candidates SET knobs_json = '{\"A\":2}'", ["candidate"]),
        ("DELETE FROM environments", ["refers to a missing row"]),
    ],
)
def test_check_sees_forgery(store, store_path, make, damage, names):
    store.record_evaluation(make.evaluation())
    other = sqlite3.connect(store_path, isolation_level=None)
    for (trigger,) in other.execute("SELECT name FROM sqlite_master WHERE name LIKE '%_refuse_%'").fetchall():
        other.execute(f"DROP TRIGGER {trigger}")
    other.execute(damage)
    other.close()
    report = store.check()
    assert not report.ok
    assert all(any(name in line for line in report.damage) for name in names)


def test_check_reports_a_damaged_file(store_path, make):
    with Store.open(store_path) as store:
        store.record_problem(make.problem())
        for number in range(20):
            store.record_evaluation(make.evaluation(f"{number}", artifacts={"log": f"{number}" * 9000}))
    with store_path.open("r+b") as file:
        file.seek(store_path.stat().st_size * 3 // 4)  # past the schema, without which nothing opens
        file.write(b"\xa5" * 60_000)
    with Store.open(store_path) as store:
        report = store.check()
    assert not report.ok
    assert report.damage


def test_backup_is_a_whole_store(store, make, tmp_path):
    evaluation_id = store.record_evaluation(make.evaluation(artifacts={"log": "x"}))
    target = store.backup(tmp_path / "copy.db")
    store.record_evaluation(make.evaluation("later"))
    with Store.open(target) as copy:
        assert copy.check().ok
        assert [item.id for item in copy.evaluations()] == [evaluation_id]
        assert copy.evaluation(evaluation_id).evaluation == store.evaluation(evaluation_id).evaluation
    content = target.read_bytes()
    with pytest.raises(StoreError, match="exists already"):
        store.backup(target)
    assert target.read_bytes() == content
    with pytest.raises(StoreError):
        store.backup(tmp_path / "absent" / "copy.db")
    assert not list(tmp_path.rglob("*.partial"))


def test_vacuum_keeps_everything(store, make):
    evaluation_id = store.record_evaluation(make.evaluation("row_max", artifacts={"log": "x"}))
    before = store.evaluation(evaluation_id)
    before_bytes, after_bytes = store.vacuum()
    assert before_bytes >= after_bytes > 0
    assert store.evaluation(evaluation_id) == before
    assert len(store.search("row_max")) == 1
    assert store.check().ok


def test_a_closed_store_says_so(store):
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.evaluations()
