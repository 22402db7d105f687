"""Instance normalisation (Ulyanov et al., 2016): mean and variance of each channel of each image, then affine."""

import torch
from torch import nn

BATCH = 4
CHANNELS = 32
SIZE = 56

PROBLEM = {
    "title": "Instance normalisation of images",
    "category": "normalization",
    "note": (
        "Every image has statistics of its own, and constant planes are among the checked data: the epsilon decides "
        "there."
    ),
    "inputs": {"x": {"fill": "normal", "low": -10000.0, "high": 10000.0}},
    "variants": {
        "cpu": [
            {"BATCH": 4, "CHANNELS": 32, "SIZE": 56},
            {"BATCH": 3, "CHANNELS": 17, "SIZE": 23},
            {"BATCH": 1, "CHANNELS": 5, "SIZE": 3},
        ],
        "gpu": [{"BATCH": 32, "CHANNELS": 128, "SIZE": 64}, {"BATCH": 5, "CHANNELS": 96, "SIZE": 37}],
        "interpreter": [{"BATCH": 2, "CHANNELS": 8, "SIZE": 8}, {"BATCH": 1, "CHANNELS": 6, "SIZE": 7}],
    },
}


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm2d(channels, affine=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, size, size) -> the same shape."""
        return self.norm(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [CHANNELS]
