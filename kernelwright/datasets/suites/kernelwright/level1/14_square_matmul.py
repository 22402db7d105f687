"""Product of two square matrices: C = A B."""

import torch
from torch import nn

N = 320

PROBLEM = {
    "title": "Square matrix product",
    "category": "matmul",
    "note": (
        "Both matrices are inputs that are drawn anew; products in TF32 or bfloat16 exceed the budget, also where "
        "they are added up in float32."
    ),
    "heavy_ops": ["aten.mm"],
    "inputs": {
        "a": {"fill": "normal", "low": -1e3, "high": 1e3},
        "b": {"fill": "normal", "low": -1e3, "high": 1e3},
    },
    "variants": {
        "cpu": [{"N": 320}, {"N": 131}, {"N": 7}],
        "gpu": [{"N": 4096}, {"N": 1021}],
        "interpreter": [{"N": 64}, {"N": 37}],
    },
}


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """a, b: (n, n) -> (n, n)."""
        return torch.matmul(a, b)


def get_inputs():
    return [torch.randn(N, N), torch.randn(N, N)]


def get_init_inputs():
    return []
