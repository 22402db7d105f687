"""Residual MLP block of a transformer (post-norm): y = layer_norm(x + W2 gelu(W1 x + b1) + b2)."""

import torch
import torch.nn.functional as F
from torch import nn

TOKENS = 256
FEATURES = 96
HIDDEN = 384

PROBLEM = {
    "title": "MLP block",
    "category": "block",
    "note": (
        "The residual is added before the normalisation and not after it; weights of both layers change between calls."
    ),
    "heavy_ops": ["aten.mm", "aten.addmm"],
    "inputs": {"x": {"fill": "normal", "low": -1e3, "high": 1e3}},
    "variants": {
        "cpu": [
            {"TOKENS": 256, "FEATURES": 96, "HIDDEN": 384},
            {"TOKENS": 61, "FEATURES": 67, "HIDDEN": 203},
            {"TOKENS": 3, "FEATURES": 7, "HIDDEN": 13},
        ],
        "gpu": [
            {"TOKENS": 4096, "FEATURES": 768, "HIDDEN": 3072},
            {"TOKENS": 1021, "FEATURES": 323, "HIDDEN": 1283},
        ],
        "interpreter": [
            {"TOKENS": 32, "FEATURES": 32, "HIDDEN": 64},
            {"TOKENS": 7, "FEATURES": 19, "HIDDEN": 37},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(features, hidden)
        self.down = nn.Linear(hidden, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (tokens, features) -> (tokens, features)."""
        return self.norm(x + self.down(F.gelu(self.up(x))))


def get_inputs():
    return [torch.randn(TOKENS, FEATURES)]


def get_init_inputs():
    return [FEATURES, HIDDEN]
