"""Root-mean-square normalisation (Zhang and Sennrich, 2019): y = x / sqrt(mean(x^2) + eps) * weight."""

import torch
from torch import nn

TOKENS = 1024
FEATURES = 384
EPS = 1e-6

PROBLEM = {
    "title": "RMS normalisation",
    "category": "normalization",
    "note": "Tiny rows are decided by the epsilon, which stands under the root; the weight changes between calls.",
    "inputs": {"x": {"fill": "normal", "low": -1e4, "high": 1e4}},
    "variants": {
        "cpu": [
            {"TOKENS": 1024, "FEATURES": 384},
            {"TOKENS": 67, "FEATURES": 1025},
            {"TOKENS": 3, "FEATURES": 9},
        ],
        "gpu": [{"TOKENS": 16384, "FEATURES": 4096}, {"TOKENS": 1021, "FEATURES": 2051}],
        "interpreter": [{"TOKENS": 16, "FEATURES": 128}, {"TOKENS": 3, "FEATURES": 93}],
    },
}


class Model(nn.Module):
    def __init__(self, features: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (tokens, features) -> (tokens, features)."""
        mean_square = x.pow(2).mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(mean_square + self.eps) * self.weight


def get_inputs():
    return [torch.randn(TOKENS, FEATURES)]


def get_init_inputs():
    return [FEATURES, EPS]
