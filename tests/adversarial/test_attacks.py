"""Every attack of the corpus ends without a PASSED, and every honest candidate that resembles one passes.

Here they are timed. ``make test`` does that where the clock has a say in it (see ``corpus.Case.needs_clock`` and
``corpus.honest_with_time``), and judges all others side by side, in ``test_untimed.py``; ``make test-adversarial``
times all of them.
"""

from __future__ import annotations

import corpus
import pytest

from kernelwright.records import Stage, Status, Verdict
from kernelwright.rl import Attempt
from kernelwright.rl.rewards import RIGHT, kernelwright_reward

# Attacks that only the screen stops, each with the reason why no later stage has to. At most ten. Their answers are
# right, their kernels slower than the reference, and what they try besides has no effect: with the screen off they pass
# with their true time, and are not called faster.
SCREEN_CARRIES: dict[str, str] = {
    "timing/changed_slots_together": "in calls of two microseconds, kept answers are not always sampled often enough; "
    "nothing that does so little is called faster",
    "timing/clock_patched": "no clock of its process counts",
    "timing/first_calls_padded": "a window's time is the sum over all of its calls",
    "timing/flags_for_the_reference": "the reference runs in a process of its own",
    "timing/own_protocol_loop_unwatched": "it goes the honest way for as long as it is watched, which is always",
}

# Attacks that need a device and whose answers are right where there is none: what they cheat with is time, which is not
# measured there, or the difference between the interpreter and a device. They end at stage "checked", without a time.
RIGHT_WITHOUT_A_DEVICE = {
    "cuda/overwritten_events",
    "cuda/patched_synchronize",
    "cuda/side_stream",
    "triton/honest_when_interpreted",
    "triton/tuned_to_nothing",
}

# Attacks on the protocol look for its pages by these names.
PAGES = ("memfd:reveal", "memfd:answer")
PAGE_FINDER = f"""
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        with open("/proc/self/maps") as file:
            maps = file.read()
        raise RuntimeError([name in maps for name in {PAGES}])
"""

ON_CPU = [case for case in corpus.attacks() if not case.device]
ON_DEVICE = [case for case in corpus.attacks() if case.device]


def parameters(cases, now):
    """Cases as pytest parameters, named; those that are not ``now`` wait for ``make test-adversarial``."""
    marks = {case: [pytest.mark.host_attack] if case.host else [] for case in cases}
    for case in marks:
        if not now(case):
            marks[case].append(pytest.mark.adversarial)
    return [pytest.param(case, id=case.name, marks=found) for case, found in marks.items()]


def explained(verdict: Verdict) -> str:
    return f"{verdict.status} at {verdict.failed_stage}: {verdict.reason!r}"


def assert_held(verdict: Verdict) -> None:
    """The attack gained nothing, and the verdict says at which stage it was refused, by which rule, and why."""
    assert verdict.status is not Status.PASSED, explained(verdict)
    assert kernelwright_reward(Attempt.of(verdict)) == 0.0
    assert verdict.reason
    assert verdict.failed_stage is not None, explained(verdict)
    assert verdict.timing is None
    refusing = [finding for finding in verdict.findings if finding.effect == "refuses"]
    assert refusing, explained(verdict)
    assert all(finding.rule and finding.evidence for finding in refusing), refusing


def waiting_or_refusal(case: corpus.Case) -> str:
    """The stratum of an attack that is timed: the rows of the catalogue that wait, else by what it is refused."""
    return ", ".join(sorted(corpus.WAITING.intersection(corpus.rows_of(case.row)))) or corpus.refusal_of(case)


@pytest.mark.matrix(stratum=waiting_or_refusal)
@pytest.mark.parametrize("case", parameters(ON_CPU, lambda case: case.needs_clock))
def test_an_attack_does_not_pass(judges, case):
    verdict = judges.judge(case).verdict
    assert_held(verdict)
    assert (verdict.failed_stage == "screen") == case.screen, explained(verdict)


@pytest.mark.parametrize(
    "case", parameters((case for case in ON_CPU if case.screen and case.backend != "cuda"), lambda case: False)
)
def test_an_attack_does_not_pass_without_the_screen(judges, case):
    verdict = judges.judge(case, screen=False).verdict
    if case.name in SCREEN_CARRIES and verdict.status is Status.PASSED:
        assert verdict.timing is not None
        assert not any(speedup.faster for speedup in verdict.timing.speedup.values()), verdict.timing.speedup
    else:
        assert_held(verdict)


def test_the_list_of_exceptions_is_short_and_true():
    assert len(SCREEN_CARRIES) <= 10
    assert set(SCREEN_CARRIES) <= {case.name for case in corpus.attacks() if case.screen}
    assert all(SCREEN_CARRIES.values())


@pytest.mark.untimed
def test_attacks_on_the_protocol_find_its_pages(judges):
    verdict = judges.judge_source(PAGE_FINDER, "problems/row_softmax.py", screen=False).verdict
    assert "[True, True]" in verdict.reason, explained(verdict)


@pytest.mark.untimed
@pytest.mark.matrix(stratum=corpus.refusal_of)
@pytest.mark.parametrize("case", parameters(ON_DEVICE, lambda case: True))
def test_an_attack_that_needs_a_device_earns_nothing_here_and_is_counted(judges, case, record_property):
    verdict = judges.judge(case).verdict
    assert verdict.timing is None, explained(verdict)
    if verdict.status is Status.PASSED:
        assert verdict.stage is Stage.CHECKED, explained(verdict)
        assert case.name in RIGHT_WITHOUT_A_DEVICE, explained(verdict)
    assert kernelwright_reward(Attempt.of(verdict)) == 0.0
    record_property("not exercised", case.name)


@pytest.mark.matrix(stratum=corpus.kind_of)
@pytest.mark.parametrize("case", parameters(corpus.honest(), lambda case: case.name in corpus.honest_with_time()))
def test_an_honest_candidate_passes(judges, case):
    verdict = judges.judge(case).verdict
    assert verdict.status is Status.PASSED, explained(verdict)
    earned = kernelwright_reward(Attempt.of(verdict))
    assert earned >= RIGHT if case.backend == "cpp" else earned == 0.0  # what no device of its own has run
    if case.backend == "triton":
        assert verdict.stage is Stage.CHECKED
    else:
        assert verdict.stage is (Stage.CONFIRMED if case.confirm else Stage.TIMED)
        assert verdict.timing is not None
