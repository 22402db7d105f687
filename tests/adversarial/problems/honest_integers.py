"""Arithmetic on 32-bit integers."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "pointwise",
    "dtype": "int32",
    "inputs": {
        "x": {"fill": "uniform", "low": -1000, "high": 1000},
        "y": {"fill": "uniform", "low": -1000, "high": 1000},
    },
    "variants": {"cpu": [{"ROWS": 64, "COLS": 512}, {"ROWS": 7, "COLS": 131}]},
}
ROWS = 64
COLS = 512


class Model(nn.Module):
    def forward(self, x, y):
        return torch.where(x > y, x * 3 - y, y >> 1)


def get_inputs():
    return [torch.randint(-1000, 1001, (ROWS, COLS), dtype=torch.int32) for _ in range(2)]


def get_init_inputs():
    return []
