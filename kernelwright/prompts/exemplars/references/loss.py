"""Mean binary cross-entropy of logits."""

import torch
import torch.nn.functional as F
from torch import nn

ROWS = 256
COLUMNS = 512

PROBLEM = {
    "category": "loss",
    "inputs": {
        "x": {"fill": "normal", "low": -1e4, "high": 1e4},
        "target": {"fill": "uniform", "low": 0.0, "high": 1.0},
    },
    "variants": {
        "cpu": [{"ROWS": 256, "COLUMNS": 512}, {"ROWS": 7, "COLUMNS": 131}],
        "gpu": [{"ROWS": 8192, "COLUMNS": 4096}, {"ROWS": 7, "COLUMNS": 1021}],
        "interpreter": [{"ROWS": 8, "COLUMNS": 128}, {"ROWS": 5, "COLUMNS": 77}],
    },
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """x, target: (rows, columns) -> scalar."""
        return F.binary_cross_entropy_with_logits(x, target)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS), torch.rand(ROWS, COLUMNS)]


def get_init_inputs():
    return []
