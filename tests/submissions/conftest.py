"""A spool, a store and a suite of one problem in a folder of their own; a clock that is set by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "campaign"), str(TESTS / "evaluator")]

from campaign_fakes import REFERENCE, FakeReferee  # noqa: E402

from kernelwright.config import Settings  # noqa: E402
from kernelwright.store import Store  # noqa: E402
from kernelwright.submissions import Spool, SpoolLimits, judge_submissions  # noqa: E402

PROBLEM = "things/level1/plus_one"


class Clock:
    """Seconds since 1970, as a test sets them."""

    def __init__(self) -> None:
        self.seconds = 1_800_000_000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "submissions"


@pytest.fixture
def spool(folder, clock):
    return Spool(folder, now=clock)


@pytest.fixture
def small_spool(folder, clock):
    return Spool(folder, SpoolLimits(source_bytes=100, pending=5, per_hour=3, note_chars=10), now=clock)


@pytest.fixture
def put():
    def submit(spool, source="v0\n", **more):
        return spool.put(**{"problem_id": PROBLEM, "source": source, "author": "ada", **more})

    return submit


@pytest.fixture
def settings(tmp_path):
    problem = tmp_path / "things" / "level1" / "plus_one.py"
    problem.parent.mkdir(parents=True)
    problem.write_text(REFERENCE)
    flags = {
        "store": tmp_path / "store.db",
        "cache_dir": tmp_path / "cache",
        "suite_dirs": (tmp_path / "things",),
        "device": "none",
    }
    return Settings.load(flags=flags, env={})


@pytest.fixture
def store(settings):
    with Store.open(settings.store) as opened:
        yield opened


@pytest.fixture
def fake():
    return FakeReferee({"v0": 1.1, "v1": 2.0})


@pytest.fixture
def run(settings, store, spool, fake):
    """Judges what waits, once; gives the report."""

    def judge(**more):
        return judge_submissions(settings, store, spool, **{"once": True, "open_referee": lambda _: fake, **more})

    return judge
