"""Layer normalisation of rows."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "normalization",
    "inputs": {"x": {"fill": "normal", "low": -30.0, "high": 30.0}},
    "variants": {
        "interpreter": [{"ROWS": 4, "COLS": 64}, {"ROWS": 3, "COLS": 36}],
        "gpu": [{"ROWS": 4096, "COLS": 1024}],
    },
}
ROWS = 4
COLS = 64


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return [COLS]
