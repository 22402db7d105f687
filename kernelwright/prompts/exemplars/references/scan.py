"""Running sum over time, which is not the last dimension."""

import torch
from torch import nn

BATCH = 4
TIME = 128
CHANNELS = 192

PROBLEM = {
    "category": "scan",
    "inputs": {"x": {"fill": "normal", "low": -1e3, "high": 1e3}},
    "variants": {
        "cpu": [{"BATCH": 4, "TIME": 128, "CHANNELS": 192}, {"BATCH": 3, "TIME": 17, "CHANNELS": 5}],
        "gpu": [{"BATCH": 32, "TIME": 1024, "CHANNELS": 512}, {"BATCH": 3, "TIME": 17, "CHANNELS": 5}],
        "interpreter": [{"BATCH": 2, "TIME": 16, "CHANNELS": 32}, {"BATCH": 3, "TIME": 17, "CHANNELS": 5}],
    },
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, time, channels) -> the same."""
        return torch.cumsum(x, dim=-2)


def get_inputs():
    return [torch.randn(BATCH, TIME, CHANNELS)]


def get_init_inputs():
    return []
