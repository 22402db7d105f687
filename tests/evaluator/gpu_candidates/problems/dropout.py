"""Dropout with random numbers of its own."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "pointwise",
    "inputs": {"x": {"fill": "normal", "low": -1e3, "high": 1e3}},
    "variants": {"interpreter": [{"ROWS": 16, "COLS": 32}], "gpu": [{"ROWS": 1024, "COLS": 1024}]},
    "mode": "train",
    "randomness": "distribution",
}
ROWS = 16
COLS = 32
RATE = 0.5


class Model(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, RATE, self.training)


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
