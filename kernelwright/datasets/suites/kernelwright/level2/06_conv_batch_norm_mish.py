"""Convolution, batch normalisation in eval mode, Mish: y = v * tanh(softplus(v)) with v = batch_norm(conv(x))."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH = 2
IN_CHANNELS = 16
OUT_CHANNELS = 24
SIZE = 48

PROBLEM = {
    "title": "Convolution, batch normalisation, Mish",
    "category": "conv_epilogue",
    "note": (
        "Statistics and filters change between calls: folding one into the other has to be done in the call; mish "
        "needs a stable softplus."
    ),
    "heavy_ops": ["aten.convolution"],
    "inputs": {"x": {"fill": "normal", "low": -1e3, "high": 1e3}},
    "variants": {
        "cpu": [
            {"BATCH": 2, "IN_CHANNELS": 16, "OUT_CHANNELS": 24, "SIZE": 48},
            {"BATCH": 3, "IN_CHANNELS": 5, "OUT_CHANNELS": 11, "SIZE": 19},
            {"BATCH": 1, "IN_CHANNELS": 2, "OUT_CHANNELS": 3, "SIZE": 6},
        ],
        "gpu": [
            {"BATCH": 32, "IN_CHANNELS": 64, "OUT_CHANNELS": 128, "SIZE": 56},
            {"BATCH": 5, "IN_CHANNELS": 17, "OUT_CHANNELS": 45, "SIZE": 37},
        ],
        "interpreter": [
            {"BATCH": 1, "IN_CHANNELS": 4, "OUT_CHANNELS": 8, "SIZE": 12},
            {"BATCH": 2, "IN_CHANNELS": 3, "OUT_CHANNELS": 5, "SIZE": 7},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(out_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, in_channels, size, size) -> (batch, out_channels, size, size)."""
        return F.mish(self.norm(self.conv(x)))


def get_inputs():
    return [torch.randn(BATCH, IN_CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [IN_CHANNELS, OUT_CHANNELS]
