"""Layer normalisation over the last dimension: y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias."""

import torch
from torch import nn

BATCH = 16
TOKENS = 196
FEATURES = 96

PROBLEM = {
    "title": "Layer normalisation",
    "category": "normalization",
    "note": (
        "Constant rows are decided by the epsilon, wide rows by how the variance is summed; weight and bias change "
        "between calls."
    ),
    "inputs": {"x": {"fill": "normal", "low": -1e4, "high": 1e4}},
    "variants": {
        "cpu": [
            {"BATCH": 16, "TOKENS": 196, "FEATURES": 96},
            {"BATCH": 3, "TOKENS": 17, "FEATURES": 1031},
            {"BATCH": 2, "TOKENS": 3, "FEATURES": 11},
        ],
        "gpu": [
            {"BATCH": 32, "TOKENS": 1024, "FEATURES": 1024},
            {"BATCH": 7, "TOKENS": 257, "FEATURES": 771},
        ],
        "interpreter": [{"BATCH": 2, "TOKENS": 8, "FEATURES": 64}, {"BATCH": 1, "TOKENS": 5, "FEATURES": 37}],
    },
}


class Model(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, tokens, features) -> the same shape."""
        return self.norm(x)


def get_inputs():
    return [torch.randn(BATCH, TOKENS, FEATURES)]


def get_init_inputs():
    return [FEATURES]
