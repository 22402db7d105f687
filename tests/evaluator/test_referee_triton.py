"""What is said of Triton candidates without a device: every launch, compiled for three architectures."""

from __future__ import annotations

import pytest
from referee_small_problems import SOFTMAX_KERNEL, SOFTMAX_PROBLEM, make_problem, unscreened

from kernelwright.evaluator import Referee, Search
from kernelwright.evaluator.profile.expected import H100
from kernelwright.evaluator.profile.static import objection
from kernelwright.records import Candidate, KernelResources, Profile, Stage, Status

pytestmark = pytest.mark.untimed
CANDIDATE = f"""{SOFTMAX_KERNEL}

@triton.autotune(configs=[CONFIGS], key=["steps"])
@triton.jit
def product_kernel(a, c, steps, B: tl.constexpr):
    r = tl.arange(0, B)
    at = r[:, None] * B + r[None, :]
    acc = tl.zeros((B, B), dtype=tl.float32)
    for k in range(steps):
        acc += tl.dot(tl.load(a + at + k * B * B), tl.load(a + at + k * B * B))
    tl.store(c + at, acc)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        EXTRA
        return y
"""
PRODUCT = (
    "product_kernel[(1,)](torch.zeros(2 * 128 * 128, dtype=torch.bfloat16, device=x.device), "
    "torch.empty(128 * 128, device=x.device), 2)"
)
SMALL = 'triton.Config({"B": 128}, num_warps=8, num_stages=2)'
LARGE = 'triton.Config({"B": 128}, num_warps=8, num_stages=9)'


@pytest.fixture
def judge(softmax):
    def judge(configs=SMALL, extra="", **replacing):
        source = CANDIDATE.replace("CONFIGS", configs).replace("EXTRA", extra)
        for old, new in replacing.items():
            source = source.replace(old, new)
        made = Candidate(problem_id=softmax.problem.id, source=source, backend="triton")
        return softmax.judge(made).verdict

    return judge


def test_kernels_are_interpreted_after_a_compiler_was_started_for_a_baseline_as_well(referee):
    problem = make_problem(SOFTMAX_PROBLEM, "softmax")
    source = CANDIDATE.replace("CONFIGS", SMALL).replace("EXTRA", "")
    with Referee(referee.settings) as made, made.open(problem, backend="triton", baselines=("eager",)) as session:
        made.host.worker("kernelwright.evaluator.worker.compiler:main", name="compiler", allow_exec=True).close()
        verdict = session.judge(Candidate(problem_id=problem.id, source=source, backend="triton")).verdict
    assert verdict.status is Status.PASSED, verdict.reason


def test_every_launch_has_its_resources_on_every_architecture(judge):
    verdict = judge()
    assert (verdict.status, verdict.stage, verdict.timing) == (Status.PASSED, Stage.CHECKED, None), verdict.reason
    assert [kernel.architecture for kernel in verdict.profile.kernels] == ["sm_80", "sm_90", "sm_100"]
    for kernel in verdict.profile.kernels:
        assert (kernel.kernel, kernel.block, kernel.spilled_bytes, kernel.problem) == ("softmax_kernel", 128, 0, "")
        assert kernel.registers > 8
        assert kernel.instructions > 50
        assert kernel.global_accesses
        assert 0 < kernel.occupancy <= 1


def test_configurations_that_cannot_be_launched_are_named_and_the_others_ranked_before_them(judge):
    verdict = judge(f"{LARGE}, {SMALL}", PRODUCT)
    assert verdict.status is Status.PASSED, verdict.reason
    on_hopper = [k for k in verdict.profile.kernels if (k.architecture, k.kernel) == ("sm_90", "product_kernel")]
    by_stages = {kernel.knobs["num_stages"]: kernel for kernel in on_hopper}
    assert sorted(by_stages) == [2, 9]
    assert any("MMA" in name for name in by_stages[2].matrix_instructions)
    assert by_stages[2].problem == ""
    assert "bytes of shared memory, and 232448 are the most" in by_stages[9].problem
    notes = [note for note in verdict.profile.notes if note.startswith("product_kernel")]
    assert ["num_stages=2" in note for note in notes] == [True, False]
    assert "num_stages=9) on sm_90 cannot be launched" in notes[1]


def test_a_tile_that_can_be_launched_nowhere_refuses_the_candidate(judge):
    verdict = judge(LARGE, PRODUCT)
    assert (verdict.status, verdict.failed_stage) == (Status.COMPILE_ERROR, "build")
    assert "product_kernel (B=128" in verdict.reason
    assert "cannot run on any of sm_80, sm_90, sm_100" in verdict.reason
    assert "build-cannot-launch" in [finding.rule for finding in verdict.findings]


def test_a_wrong_kernel_has_its_profile_too(judge):
    verdict = judge(**{"exponents / tl.sum": "1.001 * exponents / tl.sum"})
    assert verdict.status is Status.INCORRECT_NUMERICAL
    assert verdict.profile.kernels


def test_a_candidate_that_ends_its_process_where_it_is_compiled_costs_only_the_profile(softmax):
    ending = "None if type(x) is torch.Tensor else __import__('os')._exit(3)"
    source = CANDIDATE.replace("CONFIGS", SMALL).replace("EXTRA", ending)
    made = Candidate(problem_id=softmax.problem.id, source=source, backend="triton")
    with unscreened(softmax):
        verdict = softmax.judge(made).verdict
    assert verdict.status is Status.PASSED, verdict.reason
    assert "launches could not be captured" in verdict.profile.notes[0]


