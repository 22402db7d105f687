"""Group normalisation (Wu and He, 2018): mean and variance over each group of channels and all pixels, then affine."""

import torch
from torch import nn

BATCH = 4
CHANNELS = 64
SIZE = 48
GROUPS = 8

PROBLEM = {
    "title": "Group normalisation of images",
    "category": "normalization",
    "note": (
        "Statistics run over channels and pixels of one group of one image; groups of other sizes are checked as well."
    ),
    "inputs": {"x": {"fill": "normal", "low": -1e4, "high": 1e4}},
    "variants": {
        "cpu": [
            {"BATCH": 4, "CHANNELS": 64, "SIZE": 48, "GROUPS": 8},
            {"BATCH": 3, "CHANNELS": 30, "SIZE": 23, "GROUPS": 5},
            {"BATCH": 1, "CHANNELS": 6, "SIZE": 5, "GROUPS": 3},
        ],
        "gpu": [
            {"BATCH": 32, "CHANNELS": 256, "SIZE": 64, "GROUPS": 32},
            {"BATCH": 5, "CHANNELS": 96, "SIZE": 37, "GROUPS": 12},
        ],
        "interpreter": [
            {"BATCH": 2, "CHANNELS": 8, "SIZE": 8, "GROUPS": 4},
            {"BATCH": 1, "CHANNELS": 6, "SIZE": 7, "GROUPS": 2},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, groups: int, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, size, size) -> the same shape."""
        return self.norm(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [GROUPS, CHANNELS]
