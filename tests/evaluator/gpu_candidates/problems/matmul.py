"""A matrix product in bfloat16."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "gemm",
    "dtype": "bfloat16",
    "inputs": {
        "a": {"fill": "normal", "low": -30.0, "high": 30.0},
        "b": {"fill": "normal", "low": -30.0, "high": 30.0},
    },
    "variants": {
        "interpreter": [{"M": 32, "N": 48, "K": 64}, {"M": 40, "N": 24, "K": 56}],
        "gpu": [{"M": 1024, "N": 1024, "K": 1024}],
    },
}
M = 32
N = 48
K = 64


class Model(nn.Module):
    def forward(self, a, b):
        return a @ b


def get_inputs():
    return [torch.randn(M, K, dtype=torch.bfloat16), torch.randn(K, N, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
