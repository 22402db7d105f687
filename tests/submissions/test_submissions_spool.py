"""The spool: what is taken and what is not, what becomes of it, and what lies about in its folder."""

from __future__ import annotations

import errno
import json
import os
import pickle
import stat
from datetime import UTC, datetime

import pytest

from kernelwright.errors import KernelwrightError, StoreError
from kernelwright.submissions import (
    InvalidSubmissionError,
    Outcome,
    SourceTooLargeError,
    Spool,
    SpoolFullError,
    SpoolLimits,
    SubmissionError,
    TooManySubmissionsError,
)
from kernelwright.submissions._files import read_file
from kernelwright.submissions._ids import is_id, new_id, time_ms_of

PASSED = Outcome(state="judged", evaluations=("E1", "E2"), status="PASSED")
PROBLEM = "things/level1/plus_one"


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# -------------------------------------------------------------------------------------------------- taking


def test_a_submission_is_kept_as_it_came(spool, put, clock):
    source = "# Ünïcode \u2028 \\ud800\r\n\x01\tclass ModelNew: ...\n"
    made = put(spool, source, backend="triton", note="faster\r\nI hope")
    assert is_id(made.id)
    assert (made.problem_id, made.backend, made.author, made.source) == (PROBLEM, "triton", "ada", source)
    assert made.note == "faster\nI hope"
    assert made.created_at == datetime.fromtimestamp(clock.seconds, UTC)
    assert spool.submission(made.id) == made
    assert Spool(spool.folder).submission(made.id) == made
    assert put(spool, source.encode()).source == source
    with pytest.raises(ValueError, match="frozen"):
        made.author = "bob"


def test_it_lies_in_one_file_for_its_owner_alone(spool, folder, put):
    made = put(spool)
    assert files(folder) == [f"incoming/{made.id}.json", "lock"]
    path = folder / "incoming" / f"{made.id}.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert json.loads(path.read_bytes())["source"] == "v0\n"


def test_it_is_on_the_disk_before_anybody_is_told(spool, put, monkeypatch):
    put(spool)
    steps = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, n=name, r=real: steps.append(n) or r(*a))
    put(spool)
    assert steps == ["fsync", "replace", "fsync"]


def test_ids_are_in_the_order_of_time_and_never_taken_twice(spool, put, clock, monkeypatch):
    made = [put(spool).id]
    clock.seconds += 0.001
    made.append(put(spool).id)
    assert made == sorted(made)
    assert time_ms_of(made[1]) - time_ms_of(made[0]) == 1
    fresh = new_id(int(clock.seconds * 1000))
    offered = iter([made[1], fresh])
    monkeypatch.setattr("kernelwright.submissions._spool.new_id", lambda time_ms: next(offered))
    assert put(spool).id == fresh
    assert spool.submission(made[1]).id == made[1]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("source", ""),
        ("source", " \n\t"),
        ("source", "a\0b"),
        ("source", "a\ud800b"),
        ("source", b"\xff\xfe"),
        ("source", b"a\0b"),
        ("author", ""),
        ("author", "../ada"),
        ("author", "a" * 41),
        ("author", "ada\n"),
        ("backend", "rust"),
        ("note", "a\x1b[2Jb"),
        ("note", "a\u202eb"),
        ("note", "a\0b"),
        ("note", "a\ud800b"),
        ("problem_id", ""),
        ("problem_id", "../../etc/passwd"),
        ("problem_id", "/etc/passwd"),
        ("problem_id", "things/../level1"),
        ("problem_id", "a/b/c/d"),
        ("problem_id", "things/level1/plus_one\n"),
        ("problem_id", "things/level1/plus_one@N=100000"),
        ("problem_id", "things\\level1"),
        ("problem_id", "plus_one.py"),
        ("problem_id", "things/level1/plus_one.py"),
        ("problem_id", "things/level1/plus_one.py@1"),
        ("problem_id", "x" * 201),
    ],
)
def test_what_is_no_submission_is_refused(spool, folder, put, field, value):
    with pytest.raises(InvalidSubmissionError, match=f"bad {field}") as caught:
        put(spool, **{field: value})
    assert caught.value.data["status"] == 422
    assert isinstance(caught.value, SubmissionError)
    assert isinstance(caught.value, KernelwrightError)
    assert not folder.exists() or files(folder) in ([], ["lock"])


