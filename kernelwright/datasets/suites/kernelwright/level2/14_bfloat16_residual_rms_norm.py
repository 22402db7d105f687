"""A residual sum in bfloat16 and its RMS normalisation (Zhang and Sennrich, 2019) with statistics in float32; both come
out."""

import torch
from torch import nn

ROWS = 512
COLUMNS = 768

PROBLEM = {
    "title": "Residual sum and RMS normalisation in bfloat16",
    "category": "normalization",
    "note": (
        "Squares summed in bfloat16 stop growing at 256 terms; the rounded sum is an output of its own, and what is "
        "normalised is that sum, rounded."
    ),
    "dtype": "bfloat16",
    "inputs": {
        "x": {"fill": "normal", "low": -1000.0, "high": 1000.0},
        "residual": {"fill": "normal", "low": -1000.0, "high": 1000.0},
    },
    "variants": {
        "cpu": [
            {"ROWS": 512, "COLUMNS": 768},
            {"ROWS": 67, "COLUMNS": 1027},
            {"ROWS": 3, "COLUMNS": 7},
        ],
        "gpu": [{"ROWS": 8192, "COLUMNS": 4096}, {"ROWS": 1021, "COLUMNS": 2051}],
        "interpreter": [{"ROWS": 16, "COLUMNS": 128}, {"ROWS": 5, "COLUMNS": 61}],
    },
}


class Model(nn.Module):
    def __init__(self, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(columns, dtype=torch.bfloat16) + 0.5)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x, residual: (rows, columns) bfloat16 -> normalised and summed, both (rows, columns) bfloat16."""
        total = x + residual
        wide = total.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + 1e-5)
        return (wide * scale * self.weight.float()).to(x.dtype), total


def get_inputs():
    x = torch.randn(ROWS, COLUMNS, dtype=torch.bfloat16)
    residual = torch.randn(ROWS, COLUMNS, dtype=torch.bfloat16)
    return [x, residual]


def get_init_inputs():
    return [COLUMNS]
