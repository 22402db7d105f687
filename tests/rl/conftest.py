"""A store, a suite of two small problems, and a referee that does nothing real."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "campaign")]

from campaign_fakes import REFERENCE, FakeReferee  # noqa: E402

from kernelwright.config import Settings  # noqa: E402
from kernelwright.rl import LocalScorer  # noqa: E402
from kernelwright.rl._scoring import ScoreRequest  # noqa: E402
from kernelwright.store import Store  # noqa: E402

PLUS, TIMES = "things/level1/plus_one", "things/level1/times_two"


class Clock:
    """Seconds, as a test sets them; waiting moves them on."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.waited: list[float] = []

    def __call__(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.seconds += seconds


class NotedReferee(FakeReferee):
    """Notes which sessions were opened and ended."""

    def __init__(self, *table, **more) -> None:
        super().__init__(*table, **more)
        self.notes: list[str] = []
        self.point = self.notes.append

    def opened(self) -> list[str]:
        """Names of the problems of the sessions that were opened, in order."""
        return [note.removeprefix("open ") for note in self.notes if note.startswith("open ")]


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def settings(tmp_path):
    folder = tmp_path / "things" / "level1"
    folder.mkdir(parents=True)
    (folder / "plus_one.py").write_text(REFERENCE)
    (folder / "times_two.py").write_text(REFERENCE.replace("x + 1", "x * 2"))
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
def referee():
    return NotedReferee({"v0": 1.0, "v1": 2.0, "v2": 4.0})


@pytest.fixture
def scorer(settings, store, referee, clock):
    with LocalScorer(settings, store, reward="kevin", open_referee=lambda _: referee, clock=clock) as made:
        yield made


@pytest.fixture
def ask():
    def made(source="v1\n", problem=PLUS, **more):
        return ScoreRequest(problem=problem, source=source, **more)

    return made