@pytest.mark.parametrize("problem", ["softmax", "level1/3", "a b/level 1/x(y)-z.w", "things/level1/plus_one@2"])
def test_ids_of_problems_are_taken(spool, put, problem):
    assert put(spool, problem_id=problem).problem_id == problem


def test_errors_survive_pickling(small_spool, put):
    with pytest.raises(SourceTooLargeError) as caught:
        put(small_spool, "x" * 101)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), again.data, str(again)) == (SourceTooLargeError, caught.value.data, str(caught.value))


def test_sources_have_a_size_in_bytes(small_spool, put):
    put(small_spool, "é" * 50)
    for source in ("é" * 51, "x" * 101, b"x" * 101, b"\xff" * 101):
        with pytest.raises(SourceTooLargeError) as caught:
            put(small_spool, source)
        assert (caught.value.data["status"], caught.value.data["most"]) == (413, 100)


def test_notes_have_a_length(small_spool, put):
    put(small_spool, note="0123456789")
    with pytest.raises(InvalidSubmissionError, match="more than 10 characters"):
        put(small_spool, note="0123456789a")


def test_limits_are_these_unless_others_are_given(folder):
    assert Spool(folder).limits.model_dump() == {
        "source_bytes": 262_144,
        "pending": 200,
        "per_hour": 20,
        "note_chars": 500,
    }
    with pytest.raises(ValueError, match="frozen"):
        SpoolLimits().pending = 3


def test_only_so_many_may_wait(small_spool, put, clock):
    for author in "abcde":
        put(small_spool, author=author)
    with pytest.raises(SpoolFullError) as caught:
        put(small_spool, author="f")
    assert caught.value.data["status"] == 503
    claim = small_spool.claim()
    with pytest.raises(SpoolFullError):
        put(small_spool, author="f")
    small_spool.finish(claim, PASSED)
    put(small_spool, author="f")


def test_an_author_may_submit_so_many_in_an_hour_wherever_they_are_by_now(small_spool, folder, put, clock):
    put(small_spool)
    clock.seconds += 1000
    put(small_spool)
    small_spool.finish(small_spool.claim(), PASSED)
    claim = small_spool.claim()
    clock.seconds += 1000
    put(small_spool)
    restarted = Spool(folder, small_spool.limits, now=clock)
    for spool in (small_spool, restarted):
        with pytest.raises(TooManySubmissionsError) as caught:
            put(spool)
        assert (caught.value.data["status"], caught.value.data["retry_after_s"]) == (429, 1600)
        assert put(spool, author=f"bob-{id(spool)}")
    clock.seconds += 1599.9
    with pytest.raises(TooManySubmissionsError) as caught:
        put(restarted)
    assert caught.value.data["retry_after_s"] == 1
    clock.seconds += 0.2
    put(restarted)
    with pytest.raises(TooManySubmissionsError):
        put(restarted)
    small_spool.release(claim)


def test_one_who_has_submitted_more_than_is_allowed_now_waits_longer(folder, put, clock):
    for _ in range(3):
        put(Spool(folder, now=clock))
        clock.seconds += 100
    with pytest.raises(TooManySubmissionsError) as caught:
        put(Spool(folder, SpoolLimits(per_hour=1), now=clock))
    assert caught.value.data["retry_after_s"] == 3500


def test_the_hour_may_begin_in_another_folder_of_what_is_done(small_spool, put, clock):
    clock.seconds = ((int(clock.seconds * 1000) >> 25 << 25) - 1000) / 1000  # a second before a new one begins
    for _ in range(3):
        put(small_spool)
        small_spool.finish(small_spool.claim(), PASSED)
    clock.seconds += 1800
    with pytest.raises(TooManySubmissionsError):
        put(small_spool)


def test_a_clock_that_was_wrong_once_keeps_nobody_out(small_spool, put, clock):
    clock.seconds += 10**8
    for _ in range(3):
        put(small_spool)
        small_spool.finish(small_spool.claim(), PASSED)
    clock.seconds -= 10**8
    put(small_spool)


