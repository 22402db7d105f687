"""Convolution of images with a 3 x 3 kernel and bias (cross-correlation, as everywhere in deep learning)."""

import torch
from torch import nn

BATCH = 4
IN_CHANNELS = 16
OUT_CHANNELS = 32
SIZE = 40
STRIDE = 1

PROBLEM = {
    "title": "Convolution 3x3",
    "category": "convolution",
    "note": (
        "Filters are drawn anew between calls; sums over channels and taps in lower precision exceed the budget of "
        "float32."
    ),
    "heavy_ops": ["aten.convolution"],
    "inputs": {"x": {"fill": "normal", "low": -1e3, "high": 1e3}},
    "variants": {
        "cpu": [
            {"BATCH": 4, "IN_CHANNELS": 16, "OUT_CHANNELS": 32, "SIZE": 40, "STRIDE": 1},
            {"BATCH": 2, "IN_CHANNELS": 7, "OUT_CHANNELS": 13, "SIZE": 27, "STRIDE": 2},
            {"BATCH": 1, "IN_CHANNELS": 3, "OUT_CHANNELS": 5, "SIZE": 9, "STRIDE": 1},
        ],
        "gpu": [
            {"BATCH": 32, "IN_CHANNELS": 64, "OUT_CHANNELS": 128, "SIZE": 56, "STRIDE": 1},
            {"BATCH": 5, "IN_CHANNELS": 33, "OUT_CHANNELS": 47, "SIZE": 37, "STRIDE": 2},
        ],
        "interpreter": [
            {"BATCH": 1, "IN_CHANNELS": 4, "OUT_CHANNELS": 8, "SIZE": 12, "STRIDE": 1},
            {"BATCH": 2, "IN_CHANNELS": 3, "OUT_CHANNELS": 5, "SIZE": 9, "STRIDE": 2},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size=3, stride=stride, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, in_channels, size, size) -> (batch, out_channels, out, out)."""
        return self.conv(x)


def get_inputs():
    return [torch.randn(BATCH, IN_CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [IN_CHANNELS, OUT_CHANNELS, STRIDE]
