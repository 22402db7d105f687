"""Causal attention weights with linear biases (Press et al., 2022): softmax over keys j <= i of scores - slope[h] (i -
j)."""

import torch
from torch import nn

BATCH = 2
HEADS = 6
STEPS = 200

PROBLEM = {
    "title": "Causal softmax with linear biases",
    "category": "softmax",
    "note": (
        "Half of the scores must not be read into the result and half of the weights must be written as zeros; the "
        "slopes change between calls."
    ),
    "inputs": {"scores": {"fill": "normal", "low": -10000.0, "high": 10000.0}},
    "variants": {
        "cpu": [
            {"BATCH": 2, "HEADS": 6, "STEPS": 200},
            {"BATCH": 3, "HEADS": 2, "STEPS": 77},
            {"BATCH": 1, "HEADS": 3, "STEPS": 5},
        ],
        "gpu": [{"BATCH": 8, "HEADS": 16, "STEPS": 1024}, {"BATCH": 3, "HEADS": 5, "STEPS": 333}],
        "interpreter": [{"BATCH": 1, "HEADS": 2, "STEPS": 32}, {"BATCH": 2, "HEADS": 3, "STEPS": 13}],
    },
}


class Model(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.rand(heads, 1, 1) * 0.5 + 0.05)

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        """scores: (batch, heads, steps, steps) -> the same shape."""
        step = torch.arange(scores.shape[-1], device=scores.device)
        distance = step[:, None] - step[None, :]
        biased = scores - self.slope * distance
        return torch.softmax(biased.masked_fill(distance < 0, float("-inf")), dim=-1)


def get_inputs():
    return [torch.randn(BATCH, HEADS, STEPS, STEPS) * 4]


def get_init_inputs():
    return [HEADS]
