"""The sum of each column."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "reduction",
    "inputs": {"x": {"fill": "normal", "low": -30.0, "high": 30.0}},
    "variants": {
        "interpreter": [{"ROWS": 24, "COLS": 64}, {"ROWS": 13, "COLS": 37}],
        "gpu": [{"ROWS": 4096, "COLS": 1024}],
    },
}
ROWS = 24
COLS = 64


class Model(nn.Module):
    def forward(self, x):
        return x.sum(dim=0)


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
