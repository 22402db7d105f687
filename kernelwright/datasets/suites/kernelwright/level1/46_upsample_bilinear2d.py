"""Images of twice the size by bilinear interpolation between the centres of pixels."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH = 4
CHANNELS = 24
SIZE = 48

PROBLEM = {
    "title": "Bilinear upsampling of images",
    "category": "pointwise",
    "note": (
        "Weights are 1/4 and 3/4 by turns and pixels at the rim repeat: interpolation between corners, or without the "
        "rim, differs everywhere or there."
    ),
    "inputs": {"x": {"fill": "normal", "low": -10000.0, "high": 10000.0}},
    "variants": {
        "cpu": [
            {"BATCH": 4, "CHANNELS": 24, "SIZE": 48},
            {"BATCH": 3, "CHANNELS": 17, "SIZE": 23},
            {"BATCH": 1, "CHANNELS": 5, "SIZE": 3},
        ],
        "gpu": [{"BATCH": 16, "CHANNELS": 128, "SIZE": 112}, {"BATCH": 5, "CHANNELS": 96, "SIZE": 37}],
        "interpreter": [{"BATCH": 2, "CHANNELS": 6, "SIZE": 8}, {"BATCH": 1, "CHANNELS": 6, "SIZE": 7}],
    },
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, size, size) -> (batch, channels, 2 size, 2 size)."""
        return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return []
