"""Batch normalisation in eval mode: y = (x - running_mean) / sqrt(running_var + eps) * weight + bias, per channel."""

import torch
from torch import nn

BATCH = 8
CHANNELS = 64
SIZE = 40

PROBLEM = {
    "title": "Batch normalisation (eval)",
    "category": "normalization",
    "note": (
        "Running statistics, weight and bias change between calls, so that nothing can be folded into one scale once "
        "and for all."
    ),
    "inputs": {"x": {"fill": "normal", "low": -1e4, "high": 1e4}},
    "variants": {
        "cpu": [
            {"BATCH": 8, "CHANNELS": 64, "SIZE": 40},
            {"BATCH": 3, "CHANNELS": 19, "SIZE": 21},
            {"BATCH": 1, "CHANNELS": 5, "SIZE": 3},
        ],
        "gpu": [{"BATCH": 64, "CHANNELS": 256, "SIZE": 56}, {"BATCH": 5, "CHANNELS": 97, "SIZE": 37}],
        "interpreter": [{"BATCH": 2, "CHANNELS": 8, "SIZE": 8}, {"BATCH": 1, "CHANNELS": 3, "SIZE": 7}],
    },
}


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, size, size) -> the same shape."""
        return self.norm(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [CHANNELS]
