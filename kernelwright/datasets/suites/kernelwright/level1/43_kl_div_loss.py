"""Kullback-Leibler divergence of two softmaxes: y = mean_r sum_c q[r, c] (log q[r, c] - log p[r, c])."""

import torch
import torch.nn.functional as F
from torch import nn

ROWS = 256
CLASSES = 1000

PROBLEM = {
    "title": "Kullback-Leibler divergence of logits",
    "category": "loss",
    "note": (
        "Weights that underflow must contribute zero and not NaN, and one number answers for all rows: a part of them "
        "is not enough for it."
    ),
    "inputs": {
        "logits": {"fill": "normal", "low": -1000.0, "high": 1000.0},
        "target": {"fill": "normal", "low": -1000.0, "high": 1000.0},
    },
    "variants": {
        "cpu": [
            {"ROWS": 256, "CLASSES": 1000},
            {"ROWS": 67, "CLASSES": 1027},
            {"ROWS": 3, "CLASSES": 7},
        ],
        "gpu": [{"ROWS": 8192, "CLASSES": 8192}, {"ROWS": 1021, "CLASSES": 5003}],
        "interpreter": [{"ROWS": 16, "CLASSES": 100}, {"ROWS": 5, "CLASSES": 33}],
    },
}


class Model(nn.Module):
    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """logits, target: (rows, classes), both before their softmax -> scalar."""
        p, q = torch.log_softmax(logits, dim=1), torch.log_softmax(target, dim=1)
        return F.kl_div(p, q, reduction="batchmean", log_target=True)


def get_inputs():
    return [torch.randn(ROWS, CLASSES) * 2, torch.randn(ROWS, CLASSES) * 2]


def get_init_inputs():
    return []
