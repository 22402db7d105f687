"""Dropout by a mask that is given."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "pointwise",
    "inputs": {"x": {"fill": "normal", "low": -1e3, "high": 1e3}, "keep": {"fill": "uniform", "low": 0, "high": 1}},
    "variants": {"interpreter": [{"COUNT": 512}, {"COUNT": 301}], "gpu": [{"COUNT": 1048576}]},
}
COUNT = 512
RATE = 0.25


class Model(nn.Module):
    def forward(self, x, keep):
        return torch.where(keep != 0, x / (1 - RATE), 0.0)


def get_inputs():
    return [torch.randn(COUNT), torch.randint(0, 2, (COUNT,), dtype=torch.int32)]


def get_init_inputs():
    return []
