"""Dropout of whole channels: all elements of one are left out together."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "pointwise",
    "randomness": "distribution",
    "inputs": {"x": {"fill": "normal", "low": -1e3, "high": 1e3}},
    "variants": {"cpu": [{"SAMPLES": 8, "CHANNELS": 16, "LENGTH": 512}, {"SAMPLES": 3, "CHANNELS": 7, "LENGTH": 65}]},
}
SAMPLES = 8
CHANNELS = 16
LENGTH = 512


class Model(nn.Module):
    def forward(self, x):
        return torch.nn.functional.dropout1d(x, 0.25, training=True)


def get_inputs():
    return [torch.randn(SAMPLES, CHANNELS, LENGTH)]


def get_init_inputs():
    return []
