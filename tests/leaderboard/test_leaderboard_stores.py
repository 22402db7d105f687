"""Stores that are empty, missing, foreign, locked or gone: what is said, and that it is said without a traceback."""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import closing

import pytest
from leaderboard_world import World, make_app

from kernelwright.errors import StoreError, UsageError
from kernelwright.leaderboard import _cache, _reader, create_app
from kernelwright.store import Store
from kernelwright.submissions import Spool

PAGES = ("/", "/problems", "/runs", "/quarantine", "/compare", "/docs/api")
FILES = ("/board", "/best", "/problems", "/runs", "/quarantine")


@pytest.fixture(params=[True, False], ids=["cached", "not cached"])
def served(request, world, browse):
    """A browser over a store with something in it."""
    world.judge(world.problem(), run=world.run(world.problem()))
    return browse(cached=request.param)


# Empty


@pytest.fixture(scope="module")
def empty(lasting):
    return lasting()


@pytest.mark.parametrize("path", PAGES)
def test_every_page_of_an_empty_store_is_there(empty, path):
    page = empty.page(path)
    assert page.title
    assert not [chart for chart in page.data if chart["x"]]


@pytest.mark.parametrize("path", ["/", "/problems", "/runs"])
def test_an_empty_page_names_the_command_that_fills_it(empty, path):
    page = empty.page(path)
    assert [code.text for code in page.all("code", "main") if code.text.startswith("kernelwright optimize")]


def test_an_empty_quarantine_says_so(empty):
    assert "No kernel was refused so far." in empty.page("/quarantine").words


def test_a_problem_without_a_kernel_names_the_command_that_makes_one(world, browser):
    world.problem()
    page = browser.page("/problems/suite/level1/softmax")
    assert "kernelwright optimize suite/level1/softmax" in [code.text for code in page.all("code")]
    assert browser.rows("/problems/suite/level1/softmax/ranking.json") == []
    assert "no run has searched" in browser.page("/problems/suite/level1/softmax/archive.html").words


@pytest.mark.parametrize("path", FILES)
def test_every_table_of_an_empty_store_has_no_rows(empty, path):
    assert empty.rows(f"{path}.json") == []
    assert empty.get(f"{path}.csv").text.strip() == ""


# Not one that can be opened


def test_a_store_that_is_not_there_is_told_at_once(tmp_path):
    with pytest.raises(StoreError, match="there is no store") as refused:
        create_app(tmp_path / "none.db")
    assert refused.value.hint
    assert not (tmp_path / "none.db").exists()


def test_what_is_no_store_is_told_at_once(tmp_path):
    (tmp_path / "empty.db").touch()
    (tmp_path / "text.db").write_text("no database at all" * 100)
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE t (a)")
    for name, message in (
        ("empty", "not up to date"),
        ("text", "not a kernelwright store"),
        ("other", "another program"),
    ):
        with pytest.raises(StoreError, match=message):
            create_app(tmp_path / f"{name}.db")
    with pytest.raises(StoreError, match="is a folder"):
        create_app(tmp_path)


def test_a_store_of_an_older_version_is_not_changed(world):
    world.store.close()
    with closing(sqlite3.connect(world.path)) as raw:
        raw.execute("DELETE FROM _sqlite_migrations WHERE rowid = (SELECT max(rowid) FROM _sqlite_migrations)")
        raw.commit()
    with pytest.raises(StoreError, match="not up to date") as refused:
        make_app(world)
    assert "any command that writes" in refused.value.hint


def test_submissions_without_tokens_are_refused(world, tmp_path):
    with pytest.raises(UsageError, match="submissions need tokens"):
        make_app(world, spool=Spool(tmp_path / "spool"))


# Gone wrong while it is served


def refused(browser, path, caplog):
    """An answer while the store cannot be read: 503, in few words."""
    with caplog.at_level(logging.ERROR):
        page, file = browser.get(path), browser.get(path, html=False)
    for answer in (page, file):
        assert answer.status_code == 503, path
        assert "the store cannot be read now" in answer.text
        assert "Traceback" not in answer.text
        assert "store.db [" not in answer.text
    assert "text/html" in page.headers["content-type"]
    assert file.json()["detail"] == "the store cannot be read now"
    assert "Traceback" not in caplog.text
    said = [record.getMessage() for record in caplog.records if record.name == "kernelwright.leaderboard"]
    assert said, "the page says that the log says why"
    assert all("store.db" in line for line in said)


