"""Rows added up where they belong: y[t] = sum of x[r] over all r with target[r] = t."""

import torch
from torch import nn

ROWS = 6000
COLUMNS = 64
TARGETS = 900

PROBLEM = {
    "title": "Scattered addition of rows",
    "category": "irregular",
    "note": (
        "Targets repeat and are drawn anew: two threads that add to one row at once lose a sum, and a row that nobody "
        "aims at must still be zero."
    ),
    "inputs": {
        "x": {"fill": "normal", "low": -10000.0, "high": 10000.0},
        "target": {"fill": "structured"},
    },
    "variants": {
        "cpu": [
            {"ROWS": 6000, "COLUMNS": 64, "TARGETS": 900},
            {"ROWS": 517, "COLUMNS": 37, "TARGETS": 45},
            {"ROWS": 11, "COLUMNS": 5, "TARGETS": 7},
        ],
        "gpu": [{"ROWS": 1000000, "COLUMNS": 128, "TARGETS": 50000}, {"ROWS": 100003, "COLUMNS": 33, "TARGETS": 5003}],
        "interpreter": [{"ROWS": 128, "COLUMNS": 32, "TARGETS": 24}, {"ROWS": 61, "COLUMNS": 5, "TARGETS": 13}],
    },
}


class Model(nn.Module):
    def __init__(self, targets: int) -> None:
        super().__init__()
        self.targets = targets

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """x: (rows, columns), target: (rows,) int64 in [0, targets) -> (targets, columns)."""
        return x.new_zeros(self.targets, x.shape[1]).index_add(0, target, x)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS), torch.randint(0, TARGETS, (ROWS,))]


def get_init_inputs():
    return [TARGETS]
