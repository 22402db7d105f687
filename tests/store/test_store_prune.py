"""Pruning, vacuum and backup: what goes, what stays, and a store that is sound afterwards."""

from __future__ import annotations

import json
import re
import resource
import shutil
import signal
import sqlite3
from collections import namedtuple

import pytest
from click.testing import CliRunner
from test_store_file import child
from test_store_merge import content, forge

from kernelwright.cli import cli
from kernelwright.errors import StoreError, UsageError
from kernelwright.records import LLMCall, RunConfig, Status
from kernelwright.store import Store
from kernelwright.store._ids import utc_now

LATER = "9999"  # than everything
ALL = ("artifacts", "calls", "runs", "samples")


def told(store: Store, *words, code: int = 0):
    """What a `store` command prints."""
    done = CliRunner().invoke(cli, ["store", *map(str, words), "--store", str(store.path)])
    assert done.exit_code == code, done.output
    return done


def judge(store: Store, make, source: str, run: str | None = None, **how) -> str:
    """Record an evaluation with a log and samples; returns its id."""
    return store.record_evaluation(make.evaluation(source, artifacts={"log": f"log of {source}"}, **how), run_id=run)


def evidence(store: Store) -> dict[str, tuple[int, bool]]:
    """By kernel: how many samples its evaluations have, and whether they have logs."""
    found: dict[str, tuple[int, bool]] = {}
    for item in store.evaluations():
        samples, logs = found.get(item.candidate.source, (0, True))
        has = set(store.artifacts(item.id)) == {"log"}
        found[item.candidate.source] = samples + len(store.samples(item.id)), logs and has
    return found


def start(store: Store, make, status: str) -> str:
    run = store.create_run(RunConfig(problems=(make.problem().id,)), [make.problem()])
    store.set_run_status(run, status)  # type: ignore[arg-type]
    return run


def test_losers_lose_their_bulk_and_nobody_else_does(store, make):
    finished, paused = start(store, make, "finished"), start(store, make, "paused")
    judge(store, make, "was the best", finished, low=2.0)
    judge(store, make, "slow", finished, low=1.0)
    judge(store, make, "wrong", finished, status=Status.INCORRECT_NUMERICAL)
    judge(store, make, "hack", finished, status=Status.REWARD_HACK)
    judge(store, make, "control", finished, low=0.9, control=True)
    judge(store, make, "not confirmed", finished, low=1.5)
    judge(store, make, "not confirmed", finished, status=Status.INCORRECT_NUMERICAL, failed_stage="confirm")
    judge(store, make, "of a paused run", paused, low=0.8)
    store.quarantine(judge(store, make, "withdrawn", finished, low=1.2), "too good")
    judge(store, make, "the winner", finished, low=3.0, confirmed=True)
    before, board = evidence(store), store.best()
    verdicts = [item.verdict for item in store.evaluations()]
    expected = store.prune(LATER, ("artifacts", "samples"), dry_run=True)
    assert evidence(store) == before
    report = store.prune(LATER, ("artifacts", "samples"))
    assert report == expected
    assert report.removed == {"timing samples": 6, "texts of artifacts": 2}
    assert report.text_bytes == len("log of slow") + len("log of wrong")
    gone = {"slow": (0, False), "wrong": (0, False)}
    assert evidence(store) == before | gone
    assert [item.verdict for item in store.evaluations()] == verdicts
    assert store.best() == board
    assert store.check().ok
    assert not any(store.prune(LATER, ("artifacts", "samples")).removed.values())


def test_what_was_on_a_board_stays_when_it_no_longer_is(store, make):
    judge(store, make, "good", low=3.0)
    judge(store, make, "once the best", low=5.0)
    judge(store, make, "once the best", low=1.0)  # measured again, and slow
    judge(store, make, "slow", low=1.5)
    store.prune(LATER, ("artifacts", "samples"))
    assert evidence(store) == {"good": (3, True), "once the best": (6, True), "slow": (0, False)}
    assert store.check().ok


