"""A product of matrices that are rounded to eight bits."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "gemm",
    "dtype": "bfloat16",
    "inputs": {
        "a": {"fill": "normal", "low": -200.0, "high": 200.0},
        "b": {"fill": "normal", "low": -200.0, "high": 200.0},
    },
    "variants": {
        "interpreter": [{"M": 32, "N": 32, "K": 64}, {"M": 24, "N": 40, "K": 32}],
        "gpu": [{"M": 512, "N": 512, "K": 512}],
    },
}
M = 32
N = 32
K = 64


class Model(nn.Module):
    def forward(self, a, b):
        eight = torch.float8_e4m3fn
        return (a.to(eight).float() @ b.to(eight).float()).to(a.dtype)


def get_inputs():
    return [torch.randn(M, K, dtype=torch.bfloat16), torch.randn(K, N, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
