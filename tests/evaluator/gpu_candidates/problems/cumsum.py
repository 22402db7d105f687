"""Running sums of rows."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "scan",
    "inputs": {"x": {"fill": "normal", "low": -1e3, "high": 1e3}},
    "variants": {
        "interpreter": [{"ROWS": 4, "COLS": 128}, {"ROWS": 3, "COLS": 75}],
        "gpu": [{"ROWS": 1024, "COLS": 4096}],
    },
}
ROWS = 4
COLS = 128


class Model(nn.Module):
    def forward(self, x):
        return torch.cumsum(x, dim=-1)


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
