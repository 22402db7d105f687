"""Mean smooth-L1 loss: d^2 / (2 beta) where |d| < beta, else |d| - beta / 2, with d = prediction - target."""

import torch
import torch.nn.functional as F
from torch import nn

ROWS = 256
FEATURES = 1800
BETA = 0.5

PROBLEM = {
    "title": "Smooth L1 loss",
    "category": "loss",
    "note": (
        "Two formulas meet at a difference of beta, and data fall on both sides; the mean of all elements leaves none "
        "out."
    ),
    "inputs": {
        "prediction": {"fill": "normal", "low": -1e4, "high": 1e4},
        "target": {"fill": "normal", "low": -1e4, "high": 1e4},
    },
    "variants": {
        "cpu": [
            {"ROWS": 256, "FEATURES": 1800},
            {"ROWS": 131, "FEATURES": 257},
            {"ROWS": 3, "FEATURES": 5},
        ],
        "gpu": [{"ROWS": 8192, "FEATURES": 4096}, {"ROWS": 1021, "FEATURES": 2051}],
        "interpreter": [{"ROWS": 16, "FEATURES": 128}, {"ROWS": 5, "FEATURES": 61}],
    },
}


class Model(nn.Module):
    def __init__(self, beta: float) -> None:
        super().__init__()
        self.beta = beta

    def forward(self, prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """prediction, target: (rows, features) -> scalar."""
        return F.smooth_l1_loss(prediction, target, beta=self.beta)


def get_inputs():
    return [torch.randn(ROWS, FEATURES), torch.randn(ROWS, FEATURES)]


def get_init_inputs():
    return [BETA]
