"""Smallest entry of each column and the row that it is in: values and int64 indices."""

import torch
from torch import nn

ROWS = 600
COLUMNS = 1000

PROBLEM = {
    "title": "Minimum over columns with indices",
    "category": "reduction",
    "note": (
        "Two outputs that must agree with each other, from one pass over a strided dimension; an index beside the "
        "smallest entry is looked up and found out."
    ),
    "inputs": {"x": {"fill": "normal", "low": -10000.0, "high": 10000.0}},
    "variants": {
        "cpu": [
            {"ROWS": 600, "COLUMNS": 1000},
            {"ROWS": 77, "COLUMNS": 1031},
            {"ROWS": 5, "COLUMNS": 3},
        ],
        "gpu": [{"ROWS": 8192, "COLUMNS": 8192}, {"ROWS": 1021, "COLUMNS": 5003}],
        "interpreter": [{"ROWS": 16, "COLUMNS": 128}, {"ROWS": 7, "COLUMNS": 77}],
    },
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x: (rows, columns) -> values (columns,), indices (columns,) int64."""
        values, indices = torch.min(x, dim=0)
        return values, indices


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
