"""Layer normalisation with weight and bias."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "normalization",
    "inputs": {"x": {"fill": "normal", "low": -1e3, "high": 1e3}},
    "variants": {
        "cpu": [{"ROWS": 32, "COLS": 256}, {"ROWS": 5, "COLS": 67}],
        "interpreter": [{"ROWS": 4, "COLS": 64}, {"ROWS": 3, "COLS": 37}],
    },
}
ROWS = 32
COLS = 256


class Model(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return [COLS]