def test_what_was_finished_long_ago_can_be_removed(spool, folder, put, clock):
    old = [put(spool) for _ in range(2)]
    for _ in old:
        spool.finish(spool.claim(), PASSED)
    clock.seconds += 90 * 86_400
    kept = put(spool)
    spool.finish(spool.claim(), PASSED)
    clock.seconds += 1
    waits = put(spool)
    assert spool.prune(100 * 86_400) == 0
    assert spool.prune(30 * 86_400) == 2
    assert [spool.state(made.id) for made in old] == [None, None]
    assert [state.id for state in spool.latest()] == [waits.id, kept.id]
    assert len(list((folder / "done").iterdir())) == 1
    assert spool.prune(0) == 0, "what counts for an author's hour stays"
    clock.seconds += 3601
    assert spool.prune(0) == 1
    assert [state.state for state in spool.latest()] == ["waiting"]


# -------------------------------------------------------------------------------------------------- judging


def test_the_whole_way(spool, folder, put, clock):
    first, second = put(spool, note="hello"), put(spool)
    first, second = sorted((first, second), key=lambda made: made.id)
    state = spool.state(first.id)
    assert (state.state, state.tries, state.problem_id, state.author) == ("waiting", 0, PROBLEM, "ada")
    claim = spool.claim()
    assert (claim.submission, claim.tries, claim.reason) == (first, 1, "")
    assert (spool.state(first.id).state, spool.state(first.id).reason) == ("judging", "")
    assert spool.claim().submission == second
    assert spool.claim() is None
    clock.seconds += 60
    finished = spool.finish(claim, PASSED)
    assert finished == spool.state(first.id) == Spool(folder).state(first.id)
    assert (finished.state, finished.status, finished.evaluations) == ("judged", "PASSED", ("E1", "E2"))
    assert (finished.finished_at - finished.created_at).total_seconds() == 60
    assert spool.submission(first.id) == first
    assert not (folder / "claims" / first.id).exists()
    assert spool.claim() is None
    assert not hasattr(finished, "source")


def test_the_oldest_comes_first_and_what_is_to_be_left_is(spool, put, clock):
    made = []
    for _ in range(3):
        made.append(put(spool).id)
        clock.seconds += 1
    assert spool.claim({made[0]}).submission.id == made[1]
    assert spool.claim().submission.id == made[0]


def test_authors_take_turns_whoever_claims(folder, put, clock):
    made = {}
    for author, count in (("ada", 4), ("bob", 2), ("eve", 1)):
        for _ in range(count):
            submission = put(Spool(folder, now=clock), author=author)
            made[submission.id] = author
            clock.seconds += 1
    order = []
    for _ in made:
        spool = Spool(folder, now=clock)  # each time another process
        claim = spool.claim()
        order.append(claim.submission.id)
        spool.finish(claim, PASSED)
    assert [made[name] for name in order] == ["ada", "bob", "eve", "ada", "bob", "ada", "ada"]
    for author in "ada", "bob":
        own = [name for name in order if made[name] == author]
        assert own == sorted(own)
    (folder / "turns.json").write_text("[1,")
    late = put(Spool(folder, now=clock))
    assert Spool(folder, now=clock).claim().submission == late


def test_an_author_fills_half_of_the_queue_at_most(folder, put, clock):
    spool = Spool(folder, SpoolLimits(pending=5), now=clock)
    for _ in range(3):
        put(spool)
        clock.seconds += 7200
    with pytest.raises(TooManySubmissionsError, match="3 submissions of ada are waiting") as caught:
        put(spool)
    assert caught.value.data["status"] == 429
    put(spool, author="bob")
    spool.finish(spool.claim(), PASSED)
    put(spool)


def test_what_is_released_waits_again_with_the_reason(spool, put):
    made = put(spool)
    spool.release(spool.claim(), reason="no disk \ud800")
    state = spool.state(made.id)
    assert (state.state, state.tries, state.reason) == ("waiting", 1, "no disk ?")
    spool.release(spool.claim(), counts=False)
    state = spool.state(made.id)
    assert (state.state, state.tries, state.reason) == ("waiting", 1, "no disk ?")
    claim = spool.claim()
    assert (claim.tries, claim.reason) == (2, "no disk ?")
    assert spool.finish(claim, Outcome(state="failed", reason="r")).tries == 2


def test_two_objects_never_claim_the_same(spool, folder, put, clock):
    put(spool)
    claim = spool.claim()
    assert Spool(folder, now=clock).claim() is None
    spool.release(claim)
    assert Spool(folder, now=clock).claim().submission == claim.submission


