"""Unbiased variance of each row: y[r] = sum_c (x[r, c] - mean_r)^2 / (columns - 1)."""

import torch
from torch import nn

ROWS = 1024
COLUMNS = 600

PROBLEM = {
    "title": "Variance over rows",
    "category": "reduction",
    "note": (
        "The mean of squares less the square of the mean cancels on data in [0, 1) and fails on constant rows, where "
        "it may be negative; the division by columns is off by 1/columns."
    ),
    "inputs": {"x": {"fill": "normal", "low": -1000.0, "high": 1000.0}},
    "variants": {
        "cpu": [
            {"ROWS": 1024, "COLUMNS": 600},
            {"ROWS": 67, "COLUMNS": 1027},
            {"ROWS": 3, "COLUMNS": 7},
        ],
        "gpu": [{"ROWS": 16384, "COLUMNS": 4096}, {"ROWS": 1021, "COLUMNS": 2051}],
        "interpreter": [{"ROWS": 16, "COLUMNS": 128}, {"ROWS": 5, "COLUMNS": 61}],
    },
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (rows, columns) -> (rows,)."""
        return torch.var(x, dim=1)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS) + 1.0]


def get_init_inputs():
    return []
