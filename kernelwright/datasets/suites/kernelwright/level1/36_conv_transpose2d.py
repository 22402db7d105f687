"""Transposed convolution, 4 by 4 in steps of 2 with a border of 1: images of twice the size."""

import torch
from torch import nn

BATCH = 2
CHANNELS = 32
FILTERS = 24
SIZE = 20

PROBLEM = {
    "title": "Transposed convolution of images",
    "category": "convolution",
    "note": (
        "Even and odd outputs see different taps, and borders fewer: a plain convolution of a stretched image without "
        "its border is wrong at the rim."
    ),
    "heavy_ops": ["aten.convolution"],
    "inputs": {"x": {"fill": "normal", "low": -10000.0, "high": 10000.0}},
    "variants": {
        "cpu": [
            {"BATCH": 2, "CHANNELS": 32, "FILTERS": 24, "SIZE": 20},
            {"BATCH": 3, "CHANNELS": 7, "FILTERS": 5, "SIZE": 11},
            {"BATCH": 1, "CHANNELS": 3, "FILTERS": 2, "SIZE": 3},
        ],
        "gpu": [
            {"BATCH": 16, "CHANNELS": 128, "FILTERS": 64, "SIZE": 56},
            {"BATCH": 3, "CHANNELS": 33, "FILTERS": 17, "SIZE": 29},
        ],
        "interpreter": [
            {"BATCH": 1, "CHANNELS": 6, "FILTERS": 4, "SIZE": 8},
            {"BATCH": 2, "CHANNELS": 3, "FILTERS": 5, "SIZE": 7},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(channels, filters, 4, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, size, size) -> (batch, filters, 2 size, 2 size)."""
        return self.conv(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [CHANNELS, FILTERS]
