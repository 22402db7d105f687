"""Which elements of one matrix are larger than those of another: a boolean output."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "pointwise",
    "inputs": {
        "x": {"fill": "normal", "low": -1e4, "high": 1e4},
        "y": {"fill": "normal", "low": -1e4, "high": 1e4},
    },
    "variants": {
        "cpu": [{"ROWS": 64, "COLS": 512}, {"ROWS": 7, "COLS": 131}],
        "interpreter": [{"ROWS": 4, "COLS": 64}, {"ROWS": 3, "COLS": 37}],
    },
}
ROWS = 64
COLS = 512


class Model(nn.Module):
    def forward(self, x, y):
        return x > y


def get_inputs():
    return [torch.randn(ROWS, COLS), torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
