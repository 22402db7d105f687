"""The k largest entries of each row in descending order, and their columns as int64."""

import torch
from torch import nn

ROWS = 256
COLUMNS = 2000
K = 8

PROBLEM = {
    "title": "Largest k of each row",
    "category": "irregular",
    "note": (
        "Values and columns are compared together, and columns may not repeat: k times the largest entry, or the "
        "right set in another order, is wrong."
    ),
    "inputs": {"x": {"fill": "normal", "low": -10000.0, "high": 10000.0}},
    "variants": {
        "cpu": [
            {"ROWS": 256, "COLUMNS": 2000, "K": 8},
            {"ROWS": 67, "COLUMNS": 1027, "K": 5},
            {"ROWS": 5, "COLUMNS": 9, "K": 3},
        ],
        "gpu": [{"ROWS": 8192, "COLUMNS": 32768, "K": 16}, {"ROWS": 1021, "COLUMNS": 5003, "K": 7}],
        "interpreter": [{"ROWS": 16, "COLUMNS": 128, "K": 4}, {"ROWS": 7, "COLUMNS": 77, "K": 3}],
    },
}


class Model(nn.Module):
    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x: (rows, columns) -> values (rows, k), indices (rows, k) int64."""
        values, indices = torch.topk(x, self.k, dim=1)
        return values, indices


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return [K]
