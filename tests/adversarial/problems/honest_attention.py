"""Causal attention of a few small heads."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "attention",
    "inputs": {
        "q": {"fill": "normal", "low": -8.0, "high": 8.0},
        "k": {"fill": "normal", "low": -8.0, "high": 8.0},
        "v": {"fill": "normal", "low": -1e3, "high": 1e3},
    },
    "variants": {"cpu": [{"HEADS": 4, "LENGTH": 32, "WIDTH": 16}, {"HEADS": 2, "LENGTH": 13, "WIDTH": 8}]},
}
HEADS = 4
LENGTH = 32
WIDTH = 16


class Model(nn.Module):
    def forward(self, q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def get_inputs():
    return [torch.randn(1, HEADS, LENGTH, WIDTH) for _ in range(3)]


def get_init_inputs():
    return []
