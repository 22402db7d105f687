"""Product of a transposed matrix with another: y = x^T w."""

import torch
from torch import nn

K = 192
M = 96
N = 160

PROBLEM = {
    "category": "gemm",
    "inputs": {"x": {"fill": "normal", "low": -1e3, "high": 1e3}, "w": {"fill": "normal", "low": -1e3, "high": 1e3}},
    "variants": {
        "cpu": [{"K": 192, "M": 96, "N": 160}, {"K": 33, "M": 19, "N": 37}],
        "gpu": [{"K": 2048, "M": 2048, "N": 2048}, {"K": 515, "M": 131, "N": 259}],
        "interpreter": [{"K": 32, "M": 32, "N": 48}, {"K": 19, "M": 5, "N": 37}],
    },
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """x: (k, m), w: (k, n) -> (m, n)."""
        return x.t() @ w


def get_inputs():
    return [torch.randn(K, M), torch.randn(K, N)]


def get_init_inputs():
    return []
