"""One referee and its open problems for all candidates of the corpus; real parts throughout."""

from __future__ import annotations

import os

import corpus
import pytest

from kernelwright.config import Settings
from kernelwright.evaluator import Check, Confirm, ProblemSession, Referee, Search
from kernelwright.records import Backend, Candidate, Evaluation

SANDBOX = os.environ.get("KERNELWRIGHT_TEST_SANDBOX", "auto")
_LIVE_TWINS = 3  # processes of references that are kept alive; the others start again when they are needed


class Judges:
    """Sessions on problems, opened on first use and kept; each reference is prepared once."""

    def __init__(self, referee: Referee) -> None:
        self._referee = referee
        self._sessions: dict[str, ProblemSession] = {}

    def judge(self, case: corpus.Case, *, time: bool = True, screen: bool = True) -> Evaluation:
        """One candidate of the corpus through all stages; ``screen``: whether the screen may refuse it."""
        depth: Check = Confirm(static=False) if case.confirm else Search(static=False)
        if not time:
            depth = Check(static=False)
        return self.judge_source(case.source, case.problem, case.backend, depth=depth, screen=screen)

    def judge_source(
        self, source: str, problem: str, backend: Backend = "cpp", *, depth: Check | None = None, screen: bool = True
    ) -> Evaluation:
        """A candidate that is in no file, on a problem named as headers name them."""
        session = self._session(problem)
        candidate = Candidate(problem_id=session.problem.id, source=source, backend=backend)
        session.screens = screen
        return session.judge(candidate, depth or Search(static=False))

    def close(self) -> None:
        """End everything that was opened."""
        for session in self._sessions.values():
            session.close()

    def _session(self, problem: str) -> ProblemSession:
        """The session on a problem; the least recently used ones give their live twins back."""
        session = self._sessions.pop(problem, None)
        if session is None:
            session = self._referee.open(corpus.problem_of(problem), baselines=("eager",))
        self._sessions[problem] = session
        for idle in list(self._sessions.values())[:-_LIVE_TWINS]:
            idle.restart_twins()
        return session


@pytest.fixture(scope="session")
def judges(make_cache):
    settings = Settings.load(
        flags={
            "cache_dir": str(make_cache()),
            "device": "none",
            "sandbox": SANDBOX,
            "measurement": {
                "looks": (12,),
                "window_ms": 1.0,
                "confirm_pairs": 5,
                "confirm_max_pairs": 5,
            },
            "call_timeout_s": 3.0,
            "build_timeout_s": 150.0,  # torch's own headers, on a slow machine
            "memory_bytes": 3 << 29,
        },
        env={},
    )
    with Referee(settings) as referee:
        made = Judges(referee)
        try:
            yield made
        finally:
            made.close()
