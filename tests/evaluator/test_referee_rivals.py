"""Candidates that are timed beside others of their kind, with every real part."""

from __future__ import annotations

from referee_candidates import KERNEL, RIGHT, candidate

from kernelwright.evaluator import Confirm, Search
from kernelwright.records import Candidate, Stage, Status

THRICE = candidate("for _ in range(2):\n    lib.softmax(x, y, x.shape[0], x.shape[1])")
OTHERWISE = candidate(kernel=KERNEL.replace("sums[16] = {0}", "sums[16] = {0.0f}"))
BROKEN = candidate("raise RuntimeError('no longer')")
WRONG_WHEN_BUILT = candidate(kernel="this is no C++")


def named(softmax, source: str) -> Candidate:
    return Candidate(problem_id=softmax.problem.id, source=source, backend="cpp")


def judged(softmax, source: str, *beside: str, depth: type = Search):
    rivals = tuple(named(softmax, other) for other in beside)
    return softmax.judge(named(softmax, source), depth(rivals=rivals))


def test_the_faster_of_two_wins_its_race_and_the_slower_loses_it_soon(softmax):
    right, thrice = named(softmax, RIGHT).sha256, named(softmax, THRICE).sha256
    evaluation = judged(softmax, RIGHT, THRICE)
    won = evaluation.verdict.timing.rivals[thrice]
    assert won.faster
    assert 1.01 < won.low <= won.median < 6
    assert won.median > 1.5
    assert {s.role for s in evaluation.samples} == {"candidate", "eager", f"rival {thrice[:12]}"}
    verdict = judged(softmax, THRICE, RIGHT).verdict
    lost = verdict.timing.rivals[right]
    assert (verdict.status, verdict.stage) == (Status.PASSED, Stage.TIMED)
    assert not lost.faster
    assert lost.median < 0.7
    assert lost.high < 1.05
    assert verdict.timing.pairs <= 48, "a hopeless one is not timed to the end"


def test_equals_differ_by_no_more_than_processes_do(softmax):
    verdict = judged(softmax, RIGHT, OTHERWISE).verdict
    found = verdict.timing.rivals[named(softmax, OTHERWISE).sha256]
    assert found.low < 1.05
    assert found.high > 0.95


def test_a_rival_that_fails_is_left_out_and_costs_the_candidate_nothing(softmax):
    thrice = named(softmax, THRICE).sha256
    evaluation = judged(softmax, RIGHT, BROKEN, WRONG_WHEN_BUILT, THRICE)
    verdict = evaluation.verdict
    assert (verdict.status, verdict.stage) == (Status.PASSED, Stage.TIMED), verdict.reason
    assert set(verdict.timing.rivals) == {thrice}
    assert set(verdict.timing.speedup) == {"eager"}
    reasons = {name: text for name, text in evaluation.artifacts.items() if name.startswith("left out")}
    assert len(reasons) == 2
    assert any("no longer" in text for text in reasons.values())
    roles = {s.role for s in evaluation.samples}
    assert roles == {"candidate", "eager", f"rival {thrice[:12]}"}
    assert len(evaluation.samples) == 3 * verdict.timing.pairs


def test_a_confirmation_holds_the_runner_up_in_the_same_processes(softmax):
    thrice = named(softmax, THRICE).sha256
    evaluation = judged(softmax, RIGHT, THRICE, depth=Confirm)
    verdict = evaluation.verdict
    assert verdict.stage is Stage.CONFIRMED, verdict.reason
    assert set(verdict.timing.speedup) == {"eager"}
    assert verdict.timing.rivals[thrice].faster
    beside = {s.process for s in evaluation.samples if s.role == f"rival {thrice[:12]}"}
    assert beside == set(range(verdict.timing.processes))
