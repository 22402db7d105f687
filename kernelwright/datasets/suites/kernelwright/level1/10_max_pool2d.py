"""Max pooling of images: y[n, c, i, j] = max of the kernel x kernel window at (i, j) * stride, padded with -inf."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH = 4
CHANNELS = 32
SIZE = 48
KERNEL = 3
STRIDE = 2
PADDING = 1

PROBLEM = {
    "title": "Max pooling 2d",
    "category": "pooling",
    "note": "The border counts as minus infinity, not as zero, which shows wherever a window at the rim is negative.",
    "inputs": {"x": {"fill": "normal", "low": -1e4, "high": 1e4}},
    "variants": {
        "cpu": [
            {"BATCH": 4, "CHANNELS": 32, "SIZE": 48, "KERNEL": 3, "STRIDE": 2, "PADDING": 1},
            {"BATCH": 2, "CHANNELS": 13, "SIZE": 37, "KERNEL": 3, "STRIDE": 2, "PADDING": 1},
            {"BATCH": 1, "CHANNELS": 3, "SIZE": 11, "KERNEL": 2, "STRIDE": 2, "PADDING": 0},
        ],
        "gpu": [
            {"BATCH": 32, "CHANNELS": 64, "SIZE": 112, "KERNEL": 3, "STRIDE": 2, "PADDING": 1},
            {"BATCH": 5, "CHANNELS": 33, "SIZE": 57, "KERNEL": 2, "STRIDE": 2, "PADDING": 0},
        ],
        "interpreter": [
            {"BATCH": 1, "CHANNELS": 4, "SIZE": 16, "KERNEL": 3, "STRIDE": 2, "PADDING": 1},
            {"BATCH": 2, "CHANNELS": 3, "SIZE": 9, "KERNEL": 2, "STRIDE": 2, "PADDING": 0},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, kernel: int, stride: int, padding: int) -> None:
        super().__init__()
        self.kernel, self.stride, self.padding = kernel, stride, padding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, size, size) -> (batch, channels, out, out)."""
        return F.max_pool2d(x, self.kernel, self.stride, self.padding)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [KERNEL, STRIDE, PADDING]
