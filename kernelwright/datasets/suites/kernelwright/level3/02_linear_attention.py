"""Linear attention (Katharopoulos et al., 2020), not causal: y = phi(Q) (phi(K)^T V) / (phi(Q) sum_t phi(K_t)).

phi(u) = elu(u) + 1.
"""

import torch
import torch.nn.functional as F
from torch import nn

BATCH = 2
HEADS = 6
TOKENS = 256
HEAD_SIZE = 24
EPS = 1e-6

PROBLEM = {
    "title": "Linear attention core",
    "category": "attention",
    "note": (
        "Products may be taken in either order, and their sums must not be rounded below float32; a kernel that "
        "normalises over tokens of its own tile only is wrong."
    ),
    "heavy_ops": ["aten.bmm"],
    "inputs": {
        "q": {"fill": "normal", "low": -30.0, "high": 30.0},
        "k": {"fill": "normal", "low": -30.0, "high": 30.0},
        "v": {"fill": "normal", "low": -1e3, "high": 1e3},
    },
    "variants": {
        "cpu": [
            {"BATCH": 2, "HEADS": 6, "TOKENS": 256, "HEAD_SIZE": 24},
            {"BATCH": 1, "HEADS": 3, "TOKENS": 131, "HEAD_SIZE": 19},
            {"BATCH": 2, "HEADS": 1, "TOKENS": 5, "HEAD_SIZE": 3},
        ],
        "gpu": [
            {"BATCH": 8, "HEADS": 16, "TOKENS": 2048, "HEAD_SIZE": 64},
            {"BATCH": 3, "HEADS": 5, "TOKENS": 515, "HEAD_SIZE": 40},
        ],
        "interpreter": [
            {"BATCH": 1, "HEADS": 2, "TOKENS": 32, "HEAD_SIZE": 16},
            {"BATCH": 2, "HEADS": 1, "TOKENS": 13, "HEAD_SIZE": 9},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q, k, v: (batch, heads, tokens, head_size) -> the same shape."""
        q = F.elu(q) + 1
        k = F.elu(k) + 1
        context = k.transpose(-2, -1) @ v
        weight = q @ k.sum(dim=-2).unsqueeze(-1)
        return (q @ context) / (weight + self.eps)


def get_inputs():
    return [torch.randn(BATCH, HEADS, TOKENS, HEAD_SIZE) for _ in range(3)]


def get_init_inputs():
    return [EPS]
