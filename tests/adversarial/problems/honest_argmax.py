"""The position of the largest element of every row: an integer output."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "reduction",
    "inputs": {"x": {"fill": "normal", "low": -1e4, "high": 1e4}},
    "variants": {
        "cpu": [{"ROWS": 64, "COLS": 256}, {"ROWS": 7, "COLS": 67}],
        "interpreter": [{"ROWS": 4, "COLS": 64}, {"ROWS": 3, "COLS": 37}],
    },
}
ROWS = 64
COLS = 256


class Model(nn.Module):
    def forward(self, x):
        return x.argmax(dim=-1)


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
