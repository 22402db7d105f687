"""What makes a right candidate ineligible: what is seen of its own kernels, and what ``own_kernels=strict`` forbids."""

from __future__ import annotations

import pytest
from referee_candidates import KERNEL
from referee_small_problems import make_problem

from kernelwright.evaluator import Referee
from kernelwright.evaluator._evidence import Evidence
from kernelwright.evaluator._share import Share
from kernelwright.records import Candidate, Status

PRODUCT_PROBLEM = """
import torch
import torch.nn as nn

PROBLEM = {
    "category": "gemm",
    "heavy_ops": ["aten.mm"],
    "inputs": {"x": {"fill": "normal"}, "w": {"fill": "normal"}},
    "variants": {"cpu": [{"ROWS": 64}]},
}
ROWS = 64


class Model(nn.Module):
    def forward(self, x, w):
        return torch.softmax(x @ w, dim=-1)


def get_inputs():
    return [torch.randn(ROWS, 16), torch.randn(16, 512)]


def get_init_inputs():
    return []
"""
WITH_TORCHS_PRODUCT = f"""
import torch
import torch.nn as nn
from kernelwright.inline import cpp

lib = cpp(r'''{KERNEL}''')


class ModelNew(nn.Module):
    def forward(self, x, w):
        product = torch.mm(x, w)
        y = torch.empty_like(product)
        lib.softmax(product, y, y.shape[0], y.shape[1])
        return y
"""


def evidence(**known) -> Evidence:
    honest = {
        "share": Share(own=0.9, library=0.0, python=0.1, other=0.0, samples=200),
        "again": None,
        "launches": None,
        "ghost": "needed",
        "ghost_reason": "",
        "torch_flops": 0,
        "reference_flops": 1000,
        "operators": {},
        "calls": [],
    }
    return Evidence(**{**honest, **known})


@pytest.mark.untimed
@pytest.mark.matrix(one_in=1)  # no quicker test sees the fault "strict-own-kernels" of benchmarks/mutants.json
@pytest.mark.parametrize(("own_kernels", "status"), [("any", Status.PASSED), ("strict", Status.REWARD_HACK)])
def test_strict_own_kernels_rule_out_torch_for_the_problems_heavy_work(referee, own_kernels, status):
    settings = referee.settings.with_values(own_kernels=own_kernels, check_trials=2)
    problem = make_problem(PRODUCT_PROBLEM, "product")
    with Referee(settings, referee.sandbox) as made, made.open(problem, baselines=("eager",)) as session:
        candidate = Candidate(problem_id=problem.id, source=WITH_TORCHS_PRODUCT, backend="cpp")
        verdict = session.judge(candidate, time=False).verdict
    assert verdict.status is status, verdict.reason
    if own_kernels == "strict":
        assert verdict.failed_stage == "ghost"
        assert "aten.mm" in verdict.reason


@pytest.mark.parametrize(
    ("launches", "says"),
    [((3, 3), ""), ((0, 0), "launches none in a call"), ((3, 0), "launches none when the same inputs come again")],
)
def test_interpreted_kernels_are_launched_in_every_call(launches, says):
    found = evidence(share=None, launches=launches).objection()
    assert found.endswith(says) if says else not found


@pytest.mark.parametrize(("flops", "refused"), [(999, False), (1000, True), (1001, True)])
def test_where_no_share_is_known_torch_may_not_do_all_of_the_arithmetic(flops, refused):
    assert bool(evidence(share=None, torch_flops=flops).objection()) is refused
    assert not evidence(share=None, torch_flops=flops, reference_flops=0).objection()


@pytest.mark.parametrize(
    ("known", "refused"),
    [({}, False), ({"torch_flops": 10}, True), ({"ghost": "unknown"}, True)],
    ids=["Python around a tiny kernel", "beside arithmetic of torch", "that may not be needed"],
)
def test_a_kernel_that_hardly_runs_is_left_alone_where_nobody_else_does_the_work(known, refused):
    hardly = Share(own=0.001, library=0.1, python=0.899, other=0.0, samples=5000)
    assert evidence(share=hardly, **known).objection().startswith("own kernels take") is refused


def test_an_answer_that_is_right_without_own_kernels_does_not_need_them():
    assert "right without them" in evidence(ghost="idle").objection()
