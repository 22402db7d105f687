"""Squeeze and excitation (Hu et al., 2018): channels scaled by a sigmoid of two layers over their means."""

import torch
from torch import nn

BATCH = 4
CHANNELS = 64
REDUCED = 16
SIZE = 48

PROBLEM = {
    "title": "Squeeze-and-excitation block",
    "category": "block",
    "note": (
        "The scale of a channel needs the means of all: the image is read twice or kept, and a kernel that scales "
        "before it has them all is wrong."
    ),
    "heavy_ops": ["aten.addmm"],
    "inputs": {"x": {"fill": "normal", "low": -100.0, "high": 100.0}},
    "variants": {
        "cpu": [
            {"BATCH": 4, "CHANNELS": 64, "REDUCED": 16, "SIZE": 48},
            {"BATCH": 3, "CHANNELS": 17, "REDUCED": 5, "SIZE": 23},
            {"BATCH": 1, "CHANNELS": 5, "REDUCED": 3, "SIZE": 4},
        ],
        "gpu": [
            {"BATCH": 32, "CHANNELS": 256, "REDUCED": 64, "SIZE": 56},
            {"BATCH": 5, "CHANNELS": 96, "REDUCED": 13, "SIZE": 37},
        ],
        "interpreter": [
            {"BATCH": 2, "CHANNELS": 8, "REDUCED": 4, "SIZE": 8},
            {"BATCH": 1, "CHANNELS": 6, "REDUCED": 3, "SIZE": 7},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, channels: int, reduced: int) -> None:
        super().__init__()
        self.squeeze = nn.Linear(channels, reduced)
        self.excite = nn.Linear(reduced, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, size, size) -> the same shape."""
        mean = x.mean(dim=(2, 3))
        scale = torch.sigmoid(self.excite(torch.relu(self.squeeze(mean))))
        return x * scale[:, :, None, None]


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE) + 0.5]


def get_init_inputs():
    return [CHANNELS, REDUCED]
