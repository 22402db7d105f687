"""Sums from each entry to the end of its row: y[r, c] = sum_{k >= c} x[r, k]."""

import torch
from torch import nn

ROWS = 1024
COLUMNS = 300

PROBLEM = {
    "title": "Reversed cumulative sum over rows",
    "category": "scan",
    "note": (
        "The total less a forward sum is the same on paper and cancels at the end of rows, where few terms are left."
    ),
    "inputs": {"x": {"fill": "normal", "low": -10000.0, "high": 10000.0}},
    "variants": {
        "cpu": [
            {"ROWS": 1024, "COLUMNS": 300},
            {"ROWS": 67, "COLUMNS": 1027},
            {"ROWS": 3, "COLUMNS": 7},
        ],
        "gpu": [{"ROWS": 8192, "COLUMNS": 4096}, {"ROWS": 1021, "COLUMNS": 2051}],
        "interpreter": [{"ROWS": 16, "COLUMNS": 128}, {"ROWS": 5, "COLUMNS": 61}],
    },
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (rows, columns) -> (rows, columns)."""
        return torch.flip(torch.cumsum(torch.flip(x, (1,)), dim=1), (1,))


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
