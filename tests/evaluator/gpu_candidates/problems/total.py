"""The sum of all elements."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "reduction",
    "inputs": {"x": {"fill": "uniform", "low": 0.0, "high": 1.0}},
    "variants": {"interpreter": [{"COUNT": 2048}, {"COUNT": 1111}], "gpu": [{"COUNT": 4194304}]},
}
COUNT = 2048


class Model(nn.Module):
    def forward(self, x):
        return x.sum()


def get_inputs():
    return [torch.rand(COUNT)]


def get_init_inputs():
    return []
