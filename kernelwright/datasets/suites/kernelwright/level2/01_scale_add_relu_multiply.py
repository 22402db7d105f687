"""A pointwise chain over three tensors: y = relu(x * scale + shift) * gate."""

import torch
from torch import nn

ROWS = 256
FEATURES = 1024
SCALE = 1.7

PROBLEM = {
    "title": "Scale, add, ReLU, multiply",
    "category": "pointwise",
    "note": (
        "Shift and gate are read for every element and drawn anew; ReLU cuts half of them before the gate, whose sign "
        "must remain."
    ),
    "inputs": {
        "x": {"fill": "normal", "low": -1e4, "high": 1e4},
        "shift": {"fill": "normal", "low": -1e4, "high": 1e4},
        "gate": {"fill": "normal", "low": -1e4, "high": 1e4},
    },
    "variants": {
        "cpu": [
            {"ROWS": 256, "FEATURES": 1024},
            {"ROWS": 77, "FEATURES": 331},
            {"ROWS": 3, "FEATURES": 5},
        ],
        "gpu": [{"ROWS": 8192, "FEATURES": 4096}, {"ROWS": 1021, "FEATURES": 2051}],
        "interpreter": [{"ROWS": 16, "FEATURES": 128}, {"ROWS": 5, "FEATURES": 61}],
    },
}


class Model(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor, shift: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """x, shift, gate: (rows, features) -> (rows, features)."""
        return torch.relu(x * self.scale + shift) * gate


def get_inputs():
    return [torch.randn(ROWS, FEATURES) for _ in range(3)]


def get_init_inputs():
    return [SCALE]
