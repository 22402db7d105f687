"""Products of many matrices in float16."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "gemm",
    "dtype": "float16",
    "inputs": {
        "a": {"fill": "normal", "low": -30.0, "high": 30.0},
        "b": {"fill": "normal", "low": -30.0, "high": 30.0},
    },
    "variants": {
        "interpreter": [{"B": 2, "M": 32, "N": 16, "K": 32}, {"B": 3, "M": 20, "N": 24, "K": 40}],
        "gpu": [{"B": 32, "M": 256, "N": 256, "K": 256}],
    },
}
B = 2
M = 32
N = 16
K = 32


class Model(nn.Module):
    def forward(self, a, b):
        return torch.bmm(a, b)


def get_inputs():
    return [torch.randn(B, M, K, dtype=torch.float16), torch.randn(B, K, N, dtype=torch.float16)]


def get_init_inputs():
    return []
