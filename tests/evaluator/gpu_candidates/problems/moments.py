"""Mean and variance of each row."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "reduction",
    "inputs": {"x": {"fill": "normal", "low": -30.0, "high": 30.0}},
    "variants": {
        "interpreter": [{"ROWS": 4, "COLS": 96}, {"ROWS": 3, "COLS": 37}],
        "gpu": [{"ROWS": 4096, "COLS": 1024}],
    },
}
ROWS = 4
COLS = 96


class Model(nn.Module):
    def forward(self, x):
        return x.mean(dim=-1), x.var(dim=-1, unbiased=False)


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
