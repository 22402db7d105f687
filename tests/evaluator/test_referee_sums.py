"""Textbook reductions: one chain of float additions is right, a maximum that starts at a constant is wrong."""

from __future__ import annotations

import pytest
from referee_small_problems import make_problem

from kernelwright.evaluator import Check
from kernelwright.records import Candidate, Status

pytestmark = pytest.mark.untimed

PROBLEM = """
import torch
from torch import nn

PROBLEM = %(meta)s


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)


def get_inputs():
    return [torch.rand(%(rows)d, %(columns)d)]


def get_init_inputs():
    return []
"""
NORMAL = '{"inputs": {"x": {"fill": "normal"}}}'
UNKNOWN = "{}"
TEXTBOOK = """
import torch
from torch import nn

from kernelwright.inline import cpp

lib = cpp(r'''
#include <cmath>
#include <cstdint>

extern "C" void softmax(const float* x, float* y, int64_t rows, int64_t n) {
  for (int64_t i = 0; i < rows; i++) {
    const float* in = x + i * n;
    float* out = y + i * n;
    float largest = START;
    for (int64_t j = 0; j < n; j++) largest = in[j] > largest ? in[j] : largest;
    float sum = 0;
    for (int64_t j = 0; j < n; j++) sum += out[j] = std::exp(in[j] - largest);
    for (int64_t j = 0; j < n; j++) out[j] = sum > 0 ? out[j] / sum : 0;
  }
}
''')


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.softmax(x, y, x.shape[0], x.shape[1])
        return y
"""


@pytest.fixture
def verdict_of(referee):
    def judge(start: str, meta: str, rows: int, columns: int, times: int = 1):
        problem = make_problem(PROBLEM % {"meta": meta, "rows": rows, "columns": columns}, "rows")
        made = Candidate(problem_id=problem.id, source=TEXTBOOK.replace("START", start), backend="cpp")
        verdicts = []
        for _ in range(times):  # each draws its own data
            with referee.open(problem, baselines=("eager",)) as session:
                verdicts.append(session.judge(made, depth=Check()).verdict)
        return verdicts

    return judge


def test_the_outputs_of_one_row_share_one_sum(verdict_of):
    for verdict in verdict_of("-INFINITY", NORMAL, 1, 3001, times=3):
        assert verdict.passed, verdict.reason


def test_one_chain_over_long_rows_is_right(verdict_of):
    (verdict,) = verdict_of("-INFINITY", NORMAL, 3, 16_000)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("meta", [NORMAL, UNKNOWN])
@pytest.mark.parametrize("start", ["-100.0f", "-5e4f"])
def test_a_maximum_that_starts_at_a_constant_is_wrong_with_and_without_a_declared_domain(verdict_of, start, meta):
    (verdict,) = verdict_of(start, meta, 16, 512)
    assert verdict.status is Status.INCORRECT_NUMERICAL, verdict.reason
    (said,) = [found.evidence for found in verdict.findings if found.rule == "assumed-domain"]
    assert "1,000,000" in said


def test_it_is_right_to_start_at_the_least_number(verdict_of):
    (verdict,) = verdict_of("-INFINITY", UNKNOWN, 16, 512)
    assert verdict.passed, verdict.reason
