"""Rotary position embedding (Su et al., 2021): pairs (x[i], x[i + d/2]) turned by angles[t, i], one angle a step and
pair."""

import torch
from torch import nn

BATCH = 2
HEADS = 8
STEPS = 256
SIZE = 64

PROBLEM = {
    "title": "Rotary position embedding",
    "category": "pointwise",
    "note": (
        "Angles are inputs, so no table of sines can be kept; they reach 1,000, where a fast sine without range "
        "reduction is off."
    ),
    "inputs": {
        "x": {"fill": "normal", "low": -10000.0, "high": 10000.0},
        "angles": {"fill": "normal", "low": -1000.0, "high": 1000.0},
    },
    "variants": {
        "cpu": [
            {"BATCH": 2, "HEADS": 8, "STEPS": 256, "SIZE": 64},
            {"BATCH": 3, "HEADS": 5, "STEPS": 67, "SIZE": 22},
            {"BATCH": 1, "HEADS": 3, "STEPS": 5, "SIZE": 6},
        ],
        "gpu": [
            {"BATCH": 8, "HEADS": 32, "STEPS": 2048, "SIZE": 128},
            {"BATCH": 3, "HEADS": 5, "STEPS": 333, "SIZE": 90},
        ],
        "interpreter": [
            {"BATCH": 1, "HEADS": 2, "STEPS": 16, "SIZE": 32},
            {"BATCH": 2, "HEADS": 3, "STEPS": 7, "SIZE": 10},
        ],
    },
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """x: (batch, heads, steps, size), angles: (steps, size / 2) -> the shape of x."""
        first, second = x.chunk(2, dim=-1)
        cos, sin = torch.cos(angles), torch.sin(angles)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def get_inputs():
    return [torch.randn(BATCH, HEADS, STEPS, SIZE), torch.randn(STEPS, SIZE // 2) * 10]


def get_init_inputs():
    return []
