"""Softmax over rows with a temperature of each row's own: y[r] = softmax(x[r] / t[r])."""

import torch
from torch import nn

ROWS = 512
COLUMNS = 900

PROBLEM = {
    "title": "Softmax with temperatures",
    "category": "softmax",
    "note": (
        "Temperatures are inputs, from 0.2 to 5: one for all rows, or a largest entry that is taken before the "
        "division, overflows or is wrong."
    ),
    "inputs": {
        "x": {"fill": "normal", "low": -10000.0, "high": 10000.0},
        "temperature": {"fill": "uniform", "low": 0.2, "high": 5.0},
    },
    "variants": {
        "cpu": [
            {"ROWS": 512, "COLUMNS": 900},
            {"ROWS": 77, "COLUMNS": 2053},
            {"ROWS": 5, "COLUMNS": 3},
        ],
        "gpu": [{"ROWS": 8192, "COLUMNS": 8192}, {"ROWS": 1021, "COLUMNS": 5003}],
        "interpreter": [{"ROWS": 16, "COLUMNS": 128}, {"ROWS": 7, "COLUMNS": 77}],
    },
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
        """x: (rows, columns), temperature: (rows,), positive -> (rows, columns)."""
        return torch.softmax(x / temperature[:, None], dim=1)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS) * 3, torch.rand(ROWS) * 4.8 + 0.2]


def get_init_inputs():
    return []
