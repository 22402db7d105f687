"""A convolution of 3 x 3 in float16."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "convolution",
    "dtype": "float16",
    "inputs": {"x": {"fill": "normal", "low": -30.0, "high": 30.0}},
    "variants": {
        "interpreter": [
            {"BATCH": 1, "CHANNELS": 16, "FILTERS": 16, "SIDE": 6},
            {"BATCH": 2, "CHANNELS": 8, "FILTERS": 24, "SIDE": 5},
        ],
        "gpu": [{"BATCH": 8, "CHANNELS": 64, "FILTERS": 64, "SIDE": 32}],
    },
}
BATCH = 1
CHANNELS = 16
FILTERS = 16
SIDE = 6


class Model(nn.Module):
    def __init__(self, channels, filters):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, 3, padding=1, bias=False, dtype=torch.float16)

    def forward(self, x):
        return self.conv(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE, dtype=torch.float16)]


def get_init_inputs():
    return [CHANNELS, FILTERS]
