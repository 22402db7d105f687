"""Focal loss (Lin et al., 2017): mean over rows of -(1 - p)^2 log p, with p the softmax weight of the target."""

import torch
from torch import nn

ROWS = 512
CLASSES = 500

PROBLEM = {
    "title": "Focal loss",
    "category": "loss",
    "note": "1 - p cancels where the model is sure, and log p must not come from a rounded p where it is not.",
    "inputs": {
        "logits": {"fill": "normal", "low": -1000.0, "high": 1000.0},
        "target": {"fill": "structured"},
    },
    "variants": {
        "cpu": [
            {"ROWS": 512, "CLASSES": 500},
            {"ROWS": 131, "CLASSES": 1003},
            {"ROWS": 3, "CLASSES": 7},
        ],
        "gpu": [{"ROWS": 8192, "CLASSES": 8192}, {"ROWS": 1021, "CLASSES": 5003}],
        "interpreter": [{"ROWS": 16, "CLASSES": 100}, {"ROWS": 5, "CLASSES": 33}],
    },
}


class Model(nn.Module):
    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """logits: (rows, classes), target: (rows,) int64 class indices -> scalar."""
        log_p = torch.log_softmax(logits, dim=1).gather(1, target[:, None]).squeeze(1)
        return -((1 - log_p.exp()).square() * log_p).mean()


def get_inputs():
    return [torch.randn(ROWS, CLASSES) * 2, torch.randint(0, CLASSES, (ROWS,))]


def get_init_inputs():
    return []
