"""Convolution along time with 5 taps, 3 steps apart, and a border of 6 that keeps the length."""

import torch
from torch import nn

BATCH = 4
CHANNELS = 32
FILTERS = 48
LENGTH = 512

PROBLEM = {
    "title": "Dilated convolution of sequences",
    "category": "convolution",
    "note": "Taps reach over both ends for 6 steps of 5 in the shortest variant: it is made of borders only.",
    "heavy_ops": ["aten.convolution"],
    "inputs": {"x": {"fill": "normal", "low": -10000.0, "high": 10000.0}},
    "variants": {
        "cpu": [
            {"BATCH": 4, "CHANNELS": 32, "FILTERS": 48, "LENGTH": 512},
            {"BATCH": 3, "CHANNELS": 7, "FILTERS": 11, "LENGTH": 131},
            {"BATCH": 1, "CHANNELS": 3, "FILTERS": 2, "LENGTH": 5},
        ],
        "gpu": [
            {"BATCH": 16, "CHANNELS": 128, "FILTERS": 128, "LENGTH": 4096},
            {"BATCH": 3, "CHANNELS": 65, "FILTERS": 33, "LENGTH": 1021},
        ],
        "interpreter": [
            {"BATCH": 2, "CHANNELS": 8, "FILTERS": 8, "LENGTH": 32},
            {"BATCH": 1, "CHANNELS": 3, "FILTERS": 5, "LENGTH": 13},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, filters, 5, padding=6, dilation=3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, length) -> (batch, filters, length)."""
        return self.conv(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, LENGTH)]


def get_init_inputs():
    return [CHANNELS, FILTERS]
