"""Mean cross-entropy of class logits: y = mean_r(logsumexp(logits[r]) - logits[r, target[r]])."""

import torch
import torch.nn.functional as F
from torch import nn

ROWS = 512
CLASSES = 600

PROBLEM = {
    "title": "Cross-entropy loss",
    "category": "loss",
    "note": (
        "Rows of wide data underflow in all but one class; one number answers for all rows, so that leaving out one "
        "of them shows."
    ),
    "inputs": {
        "logits": {"fill": "normal", "low": -1e4, "high": 1e4},
        "target": {"fill": "structured"},
    },
    "variants": {
        "cpu": [
            {"ROWS": 512, "CLASSES": 600},
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
        return F.cross_entropy(logits, target)


def get_inputs():
    return [torch.randn(ROWS, CLASSES) * 3, torch.randint(0, CLASSES, (ROWS,))]


def get_init_inputs():
    return []
