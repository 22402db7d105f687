"""Depthwise convolution, 5 by 5 in steps of 2 with a border of 2: two filters for each channel."""

import torch
from torch import nn

BATCH = 4
CHANNELS = 32
SIZE = 64

PROBLEM = {
    "title": "Strided depthwise convolution of images",
    "category": "convolution",
    "note": (
        "Weights are drawn anew between calls, and both filters of a channel read the same image: outputs 2c and 2c + "
        "1, not c and c + channels."
    ),
    "heavy_ops": ["aten.convolution"],
    "inputs": {"x": {"fill": "normal", "low": -10000.0, "high": 10000.0}},
    "variants": {
        "cpu": [
            {"BATCH": 4, "CHANNELS": 32, "SIZE": 64},
            {"BATCH": 3, "CHANNELS": 17, "SIZE": 23},
            {"BATCH": 1, "CHANNELS": 5, "SIZE": 3},
        ],
        "gpu": [{"BATCH": 32, "CHANNELS": 256, "SIZE": 112}, {"BATCH": 5, "CHANNELS": 96, "SIZE": 37}],
        "interpreter": [{"BATCH": 2, "CHANNELS": 8, "SIZE": 8}, {"BATCH": 1, "CHANNELS": 6, "SIZE": 7}],
    },
}


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 2 * channels, 5, stride=2, padding=2, groups=channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, size, size) -> (batch, 2 channels, ceil(size / 2), ceil(size / 2))."""
        return self.conv(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [CHANNELS]
