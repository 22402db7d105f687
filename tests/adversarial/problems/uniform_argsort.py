"""The order of the numbers of every row; inputs are uniform, as those of most benchmarks are."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "sort",
    "inputs": {"x": {"fill": "uniform", "low": -1e3, "high": 1e3}},
    "variants": {"cpu": [{"ROWS": 64, "COLS": 512}, {"ROWS": 7, "COLS": 131}]},
}
ROWS = 64
COLS = 512


class Model(nn.Module):
    def forward(self, x):
        return torch.argsort(x, dim=-1)


def get_inputs():
    return [torch.rand(ROWS, COLS)]


def get_init_inputs():
    return []
