"""The whole way with the real referee: one kernel that is right and one that is wrong, on a tiny problem."""

from __future__ import annotations

import shutil

import pytest
from referee_candidates import KERNEL, candidate
from referee_small_problems import SOFTMAX_PROBLEM

from kernelwright.config import Settings
from kernelwright.evaluator import Referee
from kernelwright.store import Store
from kernelwright.submissions import QueueReport, Spool, judge_submissions

PROBLEM = "tiny/level1/softmax"

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None or shutil.which("bwrap") is None, reason="needs g++ and bubblewrap"
)


@pytest.fixture
def quick(tmp_path, make_cache):
    problem = tmp_path / "tiny" / "level1" / "softmax.py"
    problem.parent.mkdir(parents=True)
    problem.write_text(SOFTMAX_PROBLEM)
    flags = {
        "store": tmp_path / "store.db",
        "cache_dir": make_cache(),
        "suite_dirs": (tmp_path / "tiny",),
        "device": "none",
        "baselines": ("eager",),
        "measurement": {
            "looks": (8, 12),
            "window_ms": 0.5,
            "check_trials": 2,
            "confirm_pairs": 5,
            "confirm_max_pairs": 5,
            "noise_bound": 0.3,  # tests run on busy machines, where a control strays far
        },
        "memory_bytes": 1 << 30,
    }
    return Settings.load(flags=flags, env={})


def test_a_right_kernel_is_confirmed_and_a_wrong_one_refused(quick, tmp_path):
    spool = Spool(tmp_path / "submissions")
    right = spool.put(problem_id=PROBLEM, source=candidate(), author="ada")
    wrong = spool.put(
        problem_id=PROBLEM, source=candidate(kernel=KERNEL.replace("/= sum", "/= sum * 1.01f")), author="bob"
    )
    told = []
    with Store.open(quick.store) as store:
        report = judge_submissions(quick, store, spool, once=True, tell=told.append, open_referee=Referee)
        assert report == QueueReport(passed=1, refused=1), told
        (row,) = store.best(confirmed_only=True)
        assert (row.problem, row.author, row.confirmed) == (PROBLEM, "submitted:ada", True)
        check, confirmation = map(store.evaluation, spool.state(right.id).evaluations)
        assert (check.verdict.stage, check.verdict.timing) == ("checked", None)
        assert (confirmation.id, confirmation.verdict.stage) == (row.evaluation_id, "confirmed")
        assert not {"time", "confirm"} & set(check.verdict.seconds)
        assert "time" not in confirmation.verdict.seconds
        assert check.verdict.correctness.check_set != confirmation.verdict.correctness.check_set, "other secrets"
        assert not any(sample.phase == "search" for sample in confirmation.evaluation.samples)
    assert spool.state(wrong.id).status == "INCORRECT_NUMERICAL"
    assert len(spool.state(wrong.id).evaluations) == 1