def test_only_old_evidence_goes_and_a_text_that_others_have_stays(store, make):
    judge(store, make, "best", low=3.0)
    for name in ("old", "young"):
        before = utc_now()
        store.record_evaluation(make.evaluation(name, low=1.0, artifacts={"log": "the same", name: "x" + name}))
    second = "(SELECT id FROM evaluations LIMIT 1 OFFSET 1)"
    forge(store.path, f"UPDATE evaluations SET created_at = '2020' WHERE id = {second}")
    report = store.prune(before, ("artifacts", "samples"))
    assert report.removed == {"timing samples": 3, "texts of artifacts": 1}
    old, young = store.evaluations()[1:]
    assert store.artifacts(old.id) == {"log": "the same"}
    assert store.artifacts(young.id) == {"log": "the same", "young": "xyoung"}
    # A text that is recorded again is there again.
    store.record_evaluation(make.evaluation("new", low=1.0, artifacts={"log": "xold"}))
    assert store.artifacts(old.id)["old"] == "xold"
    assert store.check().ok


def reply(store: Store, run: str, problem: str, name: str, used_by: str | None = None) -> None:
    call = LLMCall(role="coder", provider="p", model="m", prompt_sha256="", reply_sha256="", cost_usd=0.5, key=name)
    found = store.keep_reply(call, prompt=f"prompt {name}", reply=f"reply {name}", run_id=run, step=1)
    place = {"problem": problem, "step": 1, "role": name, "sample": 0, "attempt": 0}
    store.record_use(used_by or run, found, prompt=f"prompt {name}", reused=used_by is not None, **place)


def test_calls_lose_their_texts_but_not_their_costs(store, make):
    finished, paused, problem = start(store, make, "finished"), start(store, make, "paused"), make.problem().id
    reply(store, finished, problem, "old")
    reply(store, finished, problem, "in use", used_by=paused)
    reply(store, paused, problem, "live")
    reply(store, finished, problem, "led to the winner")
    prompt = next(call.call.prompt_sha256 for call in store.llm_calls() if call.call.key == "led to the winner")
    winner = make.candidate("winner", prompt_sha256=prompt)
    store.record_evaluation(make.evaluation(candidate=winner), run_id=finished)
    costs, uses = store.run_costs(finished), store.uses(finished)
    report = store.prune(LATER, ("calls",))
    assert report.removed == {"texts of calls": 2}
    assert report.text_bytes == len("prompt old") + len("reply old")
    assert (store.run_costs(finished), store.uses(finished)) == (costs, uses)
    assert {name: store.find_reply(name) is not None for name in ("old", "in use", "live", "led to the winner")} == {
        "old": False,
        "in use": True,
        "live": True,
        "led to the winner": True,
    }
    with pytest.raises(UsageError, match=r"was removed from the store on \d{4}-\d\d-\d\d"):
        store.get_text(uses[-1].prompt_sha256 if uses[-1].role == "old" else uses[0].prompt_sha256)
    assert store.check().ok


