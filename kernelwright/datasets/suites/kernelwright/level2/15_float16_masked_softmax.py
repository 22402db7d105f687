"""Softmax over keys of float16 scores in float32, masked keys at weight 0, rounded to float16 at the end."""

import torch
from torch import nn

BATCH = 2
HEADS = 4
QUERIES = 160
KEYS = 200

PROBLEM = {
    "title": "Masked softmax in float16",
    "category": "softmax",
    "note": (
        "float16 ends at 65,504 and exponentials overflow from 11 on: sums in float16 are infinite or lose small "
        "weights; masks are drawn anew."
    ),
    "dtype": "float16",
    "inputs": {
        "scores": {"fill": "normal", "low": -1000.0, "high": 1000.0},
        "keep": {"fill": "structured"},
    },
    "variants": {
        "cpu": [
            {"BATCH": 2, "HEADS": 4, "QUERIES": 160, "KEYS": 200},
            {"BATCH": 3, "HEADS": 2, "QUERIES": 37, "KEYS": 77},
            {"BATCH": 1, "HEADS": 3, "QUERIES": 2, "KEYS": 5},
        ],
        "gpu": [
            {"BATCH": 8, "HEADS": 16, "QUERIES": 1024, "KEYS": 1024},
            {"BATCH": 3, "HEADS": 5, "QUERIES": 333, "KEYS": 515},
        ],
        "interpreter": [
            {"BATCH": 1, "HEADS": 2, "QUERIES": 16, "KEYS": 32},
            {"BATCH": 2, "HEADS": 3, "QUERIES": 5, "KEYS": 13},
        ],
    },
}


class Model(nn.Module):
    def forward(self, scores: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        """scores: (batch, heads, queries, keys) float16, keep: (batch, 1, 1, keys) bool -> the shape of scores."""
        masked = scores.float().masked_fill(~keep, float("-inf"))
        return torch.softmax(masked, dim=-1).to(scores.dtype)


def get_inputs():
    scores = torch.randn(BATCH, HEADS, QUERIES, KEYS) * 4
    keep = torch.rand(BATCH, 1, 1, KEYS) < 0.8
    keep[..., 0] = True  # a query with no key at all has no defined weights
    return [scores.half(), keep]


def get_init_inputs():
    return []
