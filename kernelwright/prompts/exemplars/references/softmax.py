"""Logarithm of a softmax over the channels, which are not the last dimension."""

import torch
from torch import nn

BATCH = 4
CHANNELS = 64
POSITIONS = 512

PROBLEM = {
    "category": "softmax",
    "inputs": {"x": {"fill": "normal", "low": -1e4, "high": 1e4}},
    "variants": {
        "cpu": [{"BATCH": 4, "CHANNELS": 64, "POSITIONS": 512}, {"BATCH": 3, "CHANNELS": 5, "POSITIONS": 77}],
        "gpu": [{"BATCH": 32, "CHANNELS": 256, "POSITIONS": 4096}, {"BATCH": 3, "CHANNELS": 5, "POSITIONS": 77}],
        "interpreter": [{"BATCH": 2, "CHANNELS": 3, "POSITIONS": 64}, {"BATCH": 1, "CHANNELS": 5, "POSITIONS": 19}],
    },
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, positions) -> the same."""
        return torch.log_softmax(x, dim=1)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, POSITIONS)]


def get_init_inputs():
    return []
