"""Causal attention to the last WINDOW tokens (Beltagy et al., 2020), queries, keys and values given."""

import torch
from torch import nn

BATCH = 2
HEADS = 4
TOKENS = 256
HEAD_SIZE = 32
WINDOW = 50

PROBLEM = {
    "title": "Sliding-window attention",
    "category": "attention",
    "note": (
        "What lies outside of the window must not be read and need not be computed, which is where a kernel may win; "
        "the window is no multiple of a tile."
    ),
    "heavy_ops": ["aten.bmm"],
    "inputs": {
        "query": {"fill": "normal", "low": -100.0, "high": 100.0},
        "key": {"fill": "normal", "low": -100.0, "high": 100.0},
        "value": {"fill": "normal", "low": -1000.0, "high": 1000.0},
    },
    "variants": {
        "cpu": [
            {"BATCH": 2, "HEADS": 4, "TOKENS": 256, "HEAD_SIZE": 32, "WINDOW": 50},
            {"BATCH": 3, "HEADS": 2, "TOKENS": 77, "HEAD_SIZE": 20, "WINDOW": 13},
            {"BATCH": 1, "HEADS": 3, "TOKENS": 7, "HEAD_SIZE": 5, "WINDOW": 3},
        ],
        "gpu": [
            {"BATCH": 4, "HEADS": 16, "TOKENS": 4096, "HEAD_SIZE": 64, "WINDOW": 500},
            {"BATCH": 3, "HEADS": 5, "TOKENS": 333, "HEAD_SIZE": 40, "WINDOW": 77},
        ],
        "interpreter": [
            {"BATCH": 1, "HEADS": 2, "TOKENS": 32, "HEAD_SIZE": 16, "WINDOW": 10},
            {"BATCH": 2, "HEADS": 3, "TOKENS": 13, "HEAD_SIZE": 5, "WINDOW": 4},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """query, key, value: (batch, heads, tokens, size) -> the same shape."""
        step = torch.arange(query.shape[2], device=query.device)
        distance = step[:, None] - step[None, :]
        outside = (distance < 0) | (distance >= self.window)
        scores = torch.matmul(query, key.transpose(-2, -1)) * query.shape[-1] ** -0.5
        return torch.matmul(torch.softmax(scores.masked_fill(outside, float("-inf")), dim=-1), value)


def get_inputs():
    shape = (BATCH, HEADS, TOKENS, HEAD_SIZE)
    return [torch.randn(shape), torch.randn(shape), torch.randn(shape)]


def get_init_inputs():
    return [WINDOW]
