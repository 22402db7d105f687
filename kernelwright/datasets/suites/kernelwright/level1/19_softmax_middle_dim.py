"""Softmax over the middle dimension: y[b, k, p] = exp(x[b, k, p]) / sum_j exp(x[b, j, p])."""

import torch
from torch import nn

BATCH = 16
KEYS = 64
POINTS = 320

PROBLEM = {
    "title": "Softmax over the middle dimension",
    "category": "softmax",
    "note": (
        "The reduced dimension is not contiguous: a kernel that normalises contiguous rows gives weights that sum to "
        "one as well, and other ones."
    ),
    "inputs": {"x": {"fill": "normal", "low": -10000.0, "high": 10000.0}},
    "variants": {
        "cpu": [
            {"BATCH": 16, "KEYS": 64, "POINTS": 320},
            {"BATCH": 3, "KEYS": 37, "POINTS": 45},
            {"BATCH": 1, "KEYS": 5, "POINTS": 3},
        ],
        "gpu": [{"BATCH": 64, "KEYS": 256, "POINTS": 1024}, {"BATCH": 5, "KEYS": 130, "POINTS": 333}],
        "interpreter": [{"BATCH": 2, "KEYS": 16, "POINTS": 32}, {"BATCH": 1, "KEYS": 7, "POINTS": 13}],
    },
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, keys, points) -> the same shape, weights over keys."""
        return torch.softmax(x, dim=1)


def get_inputs():
    return [torch.randn(BATCH, KEYS, POINTS) * 3]


def get_init_inputs():
    return []
