"""Attention of one new token to all that came before it."""

import torch
from torch import nn

HEADS = 16
TOKENS = 256
FEATURES = 64

PROBLEM = {
    "category": "attention",
    "inputs": {
        "q": {"fill": "normal", "low": -30.0, "high": 30.0},
        "k": {"fill": "normal", "low": -30.0, "high": 30.0},
        "v": {"fill": "normal", "low": -30.0, "high": 30.0},
    },
    "variants": {
        "cpu": [{"HEADS": 16, "TOKENS": 256, "FEATURES": 64}, {"HEADS": 3, "TOKENS": 37, "FEATURES": 16}],
        "gpu": [{"HEADS": 512, "TOKENS": 4096, "FEATURES": 128}, {"HEADS": 3, "TOKENS": 37, "FEATURES": 16}],
        "interpreter": [{"HEADS": 2, "TOKENS": 32, "FEATURES": 16}, {"HEADS": 3, "TOKENS": 37, "FEATURES": 16}],
    },
}


class Model(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q: (heads, features); k, v: (heads, tokens, features) -> (heads, features)."""
        scores = (k @ q[:, :, None])[:, :, 0] * q.shape[1] ** -0.5
        return (torch.softmax(scores, -1)[:, None, :] @ v)[:, 0, :]


def get_inputs():
    return [torch.randn(HEADS, FEATURES), *(torch.randn(HEADS, TOKENS, FEATURES) for _ in range(2))]


def get_init_inputs():
    return []
