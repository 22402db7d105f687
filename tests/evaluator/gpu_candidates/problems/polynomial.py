"""A polynomial of the fifth degree."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "pointwise",
    "inputs": {"x": {"fill": "normal", "low": -8.0, "high": 8.0}},
    "variants": {"interpreter": [{"COUNT": 512}, {"COUNT": 301}], "gpu": [{"COUNT": 1048576}]},
}
COUNT = 512


class Model(nn.Module):
    def forward(self, x):
        return ((((0.1 * x - 0.3) * x + 0.7) * x - 1.1) * x + 0.2) * x + 1.7


def get_inputs():
    return [torch.randn(COUNT)]


def get_init_inputs():
    return []
