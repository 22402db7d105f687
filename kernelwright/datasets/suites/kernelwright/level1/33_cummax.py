"""Running maximum down each column: y[r, c] = max_{k <= r} x[k, c]."""

import torch
from torch import nn

ROWS = 300
COLUMNS = 1000

PROBLEM = {
    "title": "Cumulative maximum down columns",
    "category": "scan",
    "note": (
        "Comparisons do not round, so that next to no error is allowed; a scan in blocks that forgets to carry is "
        "wrong from the second block on."
    ),
    "inputs": {"x": {"fill": "normal", "low": -10000.0, "high": 10000.0}},
    "variants": {
        "cpu": [
            {"ROWS": 300, "COLUMNS": 1000},
            {"ROWS": 517, "COLUMNS": 67},
            {"ROWS": 7, "COLUMNS": 3},
        ],
        "gpu": [{"ROWS": 4096, "COLUMNS": 8192}, {"ROWS": 2051, "COLUMNS": 1021}],
        "interpreter": [{"ROWS": 64, "COLUMNS": 32}, {"ROWS": 61, "COLUMNS": 5}],
    },
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (rows, columns) -> (rows, columns)."""
        return torch.cummax(x, dim=0).values


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