def exclusively(path):
    """A connection that lets nobody else read."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    return closing(other)


def test_a_locked_store_is_told_at_once(world, monkeypatch):
    monkeypatch.setattr(_reader, "BUSY_S", 0.01)
    world.store.close()
    with exclusively(world.path), pytest.raises(StoreError, match="locked by another process") as found:
        make_app(world)
    assert "wait for the other writer" in found.value.hint


def test_a_store_that_is_locked_while_it_is_served(world, served, caplog, monkeypatch):
    monkeypatch.setattr(_reader, "BUSY_S", 0.01)
    world.store.close()
    served.app.state.site.reader.close()  # whoever has it open keeps others from locking it
    with exclusively(world.path):
        for path in ("/", "/problems", "/healthz"):
            refused(served, path, caplog)
    assert served.get("/").status_code == 200


def test_a_store_that_vanished_and_came_back(world, served, caplog):
    assert served.get("/").status_code == 200
    away = world.path.with_name("away.db")
    os.rename(world.path, away)
    for path in ("/", "/problems", "/problems/suite/level1/softmax", "/healthz", "/runs"):
        refused(served, path, caplog)
    os.rename(away, world.path)
    for path in ("/", "/problems", "/healthz"):
        assert served.get(path).status_code == 200


def test_another_store_in_its_place_is_what_is_shown(world, served, tmp_path, monkeypatch):
    monkeypatch.setattr(_cache, "STALE_S", -1.0)
    assert served.rows("/problems.json")
    (tmp_path / "more").mkdir()
    other = World(tmp_path / "more")
    other.problem("another_one")
    other.store.backup(tmp_path / "copy.db")
    other.store.close()
    with closing(sqlite3.connect(world.path)) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # what is left there would be taken for the other one's
    os.replace(tmp_path / "copy.db", world.path)
    assert [row["name"] for row in served.rows("/problems.json")] == ["another_one"]


def test_a_store_that_lost_a_table(world, served, caplog):
    with closing(sqlite3.connect(world.path)) as raw:
        raw.execute("DROP TABLE events")
        raw.commit()
    [run] = [row["id"] for row in served.rows("/runs.json")]
    refused(served, f"/runs/{run}", caplog)


def test_a_run_whose_store_vanishes_ends_its_stream(world, browse):
    run = world.run(world.problem(), status="running")
    with browse(poll_s=0.001).listening(f"/runs/{run}/events") as listener:
        assert listener.event() == ("changed", {"evaluation": "", "status": "running"})
        os.rename(world.path, world.path.with_name("away.db"))
        assert listener.event() is None


def test_a_bug_is_told_without_what_it_is(world, browse, monkeypatch):
    def broken(*_):
        raise RuntimeError(f"a secret of {world.path}")

    browser = browse()
    monkeypatch.setattr("kernelwright.leaderboard._routes_runs.runs.run_list", broken)
    for accept in ("text/html", "*/*"):
        answer = browser.raw(path="/runs", headers=[("accept", accept)])
        assert answer.status == 500
        assert answer.body == b"something broke; the server's log says what\n"
        assert answer.header("content-security-policy")
        assert answer.header("x-content-type-options") == "nosniff"


def test_health_says_whether_the_store_can_be_read(browser):
    told = browser.json("/healthz")
    assert told["status"] == "ok"
    assert told["version"]


def test_nothing_is_ever_written_to_the_store(world, browser):
    world.judge(world.problem(), run=world.run(world.problem()))
    before = world.store.query("SELECT total_changes() AS n, (SELECT count(*) FROM evaluations) AS m")
    for path in PAGES:
        browser.page(path)
    assert world.store.query("SELECT total_changes() AS n, (SELECT count(*) FROM evaluations) AS m") == before
    with Store.open(world.path, readonly=True) as store:
        assert store.check().ok
