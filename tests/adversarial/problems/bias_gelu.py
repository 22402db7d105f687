"""A bias and the tanh form of GELU."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "activation",
    "inputs": {"x": {"fill": "normal", "low": -1e4, "high": 1e4}},
    "variants": {
        "cpu": [{"ROWS": 64, "COLS": 512}, {"ROWS": 7, "COLS": 131}],
        "interpreter": [{"ROWS": 4, "COLS": 64}, {"ROWS": 3, "COLS": 37}],
    },
}
ROWS = 64
COLS = 512


class Model(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(cols))

    def forward(self, x):
        return torch.nn.functional.gelu(x + self.bias, approximate="tanh")


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return [COLS]
