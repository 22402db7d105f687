"""Rotary embedding of positions: the angles depend on the shape alone."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "pointwise",
    "inputs": {"x": {"fill": "normal", "low": -1e4, "high": 1e4}},
    "variants": {"cpu": [{"LENGTH": 48, "WIDTH": 64}, {"LENGTH": 5, "WIDTH": 18}]},
}
LENGTH = 48
WIDTH = 64


class Model(nn.Module):
    def __init__(self, length, width):
        super().__init__()
        frequency = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def forward(self, x):
        even, odd = x[:, 0::2], x[:, 1::2]
        turned = torch.stack((even * self.cos - odd * self.sin, even * self.sin + odd * self.cos), dim=-1)
        return turned.flatten(-2)


def get_inputs():
    return [torch.randn(LENGTH, WIDTH)]


def get_init_inputs():
    return [LENGTH, WIDTH]
