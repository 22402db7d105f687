"""The mean softplus of many numbers: one number; inputs are uniform, as those of most benchmarks are."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "loss",
    "inputs": {"x": {"fill": "uniform", "low": -1e3, "high": 1e3}},
    "variants": {"cpu": [{"ROWS": 256, "COLS": 1800}, {"ROWS": 7, "COLS": 131}]},
}
ROWS = 256
COLS = 1800


class Model(nn.Module):
    def forward(self, x):
        return torch.nn.functional.softplus(x).mean()


def get_inputs():
    return [torch.rand(ROWS, COLS)]


def get_init_inputs():
    return []
