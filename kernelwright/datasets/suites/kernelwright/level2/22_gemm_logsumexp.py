"""Logarithm of the sum of exponentials of a linear layer's outputs: y[r] = logsumexp_n(x[r] w[n] + b[n])."""

import torch
from torch import nn

ROWS = 256
INPUTS = 256
OUTPUTS = 384

PROBLEM = {
    "title": "Linear layer and log-sum-exp",
    "category": "gemm_epilogue",
    "note": (
        "The product never has to be stored, and must be computed nonetheless: rows of wide data are decided by one "
        "output, rows of tiny data by the biases."
    ),
    "heavy_ops": ["aten.addmm"],
    "inputs": {"x": {"fill": "normal", "low": -100.0, "high": 100.0}},
    "variants": {
        "cpu": [
            {"ROWS": 256, "INPUTS": 256, "OUTPUTS": 384},
            {"ROWS": 37, "INPUTS": 131, "OUTPUTS": 45},
            {"ROWS": 3, "INPUTS": 7, "OUTPUTS": 5},
        ],
        "gpu": [{"ROWS": 4096, "INPUTS": 2048, "OUTPUTS": 8192}, {"ROWS": 515, "INPUTS": 333, "OUTPUTS": 1021}],
        "interpreter": [{"ROWS": 16, "INPUTS": 32, "OUTPUTS": 24}, {"ROWS": 5, "INPUTS": 13, "OUTPUTS": 7}],
    },
}


class Model(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (rows, inputs) -> (rows,)."""
        return torch.logsumexp(self.linear(x), dim=1)


def get_inputs():
    return [torch.randn(ROWS, INPUTS) * 4]


def get_init_inputs():
    return [INPUTS, OUTPUTS]
