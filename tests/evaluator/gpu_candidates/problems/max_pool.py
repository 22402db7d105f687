"""The largest of each window of 3 x 3, two apart."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "pooling",
    "inputs": {"x": {"fill": "normal", "low": -1e3, "high": 1e3}},
    "variants": {
        "interpreter": [{"BATCH": 2, "CHANNELS": 3, "SIDE": 9}, {"BATCH": 1, "CHANNELS": 4, "SIDE": 8}],
        "gpu": [{"BATCH": 16, "CHANNELS": 64, "SIDE": 64}],
    },
}
BATCH = 2
CHANNELS = 3
SIDE = 9


class Model(nn.Module):
    def forward(self, x):
        return nn.functional.max_pool2d(x, 3, stride=2, padding=1)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs():
    return []
