"""Dropout: every call draws a mask of its own, and its distribution is what is judged."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "pointwise",
    "randomness": "distribution",
    "inputs": {"x": {"fill": "normal", "low": -1e3, "high": 1e3}},
    "variants": {"cpu": [{"ROWS": 64, "COLS": 512}, {"ROWS": 7, "COLS": 131}]},
}
ROWS = 64
COLS = 512


class Model(nn.Module):
    def forward(self, x):
        return torch.nn.functional.dropout(x, 0.25, training=True)


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
