"""A linear layer whose weights are int8 with one scale a row: y[m, n] = scale[n] sum_k x[m, k] w[n, k] + bias[n]."""

import torch
from torch import nn

ROWS = 64
INPUTS = 512
OUTPUTS = 384

PROBLEM = {
    "title": "Linear layer with int8 weights",
    "category": "gemm_epilogue",
    "note": (
        "Weights and scales are inputs and change with every call, so they cannot be unpacked once; x may not be "
        "rounded to int8 itself."
    ),
    "heavy_ops": ["aten.mm"],
    "inputs": {
        "x": {"fill": "normal", "low": -1000.0, "high": 1000.0},
        "weight": {"fill": "uniform", "low": -127, "high": 127},
        "scale": {"fill": "uniform", "low": 0.001, "high": 0.1},
    },
    "variants": {
        "cpu": [
            {"ROWS": 64, "INPUTS": 512, "OUTPUTS": 384},
            {"ROWS": 37, "INPUTS": 131, "OUTPUTS": 45},
            {"ROWS": 3, "INPUTS": 7, "OUTPUTS": 5},
        ],
        "gpu": [{"ROWS": 64, "INPUTS": 8192, "OUTPUTS": 8192}, {"ROWS": 5, "INPUTS": 1021, "OUTPUTS": 515}],
        "interpreter": [{"ROWS": 16, "INPUTS": 64, "OUTPUTS": 32}, {"ROWS": 5, "INPUTS": 29, "OUTPUTS": 13}],
    },
}


class Model(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """x: (rows, inputs), weight: (outputs, inputs) int8, scale: (outputs,) -> (rows, outputs)."""
        return torch.matmul(x, weight.to(x.dtype).T) * scale + self.bias


def get_inputs():
    weight = torch.randint(-127, 128, (OUTPUTS, INPUTS), dtype=torch.int8)
    return [torch.randn(ROWS, INPUTS), weight, torch.rand(OUTPUTS) * 0.05 + 0.01]


def get_init_inputs():
    return [OUTPUTS]
