"""The transpose of a matrix, in memory."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "layout",
    "inputs": {"x": {"fill": "normal", "low": -1e3, "high": 1e3}},
    "variants": {
        "interpreter": [{"ROWS": 40, "COLS": 48}, {"ROWS": 36, "COLS": 24}],
        "gpu": [{"ROWS": 2048, "COLS": 2048}],
    },
}
ROWS = 40
COLS = 48


class Model(nn.Module):
    def forward(self, x):
        return x.t().contiguous() * 2


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