def test_what_somebody_removed_while_it_was_judged_stops_nobody(spool, folder, put):
    made = put(spool)
    claim = spool.claim()
    (folder / "judging" / f"{made.id}.json").unlink()
    spool.finish(claim, PASSED)
    assert spool.state(made.id).state == "judged"
    other = put(spool)
    claim = spool.claim()
    (folder / "judging" / f"{other.id}.json").unlink()
    spool.release(claim)
    assert spool.state(other.id) is None
    assert spool.claim() is None


# -------------------------------------------------------------------------------------------------- looking


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "../lock",
        "../incoming/{id}",
        "{id}.json",
        "{id}/",
        "{id}\n",
        "{id}\0",
        "incoming/{id}",
        "/etc/passwd",
        "0" * 26,
        "8" + "0" * 25,
        "I" * 26,
        None,
        7,
    ],
)
def test_what_is_no_id_of_ours_names_nothing(spool, put, name):
    made = put(spool)
    asked = name.format(id=made.id) if isinstance(name, str) else name
    assert spool.state(asked) is None
    assert spool.submission(asked) is None
    assert spool.state(made.id.lower()) is None


def test_no_path_is_made_of_what_is_no_id(spool, monkeypatch):
    monkeypatch.setattr(Spool, "_shard", lambda *_: pytest.fail("it was made a path"))
    assert spool.state("../" * 8 + "etc/passwd") is None
    assert spool.submission("../" * 8 + "etc/passwd") is None


def test_the_latest_are_listed_from_all_folders(spool, put, clock):
    made = []
    for _ in range(6):
        made.append(put(spool).id)
        clock.seconds += 3600 * 12  # each in another folder of what is done
    for _ in range(4):
        spool.finish(spool.claim(), PASSED)
    spool.claim()
    states = spool.latest(4)
    assert [state.id for state in states] == made[:1:-1]
    assert [state.state for state in states] == ["waiting", "judging", "judged", "judged"]
    assert [state.id for state in spool.latest()] == made[::-1]
    assert spool.waiting() == 2


def test_looking_makes_no_folder(spool, folder):
    assert spool.latest() == []
    assert spool.strays() == []
    assert spool.waiting() == 0
    assert spool.state("0" * 26) is None
    assert not folder.exists()


def test_one_that_moves_on_while_it_is_looked_for_is_found(spool, put, monkeypatch):
    made = put(spool)
    real = Spool._unfinished
    seen = []

    def moved(self, name):
        seen.append(1)
        return real(self, name) if len(seen) > 1 else None

    monkeypatch.setattr(Spool, "_unfinished", moved)
    assert spool.state(made.id).state == "waiting"


# -------------------------------------------------------------------------------------------------- faults


