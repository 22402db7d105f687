"""Several processes and threads with one spool: limits hold, nothing is claimed twice, the dead hold nothing."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from collections import Counter

import pytest
from submissions_workers import LIMITS, claim_and_wait, claim_many, create_many, put_many

from kernelwright.submissions import Spool, SubmissionError, Tokens
from kernelwright.submissions._spool import DIED

PROCESSES = 4
WAIT_S = 60
spawning = multiprocessing.get_context("spawn")


@pytest.fixture
def together():
    """Runs a function in several processes that begin at once; gives what they answered."""
    processes = []

    def run(work, *arguments, each=()):
        start, answers = spawning.Barrier(PROCESSES), spawning.Queue()
        for number in range(PROCESSES):
            mine = (each[number],) if each else ()
            given = (arguments[0], start, answers, *mine, *arguments[1:])
            process = spawning.Process(target=work, args=given, daemon=True)
            process.start()
            processes.append(process)
        found, left = [], PROCESSES
        while left:
            answer = answers.get(timeout=WAIT_S)
            left -= answer is None
            if answer is not None:
                found.append(answer)
        return found

    yield run
    for process in processes:
        process.join(WAIT_S)
        assert process.exitcode == 0


def test_an_authors_limit_holds_whoever_takes_the_submissions(folder, together):
    found = together(put_many, folder, ["ada"], 10)
    assert Counter(answer if isinstance(answer, int) else "taken" for _, answer in found) == {
        "taken": LIMITS.per_hour,
        429: PROCESSES * 10 - LIMITS.per_hour,
    }
    assert len({answer for _, answer in found}) == LIMITS.per_hour + 1
    assert len(Spool(folder).latest(100)) == LIMITS.per_hour


def test_no_more_wait_than_may(folder, together):
    found = together(put_many, folder, [f"a{number}" for number in range(10)], 1)
    assert Counter(answer if isinstance(answer, int) else "taken" for _, answer in found) == {
        "taken": LIMITS.pending,
        503: PROCESSES * 10 - LIMITS.pending,
    }
    assert Spool(folder).waiting() == LIMITS.pending


def test_each_submission_is_claimed_by_one(spool, folder, put, together):
    made = {put(spool, author=f"a{number % 4}").id for number in range(40)}
    end = spawning.Event()
    try:
        found = together(claim_many, folder, end)
    finally:
        end.set()
    assert sorted(found) == sorted(made)


def test_threads_of_one_process_share_a_spool(spool, put):
    refused = []

    def submit():
        for _ in range(10):
            try:
                put(spool)
            except SubmissionError as error:
                refused.append(error.data["status"])

    threads = [threading.Thread(target=submit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused == [429] * 20
    assert len({spool.claim().submission.id for _ in range(20)}) == 20
    assert spool.claim() is None


def test_what_a_killed_process_had_claimed_waits_again(spool, folder, put):
    made = put(spool)
    for tries in (1, 2):
        claimed, end = spawning.Event(), spawning.Event()
        process = spawning.Process(target=claim_and_wait, args=(folder, claimed, end), daemon=True)
        process.start()
        assert claimed.wait(WAIT_S)
        assert spool.claim() is None, "its process lives"
        assert spool.state(made.id).state == "judging"
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        left = spool.state(made.id)
        assert (left.state, left.tries, left.reason) == ("waiting", tries, DIED)
        claim = spool.claim()
        assert (claim.submission, claim.tries, claim.reason) == (made, tries + 1, DIED)
        spool.release(claim, counts=False)
        assert (spool.state(made.id).state, spool.state(made.id).tries) == ("waiting", tries)


def test_tokens_that_several_create_are_all_kept(tmp_path, together):
    path = tmp_path / "tokens.json"
    names = [[f"n{process}.{number}" for number in range(10)] for process in range(PROCESSES)]
    secrets = together(create_many, path, each=names)
    tokens = Tokens(path)
    assert sorted(tokens.verify(secret).name for secret in secrets) == sorted(itertools.chain(*names))
