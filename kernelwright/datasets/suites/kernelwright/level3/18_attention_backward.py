"""Attention, forward and backward: the output, and the gradients of queries, keys and values."""

import torch
from torch import nn

BATCH = 2
HEADS = 4
TOKENS = 96
HEAD_SIZE = 32

PROBLEM = {
    "title": "Attention with gradients",
    "category": "attention",
    "note": (
        "Gradients of the scores need every weight again; the incoming gradient is drawn anew, and all four results "
        "are compared."
    ),
    "backward": True,
    "heavy_ops": ["aten.bmm"],
    "inputs": {
        "query": {"fill": "normal", "low": -10.0, "high": 10.0},
        "key": {"fill": "normal", "low": -10.0, "high": 10.0},
        "value": {"fill": "normal", "low": -100.0, "high": 100.0},
    },
    "variants": {
        "cpu": [
            {"BATCH": 2, "HEADS": 4, "TOKENS": 96, "HEAD_SIZE": 32},
            {"BATCH": 3, "HEADS": 2, "TOKENS": 37, "HEAD_SIZE": 20},
            {"BATCH": 1, "HEADS": 3, "TOKENS": 7, "HEAD_SIZE": 5},
        ],
        "gpu": [
            {"BATCH": 4, "HEADS": 16, "TOKENS": 1024, "HEAD_SIZE": 64},
            {"BATCH": 3, "HEADS": 5, "TOKENS": 333, "HEAD_SIZE": 40},
        ],
        "interpreter": [
            {"BATCH": 1, "HEADS": 2, "TOKENS": 16, "HEAD_SIZE": 8},
            {"BATCH": 2, "HEADS": 3, "TOKENS": 7, "HEAD_SIZE": 5},
        ],
    },
}


class Model(nn.Module):
    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """query, key, value: (batch, heads, tokens, size) -> the same shape."""
        scores = torch.matmul(query, key.transpose(-2, -1)) * query.shape[-1] ** -0.5
        return torch.matmul(torch.softmax(scores, dim=-1), value)


def get_inputs():
    shape = (BATCH, HEADS, TOKENS, HEAD_SIZE)
    return [torch.randn(shape), torch.randn(shape), torch.randn(shape)]


def get_init_inputs():
    return []