def test_whole_runs_go_unless_something_rests_on_them(store, make):
    problem = make.problem().id
    judge(store, make, "best", start(store, make, "finished"), low=9.0)
    runs = {name: start(store, make, "cancelled") for name in ("failing", "winning", "shared", "lender", "recent")}
    judge(store, make, "fails", runs["failing"], status=Status.COMPILE_ERROR)
    judge(store, make, "slow", runs["failing"], low=1.0)
    child_of = make.candidate("child", parents=(make.candidate("slow").sha256,), operator="improve")
    store.record_evaluation(make.evaluation(candidate=child_of, status=Status.RUNTIME_ERROR), run_id=runs["failing"])
    reply(store, runs["failing"], problem, "wasted")
    store.event(runs["failing"], "noted", {})
    judge(store, make, "wins", runs["winning"], low=10.0)
    judge(store, make, "twice", runs["shared"], low=1.0)
    judge(store, make, "twice", status=Status.INCORRECT_NUMERICAL)
    reply(store, runs["lender"], problem, "lent", used_by=start(store, make, "finished"))
    expected = store.prune(LATER, ("runs",), dry_run=True)
    with sqlite3.connect(store.path) as other:
        other.execute("UPDATE runs SET updated_at = '9999-12' WHERE id = ?", [runs["recent"]])
    other.close()
    report = store.prune(LATER, ("runs",))
    assert report.removed == {"runs": 1, "evaluations": 3, "candidates": 3}
    assert expected.removed == report.removed | {"runs": 2}
    assert report.kept_runs == {
        "evidence that stays": 1,
        "a kernel judged in another run too": 1,
        "replies that another run used": 1,
    }
    assert {run.id for run in store.runs()} & set(runs.values()) == set(runs.values()) - {runs["failing"]}
    assert {item.candidate.source for item in store.evaluations()} == {"best", "wins", "twice"}
    assert (store.search("slow"), store.find_reply("wasted")) == ([], None)
    checked = store.check()
    assert (checked.ok, checked.orphan_blobs, checked.unknown_parents) == (True, (), ())


def test_a_run_that_is_not_over_keeps_what_it_may_have_learned_from(store, make):
    judge(store, make, "fails", start(store, make, "failed"), status=Status.COMPILE_ERROR)
    paused = start(store, make, "paused")
    assert store.prune(LATER, ("runs",)).kept_runs == {"a later run that is not over and may have learned from it": 1}
    store.set_run_status(paused, "finished")
    assert store.prune(LATER, ("runs",)).removed["runs"] == 1


def test_a_pruned_store_merges(store, make, tmp_path):
    judge(store, make, "best", low=9.0)
    judge(store, make, "slow", low=1.0)
    whole = store.backup(tmp_path / "whole.db")
    store.prune(LATER, ALL)
    pruned = content(store)
    store.merge([whole])
    assert content(store) == pruned, "what was pruned does not come back"
    with Store.open(tmp_path / "new.db") as new, Store.open(whole) as before:
        new.merge([store.path])
        assert content(new) == pruned
        kept = content(before)
        before.merge([store.path])
        assert content(before) == kept
        assert new.check().ok
        judge(before, make, "slow", low=1.0)  # with the text that was pruned here
    store.merge([whole])
    assert [store.artifacts(item.id) for item in store.evaluations()][1:] == [{"log": "log of slow"}] * 2
    assert store.check().ok


def test_evidence_is_as_safe_after_a_pruning_as_before(store, make):
    judge(store, make, "best", low=9.0)
    judge(store, make, "slow", low=1.0)
    store.prune(LATER, ALL)
    with sqlite3.connect(store.path) as other:
        for table in ("timing_samples", "evaluations", "blobs", "candidates"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                other.execute(f"DELETE FROM {table}")
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            other.execute("UPDATE blobs SET content = x''")
    other.close()
    assert store.query("PRAGMA foreign_keys") == [{"foreign_keys": 1}]


def test_the_prune_command(store, make):
    judge(store, make, "best", low=9.0)
    judge(store, make, "slow", low=1.0)
    assert "would remove 3 timing samples, 1 texts of artifacts" in told(
        store, "prune", "--older-than", "0h", "--samples", "--artifacts", "--dry-run"
    ).stdout.replace("\n", " ")
    assert "removed nothing" in told(store, "prune", "--older-than", "30d", "--samples", "--calls", "--runs").stdout
    data = json.loads(told(store, "prune", "--older-than", "0h", "--samples", "--artifacts", "--json").stdout)
    assert data["removed"] == {"timing samples": 3, "texts of artifacts": 1}
    assert data["text_bytes"] == len("log of slow")
    assert "what shall be pruned" in told(store, "prune", "--older-than", "1d", code=2).stderr
    assert "'soon' is no age" in told(store, "prune", "--older-than", "soon", "--runs", code=2).stderr


# ------------------------------------------------------------------------------------------------- vacuum


def test_vacuum_gives_space_back_and_says_how_much(store, make):
    judge(store, make, "best", low=9.0)
    for number in range(3):
        store.record_evaluation(make.evaluation(f"{number}", low=1.0, artifacts={"log": f"{number}" * 300_000}))
    store.prune(LATER, ("artifacts",))
    data = json.loads(told(store, "vacuum", "--json").stdout)
    assert data["bytes_before"] - data["bytes_after"] > 800_000
    assert store.path.stat().st_size == data["bytes_after"]
    assert store.check().ok


def test_vacuum_refuses_while_a_run_is_driven_and_without_room(store, make, monkeypatch):
    from kernelwright.campaign import _locks

    with _locks.RunLock(store.path, "01RUN"):
        assert re.search("is in use: run 01RUN", told(store, "vacuum", code=2).stderr)
    usage = namedtuple("usage", "total used free")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage(10, 9, 1000))
        done = told(store, "vacuum", code=3)
    assert re.search(r"no room to rewrite the store .*: \d+ bytes are needed in .*, 1000 are free", done.stderr)
    told(store, "vacuum")


