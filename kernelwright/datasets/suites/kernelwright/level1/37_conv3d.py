"""Convolution of volumes, 3 by 3 by 3 with a border of 1."""

import torch
from torch import nn

BATCH = 1
CHANNELS = 8
FILTERS = 12
DEPTH = 12
SIZE = 20

PROBLEM = {
    "title": "Convolution of volumes",
    "category": "convolution",
    "note": (
        "Sums over channels and 27 taps of inputs drawn anew: lower precision shows in them, and so do borders in any "
        "of three directions."
    ),
    "heavy_ops": ["aten.convolution"],
    "inputs": {"x": {"fill": "normal", "low": -10000.0, "high": 10000.0}},
    "variants": {
        "cpu": [
            {"BATCH": 1, "CHANNELS": 8, "FILTERS": 12, "DEPTH": 12, "SIZE": 20},
            {"BATCH": 2, "CHANNELS": 5, "FILTERS": 3, "DEPTH": 5, "SIZE": 9},
            {"BATCH": 1, "CHANNELS": 2, "FILTERS": 3, "DEPTH": 2, "SIZE": 5},
        ],
        "gpu": [
            {"BATCH": 4, "CHANNELS": 32, "FILTERS": 64, "DEPTH": 16, "SIZE": 56},
            {"BATCH": 2, "CHANNELS": 17, "FILTERS": 33, "DEPTH": 9, "SIZE": 29},
        ],
        "interpreter": [
            {"BATCH": 1, "CHANNELS": 2, "FILTERS": 4, "DEPTH": 4, "SIZE": 8},
            {"BATCH": 2, "CHANNELS": 3, "FILTERS": 2, "DEPTH": 3, "SIZE": 5},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(channels, filters, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, depth, size, size) -> (batch, filters, depth, size, size)."""
        return self.conv(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, DEPTH, SIZE, SIZE)]


def get_init_inputs():
    return [CHANNELS, FILTERS]
