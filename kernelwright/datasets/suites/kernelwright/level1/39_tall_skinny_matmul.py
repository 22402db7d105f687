"""A tall matrix times a small one: y[m, n] = sum_k a[m, k] b[k, n] with k and n far below m."""

import torch
from torch import nn

M = 12000
K = 48
N = 24

PROBLEM = {
    "title": "Tall, skinny matrix product",
    "category": "matmul",
    "note": (
        "Both matrices are inputs that change with every call; the checked sizes are odd, so that tiles have rests in "
        "every direction."
    ),
    "heavy_ops": ["aten.mm"],
    "inputs": {
        "a": {"fill": "normal", "low": -1000.0, "high": 1000.0},
        "b": {"fill": "normal", "low": -1000.0, "high": 1000.0},
    },
    "variants": {
        "cpu": [
            {"M": 12000, "K": 48, "N": 24},
            {"M": 1027, "K": 37, "N": 13},
            {"M": 7, "K": 3, "N": 5},
        ],
        "gpu": [{"M": 1000000, "K": 64, "N": 32}, {"M": 100003, "K": 37, "N": 13}],
        "interpreter": [{"M": 128, "K": 32, "N": 16}, {"M": 61, "K": 13, "N": 5}],
    },
}


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """a: (m, k), b: (k, n) -> (m, n)."""
        return torch.matmul(a, b)


def get_inputs():
    return [torch.randn(M, K), torch.randn(K, N)]


def get_init_inputs():
    return []
