"""Largest value of each 3 by 3 by 3 window of a volume, in steps of 2, with a border of 1."""

import torch
from torch import nn

BATCH = 2
CHANNELS = 16
DEPTH = 16
SIZE = 28

PROBLEM = {
    "title": "Max pooling of volumes",
    "category": "pooling",
    "note": (
        "The border counts as minus infinity, not as zero, which shows wherever a window at the rim is negative "
        "throughout."
    ),
    "inputs": {"x": {"fill": "normal", "low": -10000.0, "high": 10000.0}},
    "variants": {
        "cpu": [
            {"BATCH": 2, "CHANNELS": 16, "DEPTH": 16, "SIZE": 28},
            {"BATCH": 3, "CHANNELS": 5, "DEPTH": 7, "SIZE": 11},
            {"BATCH": 1, "CHANNELS": 3, "DEPTH": 4, "SIZE": 5},
        ],
        "gpu": [
            {"BATCH": 8, "CHANNELS": 64, "DEPTH": 32, "SIZE": 56},
            {"BATCH": 3, "CHANNELS": 33, "DEPTH": 17, "SIZE": 29},
        ],
        "interpreter": [
            {"BATCH": 1, "CHANNELS": 4, "DEPTH": 6, "SIZE": 8},
            {"BATCH": 2, "CHANNELS": 3, "DEPTH": 5, "SIZE": 7},
        ],
    },
}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.MaxPool3d(3, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, depth, size, size) -> halves of the last three, rounded up."""
        return self.pool(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, DEPTH, SIZE, SIZE)]


def get_init_inputs():
    return []
