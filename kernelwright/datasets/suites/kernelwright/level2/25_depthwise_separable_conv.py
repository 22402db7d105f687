"""Depthwise and pointwise convolution (Howard et al., 2017), each with batch normalisation and ReLU."""

import torch
from torch import nn

BATCH = 4
CHANNELS = 24
FILTERS = 48
SIZE = 32

PROBLEM = {
    "title": "Depthwise separable convolution",
    "category": "conv_epilogue",
    "note": (
        "Running statistics are weights here and change between calls: folding them into filters has to be done in "
        "the call."
    ),
    "heavy_ops": ["aten.convolution"],
    "inputs": {"x": {"fill": "normal", "low": -100.0, "high": 100.0}},
    "variants": {
        "cpu": [
            {"BATCH": 4, "CHANNELS": 24, "FILTERS": 48, "SIZE": 32},
            {"BATCH": 3, "CHANNELS": 7, "FILTERS": 11, "SIZE": 19},
            {"BATCH": 1, "CHANNELS": 3, "FILTERS": 2, "SIZE": 5},
        ],
        "gpu": [
            {"BATCH": 32, "CHANNELS": 128, "FILTERS": 256, "SIZE": 56},
            {"BATCH": 5, "CHANNELS": 65, "FILTERS": 33, "SIZE": 37},
        ],
        "interpreter": [
            {"BATCH": 2, "CHANNELS": 4, "FILTERS": 6, "SIZE": 8},
            {"BATCH": 1, "CHANNELS": 3, "FILTERS": 5, "SIZE": 7},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.first = nn.BatchNorm2d(channels)
        self.pointwise = nn.Conv2d(channels, filters, 1, bias=False)
        self.second = nn.BatchNorm2d(filters)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, size, size) -> (batch, filters, size, size)."""
        x = torch.relu(self.first(self.depthwise(x)))
        return torch.relu(self.second(self.pointwise(x)))


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [CHANNELS, FILTERS]
