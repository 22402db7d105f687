"""Product of two transposed matrices: y[m, n] = sum_k a[k, m] b[n, k]."""

import torch
from torch import nn

K = 320
M = 256
N = 288

PROBLEM = {
    "title": "Product of transposed matrices",
    "category": "matmul",
    "note": "Square sizes would hide a forgotten transposition; here all three sizes differ in every variant.",
    "heavy_ops": ["aten.mm"],
    "inputs": {
        "a": {"fill": "normal", "low": -1000.0, "high": 1000.0},
        "b": {"fill": "normal", "low": -1000.0, "high": 1000.0},
    },
    "variants": {
        "cpu": [
            {"K": 320, "M": 256, "N": 288},
            {"K": 131, "M": 37, "N": 45},
            {"K": 7, "M": 3, "N": 5},
        ],
        "gpu": [{"K": 4096, "M": 2048, "N": 3072}, {"K": 1021, "M": 515, "N": 333}],
        "interpreter": [{"K": 64, "M": 32, "N": 48}, {"K": 29, "M": 13, "N": 5}],
    },
}


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """a: (k, m), b: (n, k) -> (m, n)."""
        return torch.matmul(a.T, b.T)


def get_inputs():
    return [torch.randn(K, M), torch.randn(N, K)]


def get_init_inputs():
    return []
