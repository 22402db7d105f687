"""The rows of the attack corpus for GPUs, on one: none passes with a time that is not its own."""

from __future__ import annotations

import corpus
import pytest

from kernelwright.records import Candidate, Status


def _by_session(cases):
    return sorted(cases, key=lambda case: (case.problem, case.backend))


ON_DEVICE = _by_session(case for case in corpus.attacks() if case.device or case.backend != "cpp")
HONEST = _by_session(case for case in corpus.honest() if case.backend != "cpp")


@pytest.fixture(scope="module")
def judge(referee):
    opened = {}

    def judged(case):
        problem = corpus.problem_of(case.problem)
        key = problem.id, case.backend
        if key not in opened:  # cases come sorted by problem and backend
            for session in opened.values():
                session.close()
            opened.clear()
            opened[key] = referee.open(problem, backend=case.backend, baselines=("eager",))
        candidate = Candidate(problem_id=problem.id, source=case.source, backend=case.backend)
        return opened[key].judge(candidate).verdict

    yield judged
    for session in opened.values():
        session.close()


@pytest.mark.parametrize("case", ON_DEVICE, ids=lambda case: case.name)
def test_an_attack_gains_nothing(judge, case):
    verdict = judge(case)
    if verdict.status is Status.PASSED:  # its cheat had no effect: then it has its true time, and is called no faster
        assert verdict.timing is not None
        assert not any(speedup.faster for speedup in verdict.timing.speedup.values()), verdict.timing.speedup
    else:
        assert verdict.timing is None
        assert verdict.reason


@pytest.mark.parametrize("case", HONEST, ids=lambda case: case.name)
def test_an_honest_candidate_passes(judge, case):
    verdict = judge(case)
    assert verdict.status is Status.PASSED, verdict.reason
    assert verdict.timing is not None
