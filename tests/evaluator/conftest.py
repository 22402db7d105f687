"""Real parts throughout: one referee with its sandbox for the whole folder, small problems of its own."""

from __future__ import annotations

import pytest

from kernelwright.config import Settings
from kernelwright.datasets import parse_problem
from kernelwright.evaluator import Referee
from kernelwright.records import Candidate

SOFTMAX_PROBLEM = """
import torch
import torch.nn as nn

PROBLEM = {
    "category": "softmax",
    "inputs": {"x": {"fill": "normal", "low": -1e4, "high": 1e4}},
    "variants": {
        "cpu": [{"ROWS": 64, "COLS": 512}, {"ROWS": 7, "COLS": 131}],
        "interpreter": [{"ROWS": 4, "COLS": 64}, {"ROWS": 3, "COLS": 37}],
    },
}
ROWS = 64
COLS = 512


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
"""

LINEAR_PROBLEM = """
import torch
import torch.nn as nn

PROBLEM = {
    "category": "gemm",
    "inputs": {"x": {"fill": "normal", "low": -100.0, "high": 100.0}},
    "variants": {"cpu": [{"ROWS": 32, "FEATURES": 64}, {"ROWS": 5, "FEATURES": 17}]},
}
ROWS = 32
FEATURES = 64


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 48)

    def forward(self, x):
        return torch.relu(self.linear(x))


def get_inputs():
    return [torch.randn(ROWS, FEATURES)]


def get_init_inputs():
    return [FEATURES]
"""


def make_problem(source: str, name: str):
    return parse_problem(source, id=f"test/level1/{name}", suite="test", level=1, name=name)


@pytest.fixture(scope="session")
def referee(tmp_path_factory):
    settings = Settings.load(
        flags={
            "cache_dir": str(tmp_path_factory.mktemp("cache")),
            "looks": (8, 12),
            "window_ms": 0.5,
            "call_timeout_s": 8.0,
            "confirm_pairs": 5,
            "confirm_max_pairs": 5,
            "noise_bound": 0.3,  # tests run on busy machines, where a control strays far
            "memory_bytes": 1 << 30,
        },
        env={},
    )
    with Referee(settings) as made:
        yield made


@pytest.fixture(scope="session")
def softmax(referee):
    with referee.open(make_problem(SOFTMAX_PROBLEM, "softmax"), baselines=("eager",)) as session:
        yield session


@pytest.fixture(scope="session")
def linear(referee):
    with referee.open(make_problem(LINEAR_PROBLEM, "linear"), baselines=("eager",)) as session:
        yield session


@pytest.fixture
def judge_softmax(softmax):
    def judge(source: str, **options):
        return softmax.judge(Candidate(problem_id=softmax.problem.id, source=source, backend="cpp"), **options)

    return judge


@pytest.fixture
def judge_linear(linear):
    def judge(source: str, **options):
        return linear.judge(Candidate(problem_id=linear.problem.id, source=source, backend="cpp"), **options)

    return judge
