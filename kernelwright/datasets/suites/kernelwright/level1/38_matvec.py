"""Matrix times vector: y[m] = sum_n a[m, n] x[n]."""

import torch
from torch import nn

M = 1100
N = 1500

PROBLEM = {
    "title": "Matrix-vector product",
    "category": "matmul",
    "note": (
        "It is bound by reading the matrix once: what is faster than memory has not read it all, and matrices are "
        "drawn anew for every call."
    ),
    "heavy_ops": ["aten.mv"],
    "inputs": {
        "a": {"fill": "normal", "low": -1000.0, "high": 1000.0},
        "x": {"fill": "normal", "low": -1000.0, "high": 1000.0},
    },
    "variants": {
        "cpu": [
            {"M": 1100, "N": 1500},
            {"M": 67, "N": 1027},
            {"M": 3, "N": 7},
        ],
        "gpu": [{"M": 16384, "N": 8192}, {"M": 1021, "N": 2051}],
        "interpreter": [{"M": 32, "N": 128}, {"M": 5, "N": 61}],
    },
}


class Model(nn.Module):
    def forward(self, a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """a: (m, n), x: (n,) -> (m,)."""
        return torch.mv(a, x)


def get_inputs():
    return [torch.randn(M, N), torch.randn(N)]


def get_init_inputs():
    return []
