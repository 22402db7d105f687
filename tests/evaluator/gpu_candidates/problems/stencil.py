"""The mean of the six neighbours inside of a cube; its border stays."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "stencil",
    "inputs": {"x": {"fill": "normal", "low": -30.0, "high": 30.0}},
    "variants": {
        "interpreter": [{"DEPTH": 4, "ROWS": 6, "COLS": 20}, {"DEPTH": 5, "ROWS": 4, "COLS": 17}],
        "gpu": [{"DEPTH": 64, "ROWS": 128, "COLS": 128}],
    },
}
DEPTH = 4
ROWS = 6
COLS = 20


class Model(nn.Module):
    def forward(self, x):
        y = x.clone()
        across = x[:-2, 1:-1, 1:-1] + x[2:, 1:-1, 1:-1] + x[1:-1, :-2, 1:-1] + x[1:-1, 2:, 1:-1]
        y[1:-1, 1:-1, 1:-1] = (across + x[1:-1, 1:-1, :-2] + x[1:-1, 1:-1, 2:]) / 6
        return y


def get_inputs():
    return [torch.randn(DEPTH, ROWS, COLS)]


def get_init_inputs():
    return []
