"""Batch normalisation of images in eval mode: the running statistics are buffers."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "normalization",
    "mode": "eval",
    "inputs": {"x": {"fill": "normal", "low": -1e3, "high": 1e3}},
    "variants": {
        "cpu": [{"BATCH": 4, "CHANNELS": 8, "SIZE": 16}, {"BATCH": 2, "CHANNELS": 3, "SIZE": 7}],
        "interpreter": [{"BATCH": 1, "CHANNELS": 3, "SIZE": 4}, {"BATCH": 2, "CHANNELS": 2, "SIZE": 3}],
    },
}
BATCH = 4
CHANNELS = 8
SIZE = 16


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(self.norm(x))


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [CHANNELS]
