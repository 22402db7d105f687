"""A small convolution with bias; its weights are inputs."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "convolution",
    "heavy_ops": ["aten.convolution"],
    "inputs": {"x": {"fill": "normal", "low": -100.0, "high": 100.0}},
    "variants": {"cpu": [{"BATCH": 1, "SIZE": 16}, {"BATCH": 2, "SIZE": 7}]},
}
BATCH = 1
SIZE = 16


class Model(nn.Module):
    def __init__(self, channels, filters):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, kernel_size=3, padding=1)

    def forward(self, x):
        return self.conv(x)


def get_inputs():
    return [torch.randn(BATCH, 4, SIZE, SIZE)]


def get_init_inputs():
    return [4, 8]
