"""Index of the largest entry of each row: y[r] = argmax_c x[r, c] as int64, the first one where several are equal."""

import torch
from torch import nn

ROWS = 256
COLUMNS = 1000

PROBLEM = {
    "title": "Argmax over rows",
    "category": "reduction",
    "note": (
        "Whatever index comes out is looked up: its entry must be the largest of the row, which nothing tells but "
        "reading all of it; rows of equal entries are among the checked data."
    ),
    "inputs": {"x": {"fill": "normal", "low": -1e4, "high": 1e4}},
    "variants": {
        "cpu": [
            {"ROWS": 256, "COLUMNS": 1000},
            {"ROWS": 77, "COLUMNS": 2053},
            {"ROWS": 5, "COLUMNS": 3},
        ],
        "gpu": [{"ROWS": 8192, "COLUMNS": 8192}, {"ROWS": 1021, "COLUMNS": 5003}],
        "interpreter": [{"ROWS": 16, "COLUMNS": 128}, {"ROWS": 7, "COLUMNS": 77}],
    },
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (rows, columns) -> (rows,) int64."""
        return torch.argmax(x, dim=1)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
