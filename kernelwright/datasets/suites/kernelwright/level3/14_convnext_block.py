"""The block of ConvNeXt (Liu et al., 2022): depthwise 7x7, layer normalisation over channels, two layers with GELU, a
scale."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH = 2
CHANNELS = 32
HIDDEN = 128
SIZE = 24

PROBLEM = {
    "title": "ConvNeXt block",
    "category": "block",
    "note": (
        "Normalisation runs over channels, which lie far apart in memory: over pixels it has the same cost and "
        "another answer."
    ),
    "heavy_ops": ["aten.convolution", "aten.addmm"],
    "inputs": {"x": {"fill": "normal", "low": -100.0, "high": 100.0}},
    "variants": {
        "cpu": [
            {"BATCH": 2, "CHANNELS": 32, "HIDDEN": 128, "SIZE": 24},
            {"BATCH": 3, "CHANNELS": 7, "HIDDEN": 13, "SIZE": 11},
            {"BATCH": 1, "CHANNELS": 3, "HIDDEN": 5, "SIZE": 4},
        ],
        "gpu": [
            {"BATCH": 16, "CHANNELS": 128, "HIDDEN": 512, "SIZE": 56},
            {"BATCH": 5, "CHANNELS": 65, "HIDDEN": 77, "SIZE": 19},
        ],
        "interpreter": [
            {"BATCH": 1, "CHANNELS": 4, "HIDDEN": 16, "SIZE": 8},
            {"BATCH": 2, "CHANNELS": 3, "HIDDEN": 5, "SIZE": 7},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.up = nn.Linear(channels, hidden)
        self.down = nn.Linear(hidden, channels)
        self.scale = nn.Parameter(torch.rand(channels) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, size, size) -> the same shape."""
        hidden = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        hidden = self.down(F.gelu(self.up(hidden))) * self.scale
        return x + hidden.permute(0, 3, 1, 2)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [CHANNELS, HIDDEN]
