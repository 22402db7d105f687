"""Batch normalisation in training (Ioffe and Szegedy, 2015): statistics of the batch, and running ones that are
updated."""

import torch
from torch import nn

BATCH = 8
CHANNELS = 32
SIZE = 32

PROBLEM = {
    "title": "Batch normalisation of images in training",
    "category": "normalization",
    "note": (
        "The running statistics are written in place and compared like an output, with the unbiased variance that "
        "they take; eval mode's formula is wrong."
    ),
    "mode": "train",
    "inputs": {"x": {"fill": "normal", "low": -1000.0, "high": 1000.0}},
    "variants": {
        "cpu": [
            {"BATCH": 8, "CHANNELS": 32, "SIZE": 32},
            {"BATCH": 3, "CHANNELS": 17, "SIZE": 23},
            {"BATCH": 2, "CHANNELS": 5, "SIZE": 3},
        ],
        "gpu": [{"BATCH": 64, "CHANNELS": 128, "SIZE": 56}, {"BATCH": 5, "CHANNELS": 96, "SIZE": 37}],
        "interpreter": [{"BATCH": 2, "CHANNELS": 8, "SIZE": 8}, {"BATCH": 3, "CHANNELS": 6, "SIZE": 7}],
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
