"""Transposed convolution in steps of 2, less a bias of each channel, and tanh."""

import torch
from torch import nn

BATCH = 2
CHANNELS = 32
FILTERS = 24
SIZE = 18

PROBLEM = {
    "title": "Transposed convolution, bias, tanh",
    "category": "conv_epilogue",
    "note": "tanh hides errors where it saturates; the trials with tiny and ordinary data look where it does not.",
    "heavy_ops": ["aten.convolution"],
    "inputs": {"x": {"fill": "normal", "low": -100.0, "high": 100.0}},
    "variants": {
        "cpu": [
            {"BATCH": 2, "CHANNELS": 32, "FILTERS": 24, "SIZE": 18},
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
        self.conv = nn.ConvTranspose2d(channels, filters, 3, stride=2, padding=1, output_padding=1)
        self.bias = nn.Parameter(torch.randn(filters, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, size, size) -> (batch, filters, 2 size, 2 size)."""
        return torch.tanh(self.conv(x) - self.bias)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [CHANNELS, FILTERS]
