"""Softmax over the last dimension: y_j = exp(x_j - max(x)) / sum_k exp(x_k - max(x))."""

import torch
from torch import nn

ROWS = 2048
COLUMNS = 128

PROBLEM = {
    "title": "Softmax over rows",
    "category": "softmax",
    "note": (
        "Exponentials overflow from 88 on and the domain reaches 10,000; every row is normalised by itself, in rows "
        "that are no multiple of a vector."
    ),
    "inputs": {"x": {"fill": "normal", "low": -1e4, "high": 1e4}},
    "variants": {
        "cpu": [
            {"ROWS": 2048, "COLUMNS": 128},
            {"ROWS": 130, "COLUMNS": 1025},
            {"ROWS": 7, "COLUMNS": 13},
            {"ROWS": 1, "COLUMNS": 3001},
        ],
        "gpu": [{"ROWS": 8192, "COLUMNS": 4096}, {"ROWS": 4099, "COLUMNS": 1021}],
        "interpreter": [{"ROWS": 16, "COLUMNS": 128}, {"ROWS": 5, "COLUMNS": 77}],
    },
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (rows, columns) -> (rows, columns)."""
        return torch.softmax(x, dim=-1)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
