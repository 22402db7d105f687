"""Statistics of every row, in a nested dictionary of several shapes and dtypes."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "reduction",
    "inputs": {"x": {"fill": "normal", "low": -1e4, "high": 1e4}},
    "variants": {
        "cpu": [{"ROWS": 48, "COLS": 256}, {"ROWS": 5, "COLS": 67}],
        "interpreter": [{"ROWS": 4, "COLS": 64}, {"ROWS": 3, "COLS": 37}],
    },
}
ROWS = 48
COLS = 256


class Model(nn.Module):
    def forward(self, x):
        low, high = torch.aminmax(x, dim=-1)
        return {"mean": x.mean(dim=-1), "range": (low, high), "positive": {"count": (x > 0).sum(dim=-1)}}


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