def test_flow_that_depends_on_data_is_told_and_costs_only_the_profile(judge):
    verdict = judge(extra="assert float(y[0, 0]) > -1.0")
    assert verdict.status is Status.PASSED, verdict.reason
    assert any("could not all be captured" in note for note in verdict.profile.notes)
    assert {kernel.kernel for kernel in verdict.profile.kernels} == {"softmax_kernel"}


def resources(kernel, architecture, problem=""):
    return KernelResources(kernel=kernel, architecture=architecture, problem=problem)


@pytest.mark.parametrize(
    ("kernels", "refused"),
    [
        ([], False),
        ([resources("f", "sm_80"), resources("f", "sm_90")], False),
        ([resources("f", "sm_80", "too large"), resources("f", "sm_90")], False),
        ([resources("f", "sm_80", "too large"), resources("f", "sm_90", "too large")], True),
        ([resources("f", "sm_90", "too large"), resources("f", "sm_90")], False),
        ([resources("f", "sm_90", "too large"), resources("g", "sm_90")], True),
    ],
)
def test_one_architecture_and_one_configuration_are_enough(kernels, refused):
    said = objection(Profile(rung="static", kernels=tuple(kernels)))
    assert bool(said) == refused
    assert ("too large" in said) == refused


GELU_PROBLEM = """
import torch
import torch.nn as nn

PROBLEM = {
    "category": "pointwise",
    "inputs": {"x": {"fill": "normal", "low": -100.0, "high": 100.0}},
    "variants": {"interpreter": [{"N": 300}]},
}
N = 300


class Model(nn.Module):
    def forward(self, x):
        return torch.nn.functional.gelu(x)


def get_inputs():
    return [torch.randn(N)]


def get_init_inputs():
    return []
"""
GELU = """
import torch
import triton
import triton.language as tl
from torch import nn
from triton.language.extra import libdevice


@triton.jit
def gelu_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < n)
    tl.store(y + at, 0.5 * values * libdevice.erfc(-values * 0.70710678118654752), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        gelu_kernel[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), BLOCK=128)
        return y
"""


def test_what_the_interpreter_computes_is_not_taken_for_the_candidates_own_torch(referee):
    with referee.open(make_problem(GELU_PROBLEM, "gelu"), baselines=("eager",)) as session:
        made = Candidate(problem_id=session.problem.id, source=GELU, backend="triton")
        verdict = session.judge(made, depth=Search(static=False)).verdict
    assert verdict.status is Status.PASSED, verdict.reason
    assert not any(found.rule == "torch-operators" and "erfc" in found.evidence for found in verdict.findings)


LARGE_ROWS, LARGE_COLUMNS = 16_384, 4096  # in which an interpreter would take hours


def test_without_variants_for_the_interpreter_large_sizes_are_made_small_and_it_is_said(referee):
    declared = '"interpreter": [{"ROWS": 4, "COLS": 64}, {"ROWS": 3, "COLS": 37}],'
    assert declared in SOFTMAX_PROBLEM
    large = SOFTMAX_PROBLEM.replace(declared, "").replace("ROWS = 64", f"ROWS = {LARGE_ROWS}")
    problem = make_problem(large.replace("COLS = 512", f"COLS = {LARGE_COLUMNS}"), "large")
    source = CANDIDATE.replace("CONFIGS", SMALL).replace("EXTRA", "")
    with referee.open(problem, backend="triton", baselines=("eager",)) as session:

        def judge(text: str, **depth: bool):
            made = Candidate(problem_id=problem.id, source=text, backend="triton")
            return session.judge(made, depth=Search(**depth)).verdict

        right, wrong = judge(source), judge(source.replace("return y", "return y * 1.01"), static=False)
        small = session.small("triton")
        assert session.small("cpp") is None
    assert (right.status, right.problem) == (Status.PASSED, problem.id), right.reason
    (told,) = [finding for finding in right.findings if finding.rule == "fitted-sizes"]
    assert "checked in fitted sizes (COLS=" in told.evidence
    assert "variants for 'interpreter'" in told.evidence
    (x,) = right.variant.inputs
    rows, columns = (int(size) for size in x.removeprefix("x float32[").removesuffix("]").split(", "))
    assert 8 <= rows <= 128
    assert 8 <= columns <= 128
    assert wrong.status is Status.INCORRECT_NUMERICAL
    assert f"(in fitted sizes: COLS={columns},ROWS={rows})" in wrong.reason
    assert f"ROWS = {rows}\n" in small.source
    least_us = 2 * 4 * LARGE_ROWS * LARGE_COLUMNS / (H100.memory_tb_s * 1e6)
    assert right.profile.metrics["expected_us"] > least_us  # the profile is of the problem's own sizes


def test_sizes_that_are_small_already_stay_as_they_are(referee):
    small = SOFTMAX_PROBLEM.replace('"interpreter": [{"ROWS": 4, "COLS": 64}, {"ROWS": 3, "COLS": 37}],', "")
    problem = make_problem(small.replace("ROWS = 64", "ROWS = 5"), "small")
    source = CANDIDATE.replace("CONFIGS", SMALL).replace("EXTRA", "")
    with referee.open(problem, backend="triton", baselines=("eager",)) as session:
        made = Candidate(problem_id=problem.id, source=source, backend="triton")
        verdict = session.judge(made, depth=Search(static=False)).verdict
    assert verdict.passed, verdict.reason
    assert verdict.variant.inputs == ("x float32[5, 512]",)
    assert "fitted-sizes" not in {finding.rule for finding in verdict.findings}
