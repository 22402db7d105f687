"""A gated activation split into its three parts."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "pointwise",
    "inputs": {"x": {"fill": "normal", "low": -50.0, "high": 50.0}},
    "variants": {"cpu": [{"ROWS": 32, "COLS": 192}, {"ROWS": 5, "COLS": 21}]},
}
ROWS = 32
COLS = 192


class Model(nn.Module):
    def forward(self, x):
        return list(torch.sigmoid(x).chunk(3, dim=-1))


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
