"""Product of the lower triangles of two matrices: y = tril(a) tril(b)."""

import torch
from torch import nn

N = 320

PROBLEM = {
    "title": "Product of triangular matrices",
    "category": "matmul",
    "note": (
        "The upper triangles of the inputs are full of numbers that must not be used; zeros above the diagonal of the "
        "output must be written."
    ),
    "heavy_ops": ["aten.mm"],
    "inputs": {
        "a": {"fill": "normal", "low": -1000.0, "high": 1000.0},
        "b": {"fill": "normal", "low": -1000.0, "high": 1000.0},
    },
    "variants": {
        "cpu": [
            {"N": 320},
            {"N": 131},
            {"N": 7},
        ],
        "gpu": [{"N": 4096}, {"N": 1021}],
        "interpreter": [{"N": 64}, {"N": 29}],
    },
}


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """a, b: (n, n) -> (n, n), lower triangular."""
        return torch.matmul(torch.tril(a), torch.tril(b))


def get_inputs():
    return [torch.randn(N, N), torch.randn(N, N)]


def get_init_inputs():
    return []
