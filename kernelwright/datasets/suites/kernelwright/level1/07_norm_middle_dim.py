"""Euclidean norm over the middle dimension: y[b, f] = sqrt(sum_t x[b, t, f]^2), as when token energies are pooled."""

import torch
from torch import nn

BATCH = 32
TOKENS = 100
FEATURES = 120

PROBLEM = {
    "title": "Euclidean norm over the middle dimension",
    "category": "reduction",
    "note": (
        "The normalised dimension is not contiguous: rows that are normalised along memory have the same statistics "
        "and are wrong."
    ),
    "inputs": {"x": {"fill": "normal", "low": -1e4, "high": 1e4}},
    "variants": {
        "cpu": [
            {"BATCH": 32, "TOKENS": 100, "FEATURES": 120},
            {"BATCH": 5, "TOKENS": 77, "FEATURES": 131},
            {"BATCH": 2, "TOKENS": 3, "FEATURES": 7},
        ],
        "gpu": [{"BATCH": 64, "TOKENS": 1024, "FEATURES": 512}, {"BATCH": 9, "TOKENS": 333, "FEATURES": 259}],
        "interpreter": [{"BATCH": 2, "TOKENS": 16, "FEATURES": 64}, {"BATCH": 3, "TOKENS": 11, "FEATURES": 29}],
    },
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, tokens, features) -> (batch, features)."""
        return torch.linalg.vector_norm(x, dim=1)


def get_inputs():
    return [torch.randn(BATCH, TOKENS, FEATURES)]


def get_init_inputs():
    return []
