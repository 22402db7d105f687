"""Softplus with a slope: y = log(1 + exp(beta x)) / beta, and x itself where beta x > threshold."""

import torch
import torch.nn.functional as F
from torch import nn

ROWS = 512
COLUMNS = 1000

PROBLEM = {
    "title": "Softplus",
    "category": "activation",
    "note": (
        "exp(beta x) overflows over most of the domain, and log(1 + e) loses small e: the shortcut of the formula as "
        "it stands shows on wide and on tiny data."
    ),
    "inputs": {"x": {"fill": "normal", "low": -10000.0, "high": 10000.0}},
    "variants": {
        "cpu": [
            {"ROWS": 512, "COLUMNS": 1000},
            {"ROWS": 67, "COLUMNS": 1027},
            {"ROWS": 3, "COLUMNS": 7},
        ],
        "gpu": [{"ROWS": 8192, "COLUMNS": 4096}, {"ROWS": 1021, "COLUMNS": 2051}],
        "interpreter": [{"ROWS": 16, "COLUMNS": 128}, {"ROWS": 5, "COLUMNS": 61}],
    },
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (rows, columns) -> (rows, columns)."""
        return F.softplus(x, beta=2.0, threshold=10.0)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS) * 3]


def get_init_inputs():
    return []
