"""Matrix product in bfloat16: y = a b, with sums in float32 and one rounding at the end."""

import torch
from torch import nn

M = 256
K = 384
N = 320

PROBLEM = {
    "title": "Matrix product in bfloat16",
    "category": "matmul",
    "note": (
        "Sums kept in bfloat16 lose digits with every term; the error budget comes from the reference's own "
        "arithmetic and refuses them."
    ),
    "dtype": "bfloat16",
    "heavy_ops": ["aten.mm"],
    "inputs": {
        "a": {"fill": "normal", "low": -100.0, "high": 100.0},
        "b": {"fill": "normal", "low": -100.0, "high": 100.0},
    },
    "variants": {
        "cpu": [
            {"M": 256, "K": 384, "N": 320},
            {"M": 67, "K": 131, "N": 45},
            {"M": 5, "K": 7, "N": 3},
        ],
        "gpu": [{"M": 4096, "K": 4096, "N": 4096}, {"M": 1021, "K": 515, "N": 333}],
        "interpreter": [{"M": 32, "K": 64, "N": 48}, {"M": 13, "K": 29, "N": 5}],
    },
}


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """a: (m, k) bfloat16, b: (k, n) bfloat16 -> (m, n) bfloat16."""
        return torch.matmul(a, b)


def get_inputs():
    a = torch.randn(M, K, dtype=torch.bfloat16)
    b = torch.randn(K, N, dtype=torch.bfloat16)
    return [a, b]


def get_init_inputs():
    return []
