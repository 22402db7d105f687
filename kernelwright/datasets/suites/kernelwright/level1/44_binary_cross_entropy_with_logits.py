"""Binary cross-entropy of logits with soft targets, where positives of each column have a weight of their own; the
mean."""

import torch
import torch.nn.functional as F
from torch import nn

ROWS = 512
COLUMNS = 700

PROBLEM = {
    "title": "Binary cross-entropy with logits",
    "category": "loss",
    "note": (
        "The logarithm of a sigmoid that has saturated is minus infinity; the weights are drawn anew and must be read."
    ),
    "inputs": {
        "logits": {"fill": "normal", "low": -1000.0, "high": 1000.0},
        "target": {"fill": "uniform", "low": 0.0, "high": 1.0},
    },
    "variants": {
        "cpu": [
            {"ROWS": 512, "COLUMNS": 700},
            {"ROWS": 67, "COLUMNS": 1027},
            {"ROWS": 3, "COLUMNS": 7},
        ],
        "gpu": [{"ROWS": 8192, "COLUMNS": 4096}, {"ROWS": 1021, "COLUMNS": 2051}],
        "interpreter": [{"ROWS": 16, "COLUMNS": 128}, {"ROWS": 5, "COLUMNS": 61}],
    },
}


class Model(nn.Module):
    def __init__(self, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(columns) + 0.5)

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """logits, target: (rows, columns), targets in [0, 1] -> scalar."""
        return F.binary_cross_entropy_with_logits(logits, target, pos_weight=self.weight)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS) * 3, torch.rand(ROWS, COLUMNS)]


def get_init_inputs():
    return [COLUMNS]
