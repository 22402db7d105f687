"""The product of two matrices."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "gemm",
    "heavy_ops": ["aten.mm"],
    "inputs": {
        "a": {"fill": "normal", "low": -100.0, "high": 100.0},
        "b": {"fill": "normal", "low": -100.0, "high": 100.0},
    },
    "variants": {
        "cpu": [{"M": 48, "K": 64, "N": 80}, {"M": 5, "K": 33, "N": 17}],
        "interpreter": [{"M": 8, "K": 16, "N": 8}, {"M": 5, "K": 7, "N": 3}],
    },
}
M = 48
K = 64
N = 80


class Model(nn.Module):
    def forward(self, a, b):
        return a @ b


def get_inputs():
    return [torch.randn(M, K), torch.randn(K, N)]


def get_init_inputs():
    return []
