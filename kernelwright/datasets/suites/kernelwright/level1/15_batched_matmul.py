"""Many small matrix products: C[b] = A[b] B[b]."""

import torch
from torch import nn

BATCH = 96
M = 48
K = 32
N = 40

PROBLEM = {
    "title": "Batched matrix product, small",
    "category": "matmul",
    "note": (
        "Every matrix of the batch differs; a kernel that is right for the first one of a batch is wrong for the rest."
    ),
    "heavy_ops": ["aten.bmm"],
    "inputs": {
        "a": {"fill": "normal", "low": -1e3, "high": 1e3},
        "b": {"fill": "normal", "low": -1e3, "high": 1e3},
    },
    "variants": {
        "cpu": [
            {"BATCH": 96, "M": 48, "K": 32, "N": 40},
            {"BATCH": 13, "M": 33, "K": 65, "N": 17},
            {"BATCH": 2, "M": 3, "K": 5, "N": 7},
        ],
        "gpu": [
            {"BATCH": 256, "M": 128, "K": 64, "N": 128},
            {"BATCH": 33, "M": 61, "K": 129, "N": 95},
        ],
        "interpreter": [
            {"BATCH": 4, "M": 16, "K": 32, "N": 16},
            {"BATCH": 3, "M": 5, "K": 17, "N": 9},
        ],
    },
}


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """a: (batch, m, k), b: (batch, k, n) -> (batch, m, n)."""
        return torch.bmm(a, b)


def get_inputs():
    return [torch.randn(BATCH, M, K), torch.randn(BATCH, K, N)]


def get_init_inputs():
    return []
