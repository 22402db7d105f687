"""A linear layer, group normalisation of its outputs, and SiLU."""

import torch
import torch.nn.functional as F
from torch import nn

ROWS = 256
INPUTS = 256
OUTPUTS = 320
GROUPS = 8

PROBLEM = {
    "title": "Linear layer, group normalisation, SiLU",
    "category": "gemm_epilogue",
    "note": (
        "Statistics run over groups of outputs of one row, so the product cannot be thrown away tile by tile; weights "
        "change between calls."
    ),
    "heavy_ops": ["aten.addmm"],
    "inputs": {"x": {"fill": "normal", "low": -100.0, "high": 100.0}},
    "variants": {
        "cpu": [
            {"ROWS": 256, "INPUTS": 256, "OUTPUTS": 320, "GROUPS": 8},
            {"ROWS": 37, "INPUTS": 131, "OUTPUTS": 45, "GROUPS": 5},
            {"ROWS": 3, "INPUTS": 7, "OUTPUTS": 6, "GROUPS": 2},
        ],
        "gpu": [
            {"ROWS": 4096, "INPUTS": 2048, "OUTPUTS": 4096, "GROUPS": 32},
            {"ROWS": 515, "INPUTS": 333, "OUTPUTS": 1020, "GROUPS": 12},
        ],
        "interpreter": [
            {"ROWS": 16, "INPUTS": 32, "OUTPUTS": 24, "GROUPS": 4},
            {"ROWS": 5, "INPUTS": 13, "OUTPUTS": 6, "GROUPS": 3},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, inputs: int, outputs: int, groups: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.norm = nn.GroupNorm(groups, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (rows, inputs) -> (rows, outputs)."""
        return F.silu(self.norm(self.linear(x)))


def get_inputs():
    return [torch.randn(ROWS, INPUTS)]


def get_init_inputs():
    return [INPUTS, OUTPUTS, GROUPS]