# ------------------------------------------------------------------------------------------------- backup


def test_backup_replaces_a_file_only_when_told(store, make, tmp_path):
    judge(store, make, "kernel")
    copy = tmp_path / "copy.db"
    copy.write_text("precious")
    assert "exists already" in told(store, "backup", copy, code=3).stderr
    assert copy.read_text() == "precious"
    told(store, "backup", copy, "--force")
    with Store.open(copy) as opened:
        assert content(opened) == content(store)
    assert "is the store itself" in told(store, "backup", store.path, "--force", code=3).stderr
    stale = tmp_path / "stale.db"
    stale.with_name("stale.db-wal").write_bytes(b"of a store that was here")
    assert "stale.db-wal belongs to a database" in told(store, "backup", stale, code=3).stderr
    assert not stale.exists()


def test_backup_of_a_damaged_store_is_refused(store, make, tmp_path):
    for number in range(20):
        judge(store, make, f"{number}" * 3000)
    store.close()
    with store.path.open("r+b") as file:
        file.seek(store.path.stat().st_size * 3 // 4)
        file.write(b"\xa5" * 20_000)
    with Store.open(store.path, readonly=True) as opened, pytest.raises(StoreError, match="is damaged"):
        opened.backup(tmp_path / "copy.db")
    assert not list(tmp_path.glob("copy.db*"))


def test_backup_onto_a_full_disk_leaves_no_file(store, make, tmp_path):
    store.record_evaluation(make.evaluation(artifacts={"log": "x" * 3_000_000}))
    program = f"""
from kernelwright.errors import StoreError
try:
    store.backup({str(tmp_path / "copy.db")!r})
except StoreError as error:
    print(error.data["code"], error.message)
"""

    def forbid_growth() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))

    out = child(store.path, program, preexec_fn=forbid_growth).communicate(timeout=240)[0]
    assert re.match(r"SQLITE_(IOERR|FULL)\S* the store .*/copy.db c", out), out
    assert not list(tmp_path.glob("copy.db*"))


def test_a_backup_beside_a_writer_is_a_moment_of_it(store_path, make, tmp_path):
    program = """
for number in range(10_000):
    store.record_evaluation(make.evaluation(f"kernel {number}", samples=40))
    print(number, flush=True)
"""
    process = child(store_path, program)
    for _ in range(5):
        process.stdout.readline()
    with Store.open(store_path, readonly=True) as store:
        copies = [store.backup(tmp_path / f"{number}.db") for number in range(3)]
    process.kill()
    process.communicate(timeout=240)
    counts = []
    for copy in copies:
        with Store.open(copy) as opened:
            assert opened.check().ok
            counts.append(len(opened.evaluations()))
            assert opened.query("SELECT count(*) AS n FROM timing_samples")[0]["n"] == 40 * counts[-1]
    assert counts == sorted(counts)
    assert counts[0] >= 5
