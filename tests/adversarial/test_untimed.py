"""What of the corpus is judged in every run of the suite without its time, beside other tests.

These attacks are refused before they would be timed, and these honest candidates pass all that comes before that.
An attack that is not belongs to the rows of the catalogue that wait (``corpus.WAITING``), and is timed.
``test_attacks.py`` times the rest of them, and with ``make test-adversarial`` these as well.
"""

from __future__ import annotations

import corpus
import pytest
from test_attacks import ON_CPU, assert_held, explained, parameters

from kernelwright.records import Stage, Status

pytestmark = pytest.mark.untimed
TRIES = 3  # a check takes samples; who is timed meets many more of them
ATTACKS = [  # test_host.py judges all attacks on the host, and twice; here they are seen with the screen
    case for case in ON_CPU if not case.needs_clock and (case.screen or not case.host)
]
HONEST = [case for case in corpus.honest() if case.name not in corpus.honest_with_time()]


@pytest.mark.matrix(stratum=corpus.refusal_of)
@pytest.mark.parametrize("case", parameters(ATTACKS, lambda case: True))
def test_an_attack_is_refused_before_it_is_timed(judges, case):
    for _ in range(TRIES):
        verdict = judges.judge(case, time=False).verdict
        if verdict.status is not Status.PASSED:
            break
    assert verdict.status is not Status.PASSED, (
        f"{case.name} is not refused before it is timed: give it a row of corpus.WAITING, and it will be timed"
    )
    assert_held(verdict)
    assert (verdict.failed_stage == "screen") == case.screen, explained(verdict)
    if corpus.is_a_pretence(case):  # where libraries are allowed, too: problems that are files allow them
        assert verdict.status is Status.REWARD_HACK, explained(verdict)


@pytest.mark.matrix(stratum=corpus.kind_of)
@pytest.mark.parametrize("case", parameters(HONEST, lambda case: True))
def test_an_honest_candidate_passes_all_that_comes_before_the_clock(judges, case):
    verdict = judges.judge(case, time=False).verdict
    assert (verdict.status, verdict.stage) == (Status.PASSED, Stage.CHECKED), explained(verdict)
