"""y + alpha x with alpha a plain number, on inputs of which one is a transposed view."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "pointwise",
    "inputs": {
        "x": {"fill": "normal", "low": -1e4, "high": 1e4},
        "y": {"fill": "normal", "low": -1e4, "high": 1e4},
    },
    "variants": {
        "cpu": [{"ROWS": 64, "COLS": 256}, {"ROWS": 7, "COLS": 37}],
        "interpreter": [{"ROWS": 4, "COLS": 64}, {"ROWS": 3, "COLS": 37}],
    },
}
ROWS = 64
COLS = 256


class Model(nn.Module):
    def forward(self, x, y, alpha):
        return y + alpha * x


def get_inputs():
    return [torch.randn(COLS, ROWS).t(), torch.randn(ROWS, COLS), 0.75]


def get_init_inputs():
    return []
