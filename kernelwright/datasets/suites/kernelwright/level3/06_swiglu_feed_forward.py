"""Gated feed-forward block of a Llama-like model: y = x + W_down (silu(W_gate n) * W_up n) with n = rms_norm(x)."""

import torch
import torch.nn.functional as F
from torch import nn

TOKENS = 256
FEATURES = 96
HIDDEN = 256
EPS = 1e-6

PROBLEM = {
    "title": "SwiGLU feed-forward block with RMS normalisation",
    "category": "block",
    "note": (
        "Three weights that change between calls; gate and value are products of the same input, and cannot be "
        "exchanged."
    ),
    "heavy_ops": ["aten.mm"],
    "inputs": {"x": {"fill": "normal", "low": -1e3, "high": 1e3}},
    "variants": {
        "cpu": [
            {"TOKENS": 256, "FEATURES": 96, "HIDDEN": 256},
            {"TOKENS": 61, "FEATURES": 67, "HIDDEN": 173},
            {"TOKENS": 3, "FEATURES": 7, "HIDDEN": 11},
        ],
        "gpu": [
            {"TOKENS": 4096, "FEATURES": 1024, "HIDDEN": 2816},
            {"TOKENS": 1021, "FEATURES": 323, "HIDDEN": 877},
        ],
        "interpreter": [
            {"TOKENS": 32, "FEATURES": 32, "HIDDEN": 64},
            {"TOKENS": 7, "FEATURES": 19, "HIDDEN": 43},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, features: int, hidden: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.norm_weight = nn.Parameter(torch.ones(features))
        self.gate = nn.Linear(features, hidden, bias=False)
        self.up = nn.Linear(features, hidden, bias=False)
        self.down = nn.Linear(hidden, features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (tokens, features) -> (tokens, features)."""
        mean_square = x.pow(2).mean(dim=-1, keepdim=True)
        normed = x * torch.rsqrt(mean_square + self.eps) * self.norm_weight
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


def get_inputs():
    return [torch.randn(TOKENS, FEATURES)]


def get_init_inputs():
    return [FEATURES, HIDDEN, EPS]
