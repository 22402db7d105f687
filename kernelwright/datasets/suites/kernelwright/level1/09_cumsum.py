"""Running sum along each row: y[r, c] = sum_{k <= c} x[r, k]."""

import torch
from torch import nn

ROWS = 1024
COLUMNS = 300

PROBLEM = {
    "title": "Cumulative sum over rows",
    "category": "scan",
    "note": (
        "The last column holds the sum of all: an error anywhere in a row is seen from there on, and mixed signs "
        "cancel."
    ),
    "inputs": {"x": {"fill": "normal", "low": -1e4, "high": 1e4}},
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
        return torch.cumsum(x, dim=1)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
