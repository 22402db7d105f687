"""Small problems that the referee's tests share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kernelwright.datasets import parse_problem
from kernelwright.evaluator import ProblemSession

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

SOFTMAX_KERNEL = """
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def softmax_kernel(x, y, cols, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * cols + at, mask=at < cols, other=-float("inf"))
    exponents = tl.exp(values - tl.max(values, 0))
    tl.store(y + row * cols + at, exponents / tl.sum(exponents, 0), mask=at < cols)
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


@contextmanager
def unscreened(session: ProblemSession) -> Iterator[None]:
    """The screen refuses nothing inside, so that a later stage has to."""
    session.screens = False
    try:
        yield
    finally:
        session.screens = True
