"""Images cut into patches of 8 by 8 (Dosovitskiy et al., 2021): a linear map of each, positions added, layer
normalisation."""

import torch
from torch import nn

BATCH = 4
CHANNELS = 3
GRID = 12
WIDTH = 96

PROBLEM = {
    "title": "Patch embedding of images",
    "category": "block",
    "note": (
        "Patches do not overlap, so the convolution is a product in disguise; positions are weights that change "
        "between calls."
    ),
    "heavy_ops": ["aten.convolution"],
    "inputs": {"x": {"fill": "normal", "low": -100.0, "high": 100.0}},
    "variants": {
        "cpu": [
            {"BATCH": 4, "CHANNELS": 3, "GRID": 12, "WIDTH": 96},
            {"BATCH": 3, "CHANNELS": 2, "GRID": 5, "WIDTH": 37},
            {"BATCH": 1, "CHANNELS": 1, "GRID": 3, "WIDTH": 7},
        ],
        "gpu": [
            {"BATCH": 64, "CHANNELS": 3, "GRID": 28, "WIDTH": 768},
            {"BATCH": 5, "CHANNELS": 4, "GRID": 13, "WIDTH": 130},
        ],
        "interpreter": [
            {"BATCH": 2, "CHANNELS": 3, "GRID": 4, "WIDTH": 24},
            {"BATCH": 1, "CHANNELS": 2, "GRID": 3, "WIDTH": 13},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, channels: int, grid: int, width: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, width, 8, stride=8)
        self.position = nn.Parameter(torch.randn(grid * grid, width) * 0.5)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, 8 grid, 8 grid) -> (batch, grid^2, width)."""
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        return self.norm(tokens + self.position)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, 8 * GRID, 8 * GRID)]


def get_init_inputs():
    return [CHANNELS, GRID, WIDTH]
