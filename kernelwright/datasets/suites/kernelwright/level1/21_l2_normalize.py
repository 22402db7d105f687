"""Rows divided by their Euclidean norm: y[r] = x[r] / max(|x[r]|, 1e-6)."""

import torch
import torch.nn.functional as F
from torch import nn

ROWS = 1024
COLUMNS = 384

PROBLEM = {
    "title": "Euclidean normalisation of rows",
    "category": "normalization",
    "note": (
        "A bound below the norm, and not an epsilon added to it: they differ on tiny rows, which are among the "
        "checked data."
    ),
    "inputs": {"x": {"fill": "normal", "low": -10000.0, "high": 10000.0}},
    "variants": {
        "cpu": [
            {"ROWS": 1024, "COLUMNS": 384},
            {"ROWS": 67, "COLUMNS": 1027},
            {"ROWS": 3, "COLUMNS": 7},
        ],
        "gpu": [{"ROWS": 16384, "COLUMNS": 2048}, {"ROWS": 1021, "COLUMNS": 2051}],
        "interpreter": [{"ROWS": 16, "COLUMNS": 128}, {"ROWS": 5, "COLUMNS": 61}],
    },
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (rows, columns) -> (rows, columns)."""
        return F.normalize(x, dim=1, eps=1e-6)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
