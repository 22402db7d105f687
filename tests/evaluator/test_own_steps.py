"""Hybrids, whose arithmetic is torch's; references that end their workers; libraries and options of CUDA."""

from __future__ import annotations

import pytest

from kernelwright.datasets import parse_problem
from kernelwright.evaluator import Search
from kernelwright.evaluator.builds.cuda_libraries import lacking_library
from kernelwright.evaluator.own.evidence import Evidence
from kernelwright.records import Candidate, Status

REFERENCE = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super(Model, self).__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x):
        return torch.relu(self.inner(x))


def get_inputs():
    return [torch.randn(8, 16, device="cuda")]


def get_init_inputs():
    return []
"""
KERNEL = '''import torch
from torch import nn
from kernelwright.inline import cuda

step = cuda(r"""
extern "C" __global__ void half_step(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = VALUE;
}
""", "half_step", flags=["-Xptxas", "-v", "-arch=sm_80"])


class ModelNew(nn.Module):
    def __init__(self):
        super(ModelNew, self).__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x):
        h = HIDDEN
        y = torch.empty_like(h)
        step[(h.numel() + 127) // 128, 128](h, y, h.numel())
        return y
'''
PROBLEM = parse_problem(REFERENCE, id="test/level1/hybrid", suite="test", level=1, name="hybrid")


def candidate(value, hidden):
    return Candidate(
        problem_id=PROBLEM.id, source=KERNEL.replace("VALUE", value).replace("HIDDEN", hidden), backend="cuda"
    )


@pytest.mark.untimed
def test_a_step_of_its_own_makes_a_hybrid_and_a_copy_none(referee):
    with referee.open(PROBLEM, backend="cuda") as session:
        verdict = session.judge(candidate("x[i] > 0 ? x[i] : 0", "self.inner(x)"), depth=Search(static=False)).verdict
        copies = session.judge(candidate("x[i]", "torch.relu(self.inner(x))"), depth=Search(static=False)).verdict
        renamed = session.judge(candidate("x[i]", "self.inner(x).clamp(min=0)"), depth=Search(static=False)).verdict
    assert (verdict.status, verdict.own_kernel_label) == (Status.PASSED, "hybrid"), verdict.reason
    said = next(finding for finding in verdict.findings if finding.rule == "compiler-options")
    assert said.effect == "informs"
    assert "-Xptxas=-v" in said.evidence
    assert "-arch=sm_80" in said.evidence
    for cheat in (copies, renamed):
        assert cheat.status is Status.REWARD_HACK
        assert "all of the reference's arithmetic" in cheat.reason


@pytest.mark.untimed
def test_a_reference_without_float64_is_refused_with_its_line(referee):
    source = REFERENCE.replace("return torch.relu", 'assert x.dtype == torch.float32, "no"\n        return torch.relu')
    made = parse_problem(source, id="test/level1/single", suite="test", level=1, name="single")
    verdict = referee.evaluate(candidate("x[i]", "x").model_copy(update={"problem_id": made.id}), made).verdict
    assert verdict.status is Status.INVALID_REFERENCE
    assert "line 11" in verdict.reason
    assert "float64" in verdict.reason


@pytest.mark.untimed
@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("os._exit(1)", "ended by itself with exit code 1"),
        ("sys.exit('enough')", "SystemExit: enough"),
        ("ctypes.string_at(0)", "segmentation fault"),
        ("raise KeyError('gone')", "KeyError: 'gone'"),
    ],
)
def test_whatever_a_worker_of_a_reference_does_is_the_reason(referee, statement, says):
    body = f"if x.dtype == torch.float64:\n            {statement}\n        return torch.relu"
    source = "import ctypes, os, sys\n" + REFERENCE.replace("return torch.relu", body)
    made = parse_problem(source, id="test/level1/ends", suite="test", level=1, name="ends")
    verdict = referee.evaluate(candidate("x[i]", "x").model_copy(update={"problem_id": made.id}), made).verdict
    assert verdict.status is Status.INVALID_REFERENCE
    assert says in verdict.reason


def evidence(*, ghost="needed", torch_steps, reference_steps):
    return Evidence(None, None, (1, 1), ghost, "", 100, 100, {}, [], None, torch_steps, reference_steps)


@pytest.mark.parametrize(
    ("found", "hybrid"),
    [
        (evidence(torch_steps=1, reference_steps=2), True),
        (evidence(torch_steps=2, reference_steps=2), False),
        (evidence(torch_steps=3, reference_steps=2), False),
        (evidence(torch_steps=1, reference_steps=2, ghost="unknown"), False),
    ],
)
def test_what_counts_as_a_step_of_its_own(found, hybrid):
    assert (found.label == "hybrid") is hybrid
    assert bool(found.shortfall()) is not hybrid


@pytest.mark.parametrize(
    ("source", "log", "lacks"),
    [
        ("#include <cublas_v2.h>", "k.cu(1): fatal error: cublas_v2.h: No such file", "cuBLAS"),
        ("# include <cublas_v2.h>", 'k.cu(9): error: identifier "cublasCreate" is undefined', "cuBLAS"),
        ('#include "cutlass/gemm/device/gemm.h"', "k.cu(1): fatal error: cutlass/gemm/device/gemm.h", "CUTLASS"),
        ("#include <curand_kernel.h>", "k.cu(1): error: no curand_kernel.h", "cuRAND"),
        ("#include <cublas_v2.h>", 'k.cu(3): error: expected a ";"', ""),
        ("// #include <cublas_v2.h>", "k.cu(3): error: cublasCreate", ""),
        ("#include <mine.h>", "k.cu(1): fatal error: mine.h: No such file", ""),
    ],
)
def test_a_library_that_is_not_here_is_no_fault_of_the_source(source, log, lacks, tmp_path):
    assert lacks in lacking_library(source, log, [])
    assert bool(lacking_library(source, log, [])) is bool(lacks)
    (tmp_path / "cublas_v2.h").touch()
    assert "cuBLAS" not in lacking_library(source, log, [str(tmp_path)])
