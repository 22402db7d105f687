"""GELU of a linear layer, forward and backward: the output, and the gradients of x, weight and bias."""

import torch
import torch.nn.functional as F
from torch import nn

ROWS = 128
INPUTS = 256
OUTPUTS = 192

PROBLEM = {
    "title": "Linear layer and GELU with gradients",
    "category": "gemm_epilogue",
    "note": (
        "Three products, two of them on the way back, that need what the forward pass computed; all three gradients "
        "are compared."
    ),
    "backward": True,
    "heavy_ops": ["aten.addmm", "aten.mm"],
    "inputs": {"x": {"fill": "normal", "low": -100.0, "high": 100.0}},
    "variants": {
        "cpu": [
            {"ROWS": 128, "INPUTS": 256, "OUTPUTS": 192},
            {"ROWS": 37, "INPUTS": 45, "OUTPUTS": 29},
            {"ROWS": 3, "INPUTS": 7, "OUTPUTS": 5},
        ],
        "gpu": [{"ROWS": 4096, "INPUTS": 2048, "OUTPUTS": 4096}, {"ROWS": 515, "INPUTS": 333, "OUTPUTS": 1021}],
        "interpreter": [{"ROWS": 16, "INPUTS": 32, "OUTPUTS": 24}, {"ROWS": 5, "INPUTS": 13, "OUTPUTS": 7}],
    },
}


class Model(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (rows, inputs) -> (rows, outputs)."""
        return F.gelu(self.linear(x))


def get_inputs():
    return [torch.randn(ROWS, INPUTS)]


def get_init_inputs():
    return [INPUTS, OUTPUTS]
