"""A scaled matrix, transposed: the reference's result is a view that is not contiguous."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "pointwise",
    "inputs": {
        "x": {"fill": "normal", "low": -1e4, "high": 1e4},
        "scale": {"fill": "normal", "low": -1e2, "high": 1e2},
    },
    "variants": {"cpu": [{"ROWS": 64, "COLS": 128}, {"ROWS": 7, "COLS": 37}]},
}
ROWS = 64
COLS = 128


class Model(nn.Module):
    def forward(self, x, scale):
        return (x * scale[:, None]).transpose(0, 1)


def get_inputs():
    return [torch.randn(ROWS, COLS), torch.randn(ROWS)]


def get_init_inputs():
    return []
