"""How often each of 256 values occurs in each row: y[r, v] = count of c with x[r, c] = v, as int64."""

import torch
from torch import nn

ROWS = 32
COLUMNS = 12000
BINS = 256

PROBLEM = {
    "title": "Histograms of rows",
    "category": "irregular",
    "note": (
        "Counts are whole numbers and must be exact; rows of one value, or of the two extreme ones, are among the "
        "checked data and crowd all additions onto one counter."
    ),
    "dtype": "int64",
    "inputs": {"x": {"fill": "uniform", "low": 0, "high": 255}},
    "variants": {
        "cpu": [
            {"ROWS": 32, "COLUMNS": 12000, "BINS": 256},
            {"ROWS": 7, "COLUMNS": 4099, "BINS": 256},
            {"ROWS": 3, "COLUMNS": 5, "BINS": 256},
        ],
        "gpu": [{"ROWS": 1024, "COLUMNS": 65536, "BINS": 256}, {"ROWS": 131, "COLUMNS": 10007, "BINS": 256}],
        "interpreter": [{"ROWS": 4, "COLUMNS": 512, "BINS": 256}, {"ROWS": 3, "COLUMNS": 101, "BINS": 256}],
    },
}


class Model(nn.Module):
    def __init__(self, bins: int) -> None:
        super().__init__()
        self.bins = bins

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (rows, columns) int64 in [0, bins) -> (rows, bins) int64."""
        return x.new_zeros(x.shape[0], self.bins).scatter_add(1, x, torch.ones_like(x))


def get_inputs():
    return [torch.randint(0, BINS, (ROWS, COLUMNS))]


def get_init_inputs():
    return [BINS]
