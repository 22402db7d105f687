"""Attention weights: softmax over keys of scores / sqrt(d) + bias, masked keys at weight 0, with one bias a head."""

import torch
from torch import nn

BATCH = 2
HEADS = 4
TOKENS = 160
HEAD_SIZE = 64

PROBLEM = {
    "title": "Scaled, biased, masked softmax",
    "category": "softmax",
    "note": (
        "Masks are drawn anew for every call and biases between calls; masked keys must have weight zero and the rest "
        "must sum to one."
    ),
    "inputs": {
        "scores": {"fill": "normal", "low": -1e4, "high": 1e4},
        "keep": {"fill": "structured"},
    },
    "variants": {
        "cpu": [
            {"BATCH": 2, "HEADS": 4, "TOKENS": 160, "HEAD_SIZE": 64},
            {"BATCH": 3, "HEADS": 2, "TOKENS": 77, "HEAD_SIZE": 40},
            {"BATCH": 1, "HEADS": 3, "TOKENS": 5, "HEAD_SIZE": 8},
        ],
        "gpu": [
            {"BATCH": 8, "HEADS": 16, "TOKENS": 1024, "HEAD_SIZE": 64},
            {"BATCH": 3, "HEADS": 5, "TOKENS": 333, "HEAD_SIZE": 40},
        ],
        "interpreter": [
            {"BATCH": 1, "HEADS": 2, "TOKENS": 32, "HEAD_SIZE": 64},
            {"BATCH": 2, "HEADS": 3, "TOKENS": 13, "HEAD_SIZE": 40},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, heads: int, tokens: int, head_size: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(heads, tokens, tokens) * 0.5)
        self.scale = head_size**-0.5

    def forward(self, scores: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        """scores: (batch, heads, queries, keys), keep: (batch, 1, 1, keys) bool -> the shape of scores."""
        logits = scores * self.scale + self.bias
        return torch.softmax(logits.masked_fill(~keep, float("-inf")), dim=-1)


def get_inputs():
    keep = torch.rand(BATCH, 1, 1, TOKENS) < 0.8
    keep[..., 0] = True  # a query with no key at all has no defined weights
    return [torch.randn(BATCH, HEADS, TOKENS, TOKENS) * 8, keep]


def get_init_inputs():
    return [HEADS, TOKENS, HEAD_SIZE]
