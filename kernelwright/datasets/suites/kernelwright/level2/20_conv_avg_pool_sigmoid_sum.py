"""Convolution, average pooling 2 by 2, sigmoid, and the sum over each image."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH = 8
CHANNELS = 8
FILTERS = 16
SIZE = 34

PROBLEM = {
    "title": "Convolution, average pooling, sigmoid, sum",
    "category": "conv_epilogue",
    "note": (
        "One number an image stands for thousands: the budget for it is that of the whole chain in float32, and "
        "images differ."
    ),
    "heavy_ops": ["aten.convolution"],
    "inputs": {"x": {"fill": "normal", "low": -100.0, "high": 100.0}},
    "variants": {
        "cpu": [
            {"BATCH": 8, "CHANNELS": 8, "FILTERS": 16, "SIZE": 34},
            {"BATCH": 3, "CHANNELS": 5, "FILTERS": 7, "SIZE": 19},
            {"BATCH": 2, "CHANNELS": 3, "FILTERS": 2, "SIZE": 7},
        ],
        "gpu": [
            {"BATCH": 64, "CHANNELS": 32, "FILTERS": 64, "SIZE": 64},
            {"BATCH": 5, "CHANNELS": 17, "FILTERS": 33, "SIZE": 37},
        ],
        "interpreter": [
            {"BATCH": 2, "CHANNELS": 3, "FILTERS": 4, "SIZE": 10},
            {"BATCH": 1, "CHANNELS": 2, "FILTERS": 3, "SIZE": 7},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, size, size) -> (batch,)."""
        pooled = F.avg_pool2d(self.conv(x), 2)
        return torch.sigmoid(pooled).sum(dim=(1, 2, 3))


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [CHANNELS, FILTERS]
