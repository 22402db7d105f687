"""The largest elements of every row and where they stand."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "sort",
    "inputs": {"x": {"fill": "normal", "low": -1e4, "high": 1e4}},
    "variants": {"cpu": [{"ROWS": 32, "COLS": 256}, {"ROWS": 5, "COLS": 67}]},
}
ROWS = 32
COLS = 256
K = 8


class Model(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        return torch.topk(x, self.k, dim=-1)


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return [K]
