"""Group normalisation, then hardtanh: y = clamp(group_norm(x) * weight + bias, low, high)."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH = 8
CHANNELS = 32
SIZE = 40
GROUPS = 8
LOW = -1.5
HIGH = 1.5

PROBLEM = {
    "title": "Group normalisation and hardtanh",
    "category": "normalization",
    "note": (
        "The cut comes after a normalisation and leaves most elements as they are, so that a cut alone, or none, shows."
    ),
    "inputs": {"x": {"fill": "normal", "low": -1e4, "high": 1e4}},
    "variants": {
        "cpu": [
            {"BATCH": 8, "CHANNELS": 32, "SIZE": 40, "GROUPS": 8},
            {"BATCH": 3, "CHANNELS": 21, "SIZE": 17, "GROUPS": 7},
            {"BATCH": 1, "CHANNELS": 6, "SIZE": 5, "GROUPS": 2},
        ],
        "gpu": [
            {"BATCH": 32, "CHANNELS": 128, "SIZE": 64, "GROUPS": 16},
            {"BATCH": 5, "CHANNELS": 96, "SIZE": 37, "GROUPS": 12},
        ],
        "interpreter": [
            {"BATCH": 2, "CHANNELS": 8, "SIZE": 8, "GROUPS": 4},
            {"BATCH": 1, "CHANNELS": 6, "SIZE": 7, "GROUPS": 3},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, groups: int, channels: int, low: float, high: float) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)
        self.low, self.high = low, high

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, size, size) -> the same shape."""
        return F.hardtanh(self.norm(x), self.low, self.high)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [GROUPS, CHANNELS, LOW, HIGH]
