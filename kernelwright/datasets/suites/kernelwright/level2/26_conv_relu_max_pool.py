"""Convolution, ReLU and max pooling, 3 by 3 in steps of 2: the stem of many image networks."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH = 4
CHANNELS = 3
FILTERS = 32
SIZE = 64

PROBLEM = {
    "title": "Convolution, ReLU, max pooling",
    "category": "conv_epilogue",
    "note": (
        "Windows overlap and reach over the border; ReLU after pooling is the same on paper, which a kernel may use."
    ),
    "heavy_ops": ["aten.convolution"],
    "inputs": {"x": {"fill": "normal", "low": -100.0, "high": 100.0}},
    "variants": {
        "cpu": [
            {"BATCH": 4, "CHANNELS": 3, "FILTERS": 32, "SIZE": 64},
            {"BATCH": 3, "CHANNELS": 5, "FILTERS": 7, "SIZE": 19},
            {"BATCH": 1, "CHANNELS": 2, "FILTERS": 3, "SIZE": 7},
        ],
        "gpu": [
            {"BATCH": 64, "CHANNELS": 3, "FILTERS": 64, "SIZE": 224},
            {"BATCH": 5, "CHANNELS": 4, "FILTERS": 33, "SIZE": 37},
        ],
        "interpreter": [
            {"BATCH": 2, "CHANNELS": 3, "FILTERS": 4, "SIZE": 10},
            {"BATCH": 2, "CHANNELS": 2, "FILTERS": 5, "SIZE": 7},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, 5, padding=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, size, size) -> (batch, filters, ceil(size / 2), ceil(size / 2))."""
        return F.max_pool2d(torch.relu(self.conv(x)), 3, stride=2, padding=1)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [CHANNELS, FILTERS]
