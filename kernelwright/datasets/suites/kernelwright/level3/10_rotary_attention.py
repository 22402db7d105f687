"""Causal self-attention with rotary positions (Su et al., 2021): queries and keys are turned by angles before their
product."""

import torch
from torch import nn

BATCH = 2
TOKENS = 96
HEADS = 4
HEAD_SIZE = 32

PROBLEM = {
    "title": "Causal attention with rotary positions",
    "category": "attention",
    "note": (
        "Angles are inputs and shared by all heads; values are not turned. Turning both or neither side by mistake "
        "keeps norms and changes every score."
    ),
    "heavy_ops": ["aten.mm", "aten.bmm"],
    "inputs": {
        "x": {"fill": "normal", "low": -100.0, "high": 100.0},
        "angles": {"fill": "normal", "low": -100.0, "high": 100.0},
    },
    "variants": {
        "cpu": [
            {"BATCH": 2, "TOKENS": 96, "HEADS": 4, "HEAD_SIZE": 32},
            {"BATCH": 3, "TOKENS": 37, "HEADS": 2, "HEAD_SIZE": 18},
            {"BATCH": 1, "TOKENS": 5, "HEADS": 3, "HEAD_SIZE": 6},
        ],
        "gpu": [
            {"BATCH": 8, "TOKENS": 1024, "HEADS": 16, "HEAD_SIZE": 64},
            {"BATCH": 3, "TOKENS": 333, "HEADS": 5, "HEAD_SIZE": 38},
        ],
        "interpreter": [
            {"BATCH": 1, "TOKENS": 16, "HEADS": 2, "HEAD_SIZE": 8},
            {"BATCH": 2, "TOKENS": 7, "HEADS": 3, "HEAD_SIZE": 6},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, heads: int, head_size: int) -> None:
        super().__init__()
        self.heads, self.head_size = heads, head_size
        self.qkv = nn.Linear(heads * head_size, 3 * heads * head_size, bias=False)
        self.out = nn.Linear(heads * head_size, heads * head_size, bias=False)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """x: (batch, tokens, heads * head_size), angles: (tokens, head_size / 2) -> the shape of x."""
        batch, tokens, width = x.shape
        parts = self.qkv(x).view(batch, tokens, 3, self.heads, self.head_size).permute(2, 0, 3, 1, 4)
        cos, sin = torch.cos(angles), torch.sin(angles)
        query, key = _turn(parts[0], cos, sin), _turn(parts[1], cos, sin)
        scores = torch.matmul(query, key.transpose(-2, -1)) * self.head_size**-0.5
        future = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
        weights = torch.softmax(scores.masked_fill(future, float("-inf")), dim=-1)
        return self.out(torch.matmul(weights, parts[2]).transpose(1, 2).reshape(batch, tokens, width))


def _turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def get_inputs():
    return [torch.randn(BATCH, TOKENS, HEADS * HEAD_SIZE), torch.randn(TOKENS, HEAD_SIZE // 2) * 5]


def get_init_inputs():
    return [HEADS, HEAD_SIZE]
