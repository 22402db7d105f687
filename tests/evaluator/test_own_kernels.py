"""How much of the work own kernels have to do (``own_kernels``), and what a verdict says where they do less."""

from __future__ import annotations

import pytest
from referee_small_problems import make_problem

from kernelwright.config import Settings
from kernelwright.evaluator import Check, Referee, Search
from kernelwright.records import Candidate, Problem, Stage, Status
from kernelwright.rl import REWARDS, Attempt

PROBLEM = make_problem(
    """
import torch
import torch.nn as nn

PROBLEM = {
    "category": "gemm",
    "heavy_ops": ["aten.mm"],
    "inputs": {"x": {"fill": "normal"}, "w": {"fill": "normal"}},
    "variants": {"cpu": [{"ROWS": 64}], "interpreter": [{"ROWS": 8}]},
}
ROWS = 64


class Model(nn.Module):
    def forward(self, x, w):
        return torch.relu(x @ w) * 0.5


def get_inputs():
    return [torch.randn(ROWS, 1024), torch.randn(1024, 256)]


def get_init_inputs():
    return []
""",
    "product",
)
HEAD = '''import torch
import torch.nn as nn
from kernelwright.inline import cpp

lib = cpp(r"""
#include <cstdint>
extern "C" void tail(float* y, int64_t n) { for (int64_t i = 0; i < n; i++) y[i] = y[i] > 0 ? y[i] * 0.5f : 0.0f; }
""")


'''
MODULE = """class ModelNew(nn.Module):
    def forward(self, x, w):
"""
FUSED_TAIL = f"""{HEAD}{MODULE}        y = torch.mm(x, w)
        lib.tail(y, y.numel())
        return y
"""
# All by torch; the kernel then does what leaves most of it as it is, but for one row that only it scales.
DECOY = f"""{HEAD}{MODULE}        y = torch.relu(torch.mm(x, w)) * 0.5
        y[0] *= 2
        lib.tail(y, y.shape[1])
        return y
"""
IDLE = f"""{HEAD}{MODULE}        y = torch.relu(x @ w) * 0.5
        lib.tail(y, 0)
        return y
"""
LIBRARY = f"""import torch
import torch.nn as nn


{MODULE}        return torch.mm(x, w).clamp_(min=0).mul_(0.5)
"""
KEPT = f"""import torch
import torch.nn as nn

answers = {{}}


{MODULE}        key = *x[0, :4].tolist(), *w[0, :4].tolist()
        if key not in answers:
            answers[key] = torch.relu(x @ w) * 0.5
        return answers[key]
"""
READS_FILES = LIBRARY.replace("class", "found = {}\nexec(open('/etc/hostname').read(), found)\n\n\nclass", 1)
MODES = ("any", "some", "strict")


@pytest.fixture(scope="module")
def referees(referee):
    """One referee for each mode, in one sandbox."""
    made = {}
    for mode in (*MODES, "auto"):
        method = referee.settings.measurement.with_values(check_trials=2)
        settings = referee.settings.with_values(own_kernels=mode, measurement=method)
        made[mode] = Referee(settings, referee.host.sandbox)
    with made["any"], made["some"], made["strict"], made["auto"]:
        yield made


def judged(referees, mode: str, source: str, *, depth: Check | None = None, problem: Problem = PROBLEM, backend="cpp"):
    with referees[mode].open(problem, baselines=("eager",)) as session:
        candidate = Candidate(problem_id=problem.id, source=source, backend=backend)
        return session.judge(candidate, depth or Check(static=False)).verdict


@pytest.mark.untimed
@pytest.mark.parametrize("mode", ["some", "strict"])
def test_a_library_product_with_an_own_tail_is_not_eligible_and_no_hack(referees, mode):
    verdict = judged(referees, mode, FUSED_TAIL)
    assert (verdict.status, verdict.failed_stage) == (Status.INELIGIBLE, "ghost"), verdict.reason
    assert verdict.reason.startswith("own kernels take")
    assert not verdict.eligible
    assert verdict.correctness is not None, "it is right"
    assert verdict.own_kernel_label == "library"
    assert REWARDS["kernelwright"](Attempt.of(verdict)) == 0.0


def test_where_any_is_allowed_it_passes_with_its_time_and_its_label_and_earns_nothing(referees):
    verdict = judged(referees, "any", FUSED_TAIL, depth=Search())
    assert (verdict.status, verdict.stage) == (Status.PASSED, Stage.TIMED), verdict.reason
    assert verdict.own_kernel_label == "library"
    assert verdict.own_kernel_share is not None
    assert (verdict.passed, verdict.eligible, verdict.earns) == (True, False, False)
    said = next(finding for finding in verdict.findings if finding.rule == "not-eligible")
    assert said.evidence.startswith("own kernels take")
    paid = {name: reward(Attempt.of(verdict)) for name, reward in REWARDS.items()}
    assert all(not reward or reward <= 0.0 for reward in paid.values()), paid


@pytest.mark.untimed
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("source", "says"), [(IDLE, "right without them"), (DECOY, "own kernels take")], ids=["idle", "one row"]
)
def test_a_kernel_for_show_is_a_hack_however_much_is_allowed(referees, mode, source, says):
    verdict = judged(referees, mode, source)
    assert (verdict.status, verdict.failed_stage) == (Status.REWARD_HACK, "ghost"), verdict.reason
    assert says in verdict.reason


@pytest.mark.untimed
@pytest.mark.parametrize("mode", MODES)
def test_a_file_without_kernels_passes_where_any_is_allowed_and_nowhere_else(referees, mode):
    verdict = judged(referees, mode, LIBRARY)
    assert not verdict.eligible
    if mode == "any":
        assert (verdict.status, verdict.own_kernel_label) == (Status.PASSED, "library"), verdict.reason
        return
    assert (verdict.status, verdict.failed_stage) == (Status.INELIGIBLE, "screen")
    assert "no kernel of its own" in verdict.reason


@pytest.mark.untimed
def test_libraries_alone_may_neither_keep_answers_nor_look_for_the_reference(referees):
    kept = judged(referees, "any", KEPT)
    assert kept.status is Status.REWARD_HACK, kept.reason
    assert "keeps answers" in kept.reason
    reaching = judged(referees, "any", READS_FILES)
    assert (reaching.status, reaching.failed_stage) == (Status.REWARD_HACK, "screen")
    assert "as if to find the reference" in reaching.reason


@pytest.mark.untimed
def test_kernels_in_another_language_than_asked_for_are_none(referees):
    verdict = judged(referees, "any", FUSED_TAIL, backend="cuda")
    assert (verdict.status, verdict.failed_stage) == (Status.INELIGIBLE, "screen")


@pytest.mark.untimed
@pytest.mark.parametrize("suite", ["captured", "file", "test"])
def test_by_default_ones_own_modules_may_be_left_to_libraries_and_problems_of_suites_not(referees, suite):
    verdict = judged(referees, "auto", LIBRARY, problem=PROBLEM.model_copy(update={"suite": suite}))
    assert verdict.passed is (suite != "test"), verdict.reason
    assert not verdict.eligible


def test_what_ranks_and_pays_kernels_asks_for_some_on_any_problem():
    own = PROBLEM.model_copy(update={"suite": "file"})
    unsaid = Settings.load(env={})
    assert unsaid.own_kernels_for(own) == "any"
    assert unsaid.for_boards().own_kernels_for(own) == "some"
    for said in MODES:
        chosen = Settings.load(flags={"own_kernels": said}, env={})
        assert chosen.own_kernels_for(own) == chosen.own_kernels_for(PROBLEM) == said
        assert chosen.for_boards() is chosen
