"""Softmax of every row, large enough for a call to take about a millisecond."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "softmax",
    "inputs": {"x": {"fill": "normal", "low": -1e4, "high": 1e4}},
    "variants": {"cpu": [{"ROWS": 256, "COLS": 1024}, {"ROWS": 7, "COLS": 131}]},
}
ROWS = 256
COLS = 1024


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
