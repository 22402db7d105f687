"""A small well-formed problem file that tests bend."""

from __future__ import annotations

import pytest

GOOD = '''"""y = x * weight."""

import torch
from torch import nn

ROWS = 4
FEATURES = 6

PROBLEM = {
    "title": "Scale",
    "category": "pointwise",
    "inputs": {"x": {"fill": "normal", "low": "-inf", "high": "inf"}},
    "variants": {
        "cpu": [
            {"ROWS": 4, "FEATURES": 6},
            {"ROWS": 3, "FEATURES": 5},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x):
        return x * self.weight


def get_inputs():
    return [torch.randn(ROWS, FEATURES)]


def get_init_inputs():
    return [FEATURES]
'''


@pytest.fixture
def good() -> str:
    """Source of a small well-formed problem."""
    return GOOD


@pytest.fixture
def line_of():
    """Line of a source, counted from 1, that contains a text."""

    def find(source: str, text: str) -> int:
        return next(i for i, line in enumerate(source.splitlines(), 1) if text in line)

    return find
