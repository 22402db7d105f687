"""Attacks on a device's protocol, beside honest look-alikes: none is called faster, none of the honest is refused."""

from __future__ import annotations

import pytest
from device_rows import ATTACKS, LOOK_ALIKES, SLOW_SOFTMAX
from referee_small_problems import SOFTMAX_PROBLEM, make_problem, unscreened

from kernelwright.evaluator import Check, Referee
from kernelwright.records import Candidate, Status


@pytest.fixture(scope="module")
def session(referee, stand_in_device, stand_in_builds):
    method = referee.settings.measurement.with_values(looks=(3,), check_trials=3)
    settings = referee.settings.with_values(measurement=method, call_timeout_s=2.0)
    with Referee(settings, device=stand_in_device) as made:
        made.host.builds = stand_in_builds(made.host.builds)
        with made.open(make_problem(SOFTMAX_PROBLEM, "softmax"), backend="cuda", baselines=("eager",)) as opened:
            yield opened


@pytest.fixture
def judge(session):
    def judged(added, depth=None):
        with unscreened(session):
            source = SLOW_SOFTMAX + added
            return session.judge(Candidate(problem_id="softmax", source=source, backend="cuda"), depth).verdict

    return judged


def faster(verdict) -> bool:
    return verdict.timing is not None and any(found.faster for found in verdict.timing.speedup.values())


@pytest.mark.parametrize("row", ATTACKS, ids=lambda row: row.name)
def test_an_attack_gains_nothing_and_the_next_candidate_goes_on(judge, row):
    verdict = judge(row.added)
    assert not (verdict.status is Status.PASSED and faster(verdict)), (verdict.status, verdict.timing)
    if row.statuses:
        assert verdict.status in row.statuses, (verdict.status, verdict.reason)
    if row.clock and verdict.status is Status.PASSED:
        clock = next(finding.evidence for finding in verdict.findings if finding.rule == "device-clock")
        assert clock.startswith(row.clock)
    assert judge("", Check()).status is Status.PASSED


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_an_honest_look_alike_passes(judge, name):
    verdict = judge(LOOK_ALIKES[name])
    assert verdict.status is Status.PASSED, (verdict.status, verdict.reason)
