"""Depthwise convolution, 3 by 3, padding 1."""

import torch
from torch import nn

BATCH = 2
CHANNELS = 16
HEIGHT = 32
WIDTH = 48

PROBLEM = {
    "category": "convolution",
    "inputs": {"x": {"fill": "normal", "low": -1e3, "high": 1e3}},
    "variants": {
        "cpu": [
            {"BATCH": 2, "CHANNELS": 16, "HEIGHT": 32, "WIDTH": 48},
            {"BATCH": 1, "CHANNELS": 3, "HEIGHT": 5, "WIDTH": 7},
        ],
        "gpu": [
            {"BATCH": 16, "CHANNELS": 256, "HEIGHT": 56, "WIDTH": 56},
            {"BATCH": 1, "CHANNELS": 3, "HEIGHT": 5, "WIDTH": 7},
        ],
        "interpreter": [
            {"BATCH": 1, "CHANNELS": 2, "HEIGHT": 8, "WIDTH": 16},
            {"BATCH": 1, "CHANNELS": 3, "HEIGHT": 5, "WIDTH": 7},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, height, width) -> the same."""
        return self.conv(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs():
    return [CHANNELS]
