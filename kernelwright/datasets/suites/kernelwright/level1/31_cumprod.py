"""Running product along each row: y[r, c] = product of x[r, k] for k <= c."""

import torch
from torch import nn

ROWS = 1024
COLUMNS = 300

PROBLEM = {
    "title": "Cumulative product over rows",
    "category": "scan",
    "note": (
        "Factors around one keep the products in range to the last column: a kernel that stops early, or multiplies "
        "logarithms, drifts visibly."
    ),
    "inputs": {"x": {"fill": "uniform", "low": 0.9, "high": 1.1}},
    "variants": {
        "cpu": [
            {"ROWS": 1024, "COLUMNS": 300},
            {"ROWS": 67, "COLUMNS": 515},
            {"ROWS": 3, "COLUMNS": 7},
        ],
        "gpu": [{"ROWS": 8192, "COLUMNS": 512}, {"ROWS": 1021, "COLUMNS": 515}],
        "interpreter": [{"ROWS": 16, "COLUMNS": 128}, {"ROWS": 5, "COLUMNS": 61}],
    },
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (rows, columns), factors in [0.9, 1.1] -> (rows, columns)."""
        return torch.cumprod(x, dim=1)


def get_inputs():
    return [torch.rand(ROWS, COLUMNS) * 0.2 + 0.9]


def get_init_inputs():
    return []
