"""Residual sum, then layer normalisation: y = layer_norm(x + residual) * weight + bias."""

import torch
from torch import nn

TOKENS = 2048
FEATURES = 128

PROBLEM = {
    "title": "Residual and layer normalisation",
    "category": "normalization",
    "note": (
        "The sum has to be formed before its statistics; both inputs are drawn anew, and constant rows are decided by "
        "the epsilon."
    ),
    "inputs": {
        "x": {"fill": "normal", "low": -1e4, "high": 1e4},
        "residual": {"fill": "normal", "low": -1e4, "high": 1e4},
    },
    "variants": {
        "cpu": [
            {"TOKENS": 2048, "FEATURES": 128},
            {"TOKENS": 61, "FEATURES": 771},
            {"TOKENS": 3, "FEATURES": 13},
        ],
        "gpu": [{"TOKENS": 16384, "FEATURES": 1024}, {"TOKENS": 1021, "FEATURES": 771}],
        "interpreter": [{"TOKENS": 16, "FEATURES": 128}, {"TOKENS": 5, "FEATURES": 61}],
    },
}


class Model(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """x, residual: (tokens, features) -> (tokens, features)."""
        return self.norm(x + residual)


def get_inputs():
    return [torch.randn(TOKENS, FEATURES), torch.randn(TOKENS, FEATURES)]


def get_init_inputs():
    return [FEATURES]
