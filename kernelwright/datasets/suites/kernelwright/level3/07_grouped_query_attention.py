"""Grouped-query attention (Ainslie et al., 2023): several query heads share one head of keys and values."""

import torch
from torch import nn

BATCH = 2
TOKENS = 96
HEADS = 8
GROUPS = 2
HEAD_SIZE = 16

PROBLEM = {
    "title": "Grouped-query attention",
    "category": "attention",
    "note": (
        "Which key head a query head reads is the point: another grouping gives outputs of the same statistics and is "
        "wrong in each."
    ),
    "heavy_ops": ["aten.addmm", "aten.mm", "aten.bmm"],
    "inputs": {"x": {"fill": "normal", "low": -100.0, "high": 100.0}},
    "variants": {
        "cpu": [
            {"BATCH": 2, "TOKENS": 96, "HEADS": 8, "GROUPS": 2, "HEAD_SIZE": 16},
            {"BATCH": 3, "TOKENS": 37, "HEADS": 6, "GROUPS": 3, "HEAD_SIZE": 10},
            {"BATCH": 1, "TOKENS": 5, "HEADS": 4, "GROUPS": 2, "HEAD_SIZE": 3},
        ],
        "gpu": [
            {"BATCH": 8, "TOKENS": 1024, "HEADS": 32, "GROUPS": 8, "HEAD_SIZE": 64},
            {"BATCH": 3, "TOKENS": 333, "HEADS": 6, "GROUPS": 3, "HEAD_SIZE": 40},
        ],
        "interpreter": [
            {"BATCH": 1, "TOKENS": 16, "HEADS": 4, "GROUPS": 2, "HEAD_SIZE": 8},
            {"BATCH": 2, "TOKENS": 7, "HEADS": 6, "GROUPS": 3, "HEAD_SIZE": 5},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, heads: int, groups: int, head_size: int) -> None:
        super().__init__()
        self.heads, self.groups, self.head_size = heads, groups, head_size
        width = heads * head_size
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, groups * head_size, bias=False)
        self.value = nn.Linear(width, groups * head_size)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, tokens, heads * head_size) -> the same shape."""
        batch, tokens, _ = x.shape
        query = self.query(x).view(batch, tokens, self.heads, self.head_size).transpose(1, 2)
        key = self.key(x).view(batch, tokens, self.groups, self.head_size).transpose(1, 2)
        value = self.value(x).view(batch, tokens, self.groups, self.head_size).transpose(1, 2)
        shared = self.heads // self.groups
        key, value = key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)
        scores = torch.matmul(query, key.transpose(-2, -1)) * self.head_size**-0.5
        mixed = torch.matmul(torch.softmax(scores, dim=-1), value)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, -1))


def get_inputs():
    return [torch.randn(BATCH, TOKENS, HEADS * HEAD_SIZE)]


def get_init_inputs():
    return [HEADS, GROUPS, HEAD_SIZE]
