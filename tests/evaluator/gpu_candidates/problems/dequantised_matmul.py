"""A product with a matrix of bytes that has a scale for each column."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "gemm",
    "dtype": "bfloat16",
    "inputs": {
        "x": {"fill": "normal", "low": -30.0, "high": 30.0},
        "w": {"fill": "uniform", "low": -127, "high": 127},
        "scale": {"fill": "uniform", "low": 0.001, "high": 0.1},
    },
    "variants": {
        "interpreter": [{"M": 16, "N": 32, "K": 64}, {"M": 9, "N": 40, "K": 48}],
        "gpu": [{"M": 256, "N": 1024, "K": 1024}],
    },
}
M = 16
N = 32
K = 64


class Model(nn.Module):
    def forward(self, x, w, scale):
        return (x.float() @ w.float() * scale).to(x.dtype)


def get_inputs():
    return [
        torch.randn(M, K, dtype=torch.bfloat16),
        torch.randint(-127, 128, (K, N), dtype=torch.int8),
        torch.rand(N),
    ]


def get_init_inputs():
    return []
