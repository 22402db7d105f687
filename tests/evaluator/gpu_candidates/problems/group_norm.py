"""Group normalisation of images."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "normalization",
    "inputs": {"x": {"fill": "normal", "low": -30.0, "high": 30.0}},
    "variants": {
        "interpreter": [{"BATCH": 2, "CHANNELS": 8, "SIDE": 4}, {"BATCH": 1, "CHANNELS": 12, "SIDE": 5}],
        "gpu": [{"BATCH": 16, "CHANNELS": 64, "SIDE": 32}],
    },
}
BATCH = 2
CHANNELS = 8
SIDE = 4
GROUPS = 4


class Model(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs():
    return [GROUPS, CHANNELS]
