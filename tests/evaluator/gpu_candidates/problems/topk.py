"""The largest elements of each row, in order."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "sort",
    "inputs": {"x": {"fill": "normal", "low": -1e3, "high": 1e3}},
    "variants": {
        "interpreter": [{"ROWS": 4, "COLS": 64}, {"ROWS": 3, "COLS": 32}],
        "gpu": [{"ROWS": 1024, "COLS": 256}],
    },
}
ROWS = 4
COLS = 64
K = 8


class Model(nn.Module):
    def forward(self, x):
        return torch.topk(x, K, dim=-1).values


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
