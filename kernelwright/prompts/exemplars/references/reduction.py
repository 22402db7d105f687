"""Range of each row: its largest minus its smallest element."""

import torch
from torch import nn

ROWS = 512
COLUMNS = 384

PROBLEM = {
    "category": "reduction",
    "inputs": {"x": {"fill": "normal", "low": -1e4, "high": 1e4}},
    "variants": {
        "cpu": [{"ROWS": 512, "COLUMNS": 384}, {"ROWS": 7, "COLUMNS": 131}],
        "gpu": [{"ROWS": 8192, "COLUMNS": 4096}, {"ROWS": 7, "COLUMNS": 1021}],
        "interpreter": [{"ROWS": 8, "COLUMNS": 128}, {"ROWS": 5, "COLUMNS": 77}],
    },
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (rows, columns) -> (rows,)."""
        return x.amax(-1) - x.amin(-1)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
