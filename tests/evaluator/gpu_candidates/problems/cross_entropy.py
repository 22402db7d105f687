"""The cross entropy of each row."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "loss",
    "inputs": {
        "logits": {"fill": "normal", "low": -30.0, "high": 30.0},
        "labels": {"fill": "uniform", "low": 0, "high": 36},
    },
    "variants": {
        "interpreter": [{"ROWS": 4, "CLASSES": 96}, {"ROWS": 5, "CLASSES": 37}],
        "gpu": [{"ROWS": 2048, "CLASSES": 4096}],
    },
}
ROWS = 4
CLASSES = 96


class Model(nn.Module):
    def forward(self, logits, labels):
        return nn.functional.cross_entropy(logits, labels, reduction="none")


def get_inputs():
    return [torch.randn(ROWS, CLASSES), torch.randint(0, 37, (ROWS,))]


def get_init_inputs():
    return []
