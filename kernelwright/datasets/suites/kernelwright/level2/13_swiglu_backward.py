"""SwiGLU (Shazeer, 2020), forward and backward: y = silu(gate) * value, and the gradients of both."""

import torch
import torch.nn.functional as F
from torch import nn

ROWS = 256
COLUMNS = 700

PROBLEM = {
    "title": "SwiGLU with gradients",
    "category": "activation",
    "note": (
        "Both gradients need the sigmoid of the gate; one that ignores the incoming gradient, which is drawn anew, is "
        "wrong everywhere."
    ),
    "backward": True,
    "inputs": {
        "gate": {"fill": "normal", "low": -1000.0, "high": 1000.0},
        "value": {"fill": "normal", "low": -1000.0, "high": 1000.0},
    },
    "variants": {
        "cpu": [
            {"ROWS": 256, "COLUMNS": 700},
            {"ROWS": 67, "COLUMNS": 515},
            {"ROWS": 3, "COLUMNS": 7},
        ],
        "gpu": [{"ROWS": 8192, "COLUMNS": 4096}, {"ROWS": 1021, "COLUMNS": 2051}],
        "interpreter": [{"ROWS": 16, "COLUMNS": 128}, {"ROWS": 5, "COLUMNS": 61}],
    },
}


class Model(nn.Module):
    def forward(self, gate: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """gate, value: (rows, columns) -> (rows, columns)."""
        return F.silu(gate) * value


def get_inputs():
    return [torch.randn(ROWS, COLUMNS), torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
