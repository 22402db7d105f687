"""Attention of one sequence to another, part of whose tokens are masked (Vaswani et al., 2017), with a residual sum."""

import torch
from torch import nn

BATCH = 2
TOKENS = 80
MEMORY = 120
HEADS = 4
HEAD_SIZE = 32

PROBLEM = {
    "title": "Masked cross-attention",
    "category": "attention",
    "note": (
        "Masks are drawn anew for every call, and the two sequences differ in length: a kernel that reads masked "
        "tokens, or takes one length for both, is wrong."
    ),
    "heavy_ops": ["aten.addmm", "aten.mm", "aten.bmm"],
    "inputs": {
        "x": {"fill": "normal", "low": -100.0, "high": 100.0},
        "memory": {"fill": "normal", "low": -100.0, "high": 100.0},
        "keep": {"fill": "structured"},
    },
    "variants": {
        "cpu": [
            {"BATCH": 2, "TOKENS": 80, "MEMORY": 120, "HEADS": 4, "HEAD_SIZE": 32},
            {"BATCH": 3, "TOKENS": 37, "MEMORY": 45, "HEADS": 2, "HEAD_SIZE": 20},
            {"BATCH": 1, "TOKENS": 5, "MEMORY": 7, "HEADS": 3, "HEAD_SIZE": 6},
        ],
        "gpu": [
            {"BATCH": 8, "TOKENS": 512, "MEMORY": 1024, "HEADS": 16, "HEAD_SIZE": 64},
            {"BATCH": 3, "TOKENS": 333, "MEMORY": 515, "HEADS": 5, "HEAD_SIZE": 40},
        ],
        "interpreter": [
            {"BATCH": 1, "TOKENS": 16, "MEMORY": 24, "HEADS": 2, "HEAD_SIZE": 8},
            {"BATCH": 2, "TOKENS": 7, "MEMORY": 13, "HEADS": 3, "HEAD_SIZE": 5},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, heads: int, head_size: int) -> None:
        super().__init__()
        self.heads, self.head_size = heads, head_size
        width = heads * head_size
        self.query = nn.Linear(width, width)
        self.pair = nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, memory: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        """x: (batch, tokens, width), memory: (batch, memory, width), keep: (batch, memory) bool -> shape of x."""
        query = self._split(self.query(x))
        key, value = (self._split(part) for part in self.pair(memory).chunk(2, dim=-1))
        scores = torch.matmul(query, key.transpose(-2, -1)) * self.head_size**-0.5
        weights = torch.softmax(scores.masked_fill(~keep[:, None, None, :], float("-inf")), dim=-1)
        mixed = torch.matmul(weights, value).transpose(1, 2).reshape(x.shape)
        return x + self.out(mixed)

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, self.head_size).transpose(1, 2)


def get_inputs():
    width = HEADS * HEAD_SIZE
    keep = torch.rand(BATCH, MEMORY) < 0.7
    keep[:, 0] = True  # a query with no key at all has no defined weights
    return [torch.randn(BATCH, TOKENS, width), torch.randn(BATCH, MEMORY, width), keep]


def get_init_inputs():
    return [HEADS, HEAD_SIZE]
