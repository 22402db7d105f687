"""Rotary position embedding of pairs that lie half a row apart."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "pointwise",
    "inputs": {"x": {"fill": "normal", "low": -1e3, "high": 1e3}},
    "variants": {
        "interpreter": [{"TOKENS": 8, "HEADS": 2, "WIDTH": 16}, {"TOKENS": 5, "HEADS": 3, "WIDTH": 32}],
        "gpu": [{"TOKENS": 1024, "HEADS": 16, "WIDTH": 64}],
    },
}
TOKENS = 8
HEADS = 2
WIDTH = 16


class Model(nn.Module):
    def __init__(self, tokens, width):
        super().__init__()
        angles = torch.arange(tokens)[:, None] / 10000.0 ** (torch.arange(width // 2) * 2 / width)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x):
        left, right = x.chunk(2, dim=-1)
        cos, sin = self.cos[:, None], self.sin[:, None]
        return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


def get_inputs():
    return [torch.randn(TOKENS, HEADS, WIDTH)]


def get_init_inputs():
    return [TOKENS, WIDTH]
