"""Convolution with its epilogue: y = hardswish(conv(x) + bias) * scale, bias and scale one number a channel.

hardswish(v) = v * clamp(v + 3, 0, 6) / 6.
"""

import torch
import torch.nn.functional as F
from torch import nn

BATCH = 4
IN_CHANNELS = 3
OUT_CHANNELS = 24
SIZE = 64

PROBLEM = {
    "title": "Convolution, bias, hardswish, scale",
    "category": "conv_epilogue",
    "note": (
        "Hardswish bends at -3 and 3, where ordinary data lie; bias and scale have one number a channel and change "
        "between calls."
    ),
    "heavy_ops": ["aten.convolution"],
    "inputs": {"x": {"fill": "normal", "low": -1e3, "high": 1e3}},
    "variants": {
        "cpu": [
            {"BATCH": 4, "IN_CHANNELS": 3, "OUT_CHANNELS": 24, "SIZE": 64},
            {"BATCH": 2, "IN_CHANNELS": 5, "OUT_CHANNELS": 11, "SIZE": 29},
            {"BATCH": 1, "IN_CHANNELS": 2, "OUT_CHANNELS": 3, "SIZE": 7},
        ],
        "gpu": [
            {"BATCH": 64, "IN_CHANNELS": 3, "OUT_CHANNELS": 64, "SIZE": 128},
            {"BATCH": 5, "IN_CHANNELS": 7, "OUT_CHANNELS": 45, "SIZE": 61},
        ],
        "interpreter": [
            {"BATCH": 1, "IN_CHANNELS": 3, "OUT_CHANNELS": 8, "SIZE": 16},
            {"BATCH": 2, "IN_CHANNELS": 2, "OUT_CHANNELS": 5, "SIZE": 9},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1)
        self.bias = nn.Parameter(torch.randn(out_channels, 1, 1) * 0.2)
        self.scale = nn.Parameter(1 + torch.randn(out_channels, 1, 1) * 0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, in_channels, size, size) -> (batch, out_channels, size, size)."""
        return F.hardswish(self.conv(x) + self.bias) * self.scale


def get_inputs():
    return [torch.randn(BATCH, IN_CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [IN_CHANNELS, OUT_CHANNELS]
