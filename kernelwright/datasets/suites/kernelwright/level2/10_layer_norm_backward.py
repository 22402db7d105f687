"""Layer normalisation, forward and backward: the output, and the gradients of x, weight and bias."""

import torch
from torch import nn

ROWS = 512
COLUMNS = 512

PROBLEM = {
    "title": "Layer normalisation with gradients",
    "category": "normalization",
    "note": (
        "The gradient that comes in is drawn anew for each call, so nothing of the backward pass can be computed "
        "ahead or left out; weight and bias sum over all rows."
    ),
    "backward": True,
    "inputs": {"x": {"fill": "normal", "low": -1000.0, "high": 1000.0}},
    "variants": {
        "cpu": [
            {"ROWS": 512, "COLUMNS": 512},
            {"ROWS": 67, "COLUMNS": 515},
            {"ROWS": 3, "COLUMNS": 7},
        ],
        "gpu": [{"ROWS": 8192, "COLUMNS": 4096}, {"ROWS": 1021, "COLUMNS": 2051}],
        "interpreter": [{"ROWS": 16, "COLUMNS": 128}, {"ROWS": 5, "COLUMNS": 61}],
    },
}


class Model(nn.Module):
    def __init__(self, columns: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(columns)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (rows, columns) -> (rows, columns)."""
        return self.norm(x)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return [COLUMNS]
