"""What is seen of a right candidate's own kernels: what makes it a hack, and what makes it not eligible."""

from __future__ import annotations

import pytest
from referee_candidates import KERNEL
from referee_small_problems import make_problem

from kernelwright.evaluator import Check, Referee
from kernelwright.evaluator.own.evidence import Evidence
from kernelwright.evaluator.own.shares import Share
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
@pytest.mark.parametrize(("own_kernels", "status"), [("some", Status.PASSED), ("strict", Status.INELIGIBLE)])
def test_strict_own_kernels_rule_out_torch_for_the_problems_heavy_work(referee, own_kernels, status):
    method = referee.settings.measurement.with_values(check_trials=2)
    settings = referee.settings.with_values(own_kernels=own_kernels, measurement=method)
    problem = make_problem(PRODUCT_PROBLEM, "product")
    with Referee(settings, referee.host.sandbox) as made, made.open(problem, baselines=("eager",)) as session:
        candidate = Candidate(problem_id=problem.id, source=WITH_TORCHS_PRODUCT, backend="cpp")
        verdict = session.judge(candidate, depth=Check()).verdict
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
    assert bool(evidence(share=None, torch_flops=flops).shortfall()) is refused
    assert not evidence(share=None, torch_flops=flops, reference_flops=0).objection()


def test_where_no_share_is_known_and_kernels_cannot_be_stubbed_a_missing_step_is_no_proof_of_pretence():
    found = evidence(share=None, ghost="unknown", torch_flops=1000, torch_steps=1, reference_steps=2)
    assert not found.objection()
    assert found.shortfall()
    assert found.label == "library"


HARDLY = Share(own=0.001, library=0.1, python=0.899, other=0.0, samples=5000)


@pytest.mark.parametrize(
    ("known", "short"),
    [({}, False), ({"torch_flops": 10}, True), ({"ghost": "unknown"}, True)],
    ids=["Python around a tiny kernel", "beside arithmetic of torch", "that may not be needed"],
)
def test_a_kernel_that_hardly_runs_is_left_alone_where_nobody_else_does_the_work(known, short):
    found = evidence(share=HARDLY, **known)
    assert found.shortfall().startswith("own kernels take") is short
    assert not found.objection()


@pytest.mark.parametrize(
    ("flops", "steps", "hack"), [(1000, 3, True), (1000, 4, True), (1000, 2, False), (999, 3, False)]
)
def test_a_kernel_that_hardly_runs_is_for_show_where_torch_does_all_that_the_reference_does(flops, steps, hack):
    found = evidence(share=HARDLY, torch_flops=flops, torch_steps=steps, reference_steps=3)
    assert bool(found.objection()) is hack
    assert found.shortfall()


@pytest.mark.parametrize(
    ("share", "steps", "strict"),
    [
        (Share(own=0.9, library=0.05, python=0.05, other=0.0, samples=500), 1, True),
        (Share(own=0.7, library=0.25, python=0.05, other=0.0, samples=500), 1, False),
        (Share(own=0.7, library=0.0, python=0.05, other=0.25, samples=500), 1, False),
        (Share(own=0.7, library=0.25, python=0.05, other=0.0, samples=20), 1, True),
        (Share(own=0.2, library=0.1, python=0.7, other=0.0, samples=500), 0, True),
    ],
    ids=["a tenth", "a quarter in libraries", "a quarter in code of nobody", "too few samples", "allocating alone"],
)
def test_strict_leaves_libraries_a_tenth_of_the_time(share, steps, strict):
    assert bool(evidence(share=share, torch_steps=steps).shortfall_of_strict(())) is not strict


def test_work_that_is_left_to_others_once_it_is_timed_is_pretence_and_a_little_less_of_little_is_not():
    before = Share(own=0.9, library=0.0, python=0.1, other=0.0, samples=200)
    after = Share(own=0.0, library=0.9, python=0.1, other=0.0, samples=200)
    assert "once it is timed" in evidence(share=before, torch_flops=1).objection_while_timed(after)
    little = evidence(share=before._replace(own=0.08, library=0.82), torch_flops=1)
    assert not little.objection_while_timed(after._replace(own=0.01, library=0.89))
    assert "once it is timed" in little.shortfall_while_timed(after._replace(own=0.01, library=0.89))


def test_an_answer_that_is_right_without_own_kernels_does_not_need_them():
    assert "right without them" in evidence(ghost="idle").objection()
