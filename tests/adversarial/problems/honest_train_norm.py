"""Batch normalisation in training mode, in one shape: the statistics are those of the batch."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "normalization",
    "mode": "train",
    "inputs": {"x": {"fill": "normal", "low": -1e3, "high": 1e3}},
    "variants": {"cpu": [{"ROWS": 64, "FEATURES": 48}]},
}
ROWS = 64
FEATURES = 48


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.BatchNorm1d(features)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.randn(ROWS, FEATURES)]


def get_init_inputs():
    return [FEATURES]
