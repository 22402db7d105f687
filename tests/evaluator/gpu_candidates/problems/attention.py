"""Causal attention in bfloat16."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "attention",
    "dtype": "bfloat16",
    "inputs": {
        "q": {"fill": "normal", "low": -30.0, "high": 30.0},
        "k": {"fill": "normal", "low": -30.0, "high": 30.0},
        "v": {"fill": "normal", "low": -30.0, "high": 30.0},
    },
    "variants": {
        "interpreter": [
            {"BATCH": 1, "HEADS": 2, "TOKENS": 32, "WIDTH": 16},
            {"BATCH": 2, "HEADS": 1, "TOKENS": 40, "WIDTH": 32},
        ],
        "gpu": [{"BATCH": 2, "HEADS": 8, "TOKENS": 1024, "WIDTH": 64}],
    },
}
BATCH = 1
HEADS = 2
TOKENS = 32
WIDTH = 16


class Model(nn.Module):
    def forward(self, q, k, v):
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def get_inputs():
    return [torch.randn(BATCH, HEADS, TOKENS, WIDTH, dtype=torch.bfloat16) for _ in range(3)]


def get_init_inputs():
    return []
