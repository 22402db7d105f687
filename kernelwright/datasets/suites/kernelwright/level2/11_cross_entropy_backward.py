"""Cross-entropy with smoothed labels, forward and backward: the mean loss, and its gradient by the logits."""

import torch
import torch.nn.functional as F
from torch import nn

ROWS = 256
CLASSES = 1000

PROBLEM = {
    "title": "Cross-entropy with its gradient",
    "category": "loss",
    "note": (
        "The gradient has as many numbers as the logits and is compared in all of them; it is scaled by an incoming "
        "gradient that is drawn anew."
    ),
    "backward": True,
    "inputs": {
        "logits": {"fill": "normal", "low": -1000.0, "high": 1000.0},
        "target": {"fill": "structured"},
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
        """logits: (rows, classes), target: (rows,) int64 class indices -> scalar."""
        return F.cross_entropy(logits, target, label_smoothing=0.1)


def get_inputs():
    return [torch.randn(ROWS, CLASSES) * 3, torch.randint(0, CLASSES, (ROWS,))]


def get_init_inputs():
    return []