def strangers(incoming, name):
    """What something else may have left where submissions wait."""
    (incoming / "README").write_text("hello")
    (incoming / "..swp").write_bytes(b"\0\xff")
    (incoming / "folder").mkdir()
    (incoming / f"{new_id(1)}.json").mkdir()
    os.mkfifo(incoming / f"{new_id(2)}.json")
    (incoming / f"{new_id(3)}.json").symlink_to("/dev/zero")
    (incoming / f"{new_id(4)}.json").write_bytes(b"")
    (incoming / f"{new_id(5)}.json").write_text("[" * 100_000)
    half = (incoming / f"{name}.json").read_bytes()
    (incoming / f"{new_id(6)}.json").write_bytes(half[: len(half) // 2])
    (incoming / f"{new_id(7)}.json").write_bytes(half)  # under another name than its own
    (incoming / f"{new_id(8)}.json").write_text('{"id": "\\ud800"}')


def test_foreign_files_are_left_alone_and_stop_nobody(spool, folder, put):
    made = put(spool)
    strangers(folder / "incoming", made.id)
    before = sorted(os.listdir(folder / "incoming"))
    assert len(spool.strays()) == 11
    claim = spool.claim()
    assert claim.submission == made
    assert spool.claim() is None
    assert sorted([*os.listdir(folder / "incoming"), f"{made.id}.json"]) == before
    spool.finish(claim, PASSED)
    again = put(spool)
    assert spool.claim().submission == again
    assert len(spool.latest(50)) == 10
    for name in ("claims", "done", "judging", "tmp"):
        (folder / name / "foreign").mkdir()
        (folder / name / "README").write_text("hello")
    put(spool)
    assert spool.claim() is not None
    assert spool.latest()


def test_neither_links_nor_what_is_no_file_are_read(spool, folder, put, tmp_path):
    made = put(spool)
    path = folder / "incoming" / f"{made.id}.json"
    path.rename(tmp_path / path.name)
    path.symlink_to(tmp_path / path.name)
    assert spool.claim() is None
    assert spool.submission(made.id) is None
    assert spool.state(made.id).reason == "its file cannot be read"
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
            read_file(other, 100)
    with pytest.raises(OSError, match="larger than 9 bytes"):
        read_file(tmp_path / path.name, 9)


def test_what_was_finished_is_so_even_where_it_has_not_moved(spool, folder, put, monkeypatch):
    made = put(spool)
    claim = spool.claim()
    with monkeypatch.context() as patch:
        patch.setattr(Spool, "_put_away", full)
        with pytest.raises(StoreError):
            spool.finish(claim, PASSED)
    assert spool.state(made.id).state == "judged"
    assert spool.claim() is None
    assert spool.state(made.id).state == "judged"
    assert [name for name in files(folder) if not name.startswith("done/")] == ["lock"]


def test_half_a_submission_is_called_that(spool, folder, put):
    made = put(spool)
    path = folder / "incoming" / f"{made.id}.json"
    path.write_bytes(path.read_bytes()[:-9])
    state = spool.state(made.id)
    assert (state.state, state.reason) == ("failed", "its file cannot be read")
    assert spool.submission(made.id) is None


def test_a_damaged_result_is_called_that(spool, folder, put):
    made = put(spool)
    spool.finish(spool.claim(), PASSED)
    (path,) = folder.glob("done/*/*.result.json")
    path.write_text("{")
    assert (spool.state(made.id).state, spool.state(made.id).reason) == ("failed", "its result cannot be read")
    path.unlink()
    assert (spool.state(made.id).state, spool.state(made.id).reason) == ("failed", "its result is missing")


@pytest.mark.parametrize("text", ["", "{", "null", '{"tries": 1e999, "reason": ""}', "[" * 100_000, "\xff"])
def test_a_damaged_claim_loses_nothing_but_its_count(spool, folder, put, text):
    made = put(spool)
    spool.release(spool.claim(), reason="r")
    (folder / "claims" / made.id).write_text(text)
    assert spool.state(made.id).tries == 0
    claim = spool.claim()
    assert (claim.submission, claim.tries) == (made, 1)
    spool.release(claim, reason="once more")
    assert spool.state(made.id).reason == "once more"


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["fsync", "replace", "pwrite"])
def test_a_full_disk_is_told_and_loses_nothing(spool, folder, put, monkeypatch, call):
    made = put(spool)
    acts = [lambda: spool.claim()] if call == "pwrite" else [lambda: put(spool), lambda: spool.claim()]
    for act in acts:
        with monkeypatch.context() as patch:
            patch.setattr(os, call, full)
            with pytest.raises(StoreError, match="free some space") as caught:
                act()
        assert caught.value.data["status"] == 503
    assert not list((folder / "tmp").iterdir())
    claim = spool.claim()
    assert claim.submission == made
    assert spool.claim() is None
    ends = [lambda: spool.release(claim, reason="r"), lambda: spool.finish(claim, PASSED)]
    for end in ends[:1] if call == "pwrite" else ends:
        with monkeypatch.context() as patch:
            patch.setattr(os, call, full)
            with pytest.raises(StoreError, match="free some space"):
                end()
        claim = spool.claim()
        assert claim.submission == made
    assert spool.finish(claim, PASSED) == spool.state(made.id)


def test_a_claim_ends_once(spool, put):
    put(spool)
    claim = spool.claim()
    spool.release(claim)
    for end in (lambda: spool.release(claim), lambda: spool.finish(claim, PASSED)):
        with pytest.raises(ValueError, match="has ended"):
            end()


def test_a_folder_that_cannot_be_used_is_told(tmp_path, put):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot keep the submission"):
        put(Spool(tmp_path / "file"))
    with pytest.raises(StoreError, match="cannot keep the submission"):
        put(Spool(tmp_path / "file" / "below"))


def test_what_a_dead_process_was_writing_is_removed(spool, folder, put):
    put(spool)
    (folder / "tmp" / new_id(1)).write_text("half")
    put(spool)
    assert not list((folder / "tmp").iterdir())
