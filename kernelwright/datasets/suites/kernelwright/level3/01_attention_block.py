"""Causal self-attention written out: softmax(mask(Q K^T / sqrt(d))) V per head, with input and output projections.

Vaswani et al., 2017. The mask is a buffer, as in many training codes.
"""

import torch
from torch import nn

BATCH = 2
TOKENS = 128
FEATURES = 96
HEADS = 6

PROBLEM = {
    "title": "Causal self-attention block",
    "category": "attention",
    "note": (
        "Four products and a softmax whose weights change between calls; heads are interleaved in memory, and a wrong "
        "order has the same statistics."
    ),
    "heavy_ops": ["aten.mm", "aten.addmm", "aten.bmm"],
    "inputs": {"x": {"fill": "normal", "low": -30.0, "high": 30.0}},
    "variants": {
        "cpu": [
            {"BATCH": 2, "TOKENS": 128, "FEATURES": 96, "HEADS": 6},
            {"BATCH": 1, "TOKENS": 61, "FEATURES": 60, "HEADS": 5},
            {"BATCH": 3, "TOKENS": 7, "FEATURES": 12, "HEADS": 3},
        ],
        "gpu": [
            {"BATCH": 8, "TOKENS": 512, "FEATURES": 768, "HEADS": 12},
            {"BATCH": 3, "TOKENS": 333, "FEATURES": 320, "HEADS": 5},
        ],
        "interpreter": [
            {"BATCH": 1, "TOKENS": 32, "FEATURES": 32, "HEADS": 2},
            {"BATCH": 2, "TOKENS": 13, "FEATURES": 24, "HEADS": 3},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, features: int, heads: int, max_tokens: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(features, 3 * features)
        self.out = nn.Linear(features, features)
        self.register_buffer("causal", torch.ones(max_tokens, max_tokens, dtype=torch.bool).tril())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, tokens, features) -> (batch, tokens, features)."""
        batch, tokens, features = x.shape
        size = features // self.heads
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, size).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) * size**-0.5
        scores = scores.masked_fill(~self.causal[:tokens, :tokens], float("-inf"))
        mixed = torch.softmax(scores, dim=-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, features))


def get_inputs():
    return [torch.randn(BATCH, TOKENS, FEATURES)]


def get_init_inputs():
    return [FEATURES, HEADS, TOKENS]
