"""Averages over a grid of 7 by 5 bins, whose bounds are rounded outwards: neighbouring bins may share pixels."""

import torch
from torch import nn

BATCH = 4
CHANNELS = 48
SIZE = 48

PROBLEM = {
    "title": "Adaptive average pooling of images",
    "category": "pooling",
    "note": (
        "No variant's size is a multiple of both bins, so bins of one size, or bins that do not overlap, are wrong."
    ),
    "inputs": {"x": {"fill": "normal", "low": -10000.0, "high": 10000.0}},
    "variants": {
        "cpu": [
            {"BATCH": 4, "CHANNELS": 48, "SIZE": 48},
            {"BATCH": 3, "CHANNELS": 17, "SIZE": 23},
            {"BATCH": 1, "CHANNELS": 5, "SIZE": 9},
        ],
        "gpu": [{"BATCH": 32, "CHANNELS": 256, "SIZE": 62}, {"BATCH": 5, "CHANNELS": 96, "SIZE": 37}],
        "interpreter": [{"BATCH": 2, "CHANNELS": 8, "SIZE": 16}, {"BATCH": 1, "CHANNELS": 6, "SIZE": 11}],
    },
}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d((7, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, size, size) -> (batch, channels, 7, 5)."""
        return self.pool(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return []
