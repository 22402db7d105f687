"""Softsign with a factor for each channel."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH = 4
CHANNELS = 64
POSITIONS = 512

PROBLEM = {
    "category": "pointwise",
    "inputs": {"x": {"fill": "normal", "low": -1e4, "high": 1e4}},
    "variants": {
        "cpu": [{"BATCH": 4, "CHANNELS": 64, "POSITIONS": 512}, {"BATCH": 3, "CHANNELS": 5, "POSITIONS": 77}],
        "gpu": [{"BATCH": 32, "CHANNELS": 256, "POSITIONS": 4096}, {"BATCH": 3, "CHANNELS": 5, "POSITIONS": 77}],
        "interpreter": [{"BATCH": 2, "CHANNELS": 3, "POSITIONS": 64}, {"BATCH": 1, "CHANNELS": 5, "POSITIONS": 19}],
    },
}


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, positions) -> the same."""
        return F.softsign(x) * self.scale[:, None]


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, POSITIONS)]


def get_init_inputs():
    return [CHANNELS]
