"""The mean cross-entropy of a batch: one scalar."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "loss",
    "inputs": {
        "logits": {"fill": "normal", "low": -1e3, "high": 1e3},
        "labels": {"fill": "uniform", "low": 0, "high": 30},
    },
    "variants": {
        "cpu": [{"ROWS": 64, "CLASSES": 101}, {"ROWS": 5, "CLASSES": 31}],
        "interpreter": [{"ROWS": 4, "CLASSES": 33}, {"ROWS": 3, "CLASSES": 31}],
    },
}
ROWS = 64
CLASSES = 101


class Model(nn.Module):
    def forward(self, logits, labels):
        return torch.nn.functional.cross_entropy(logits, labels)


def get_inputs():
    return [torch.randn(ROWS, CLASSES), torch.randint(0, 31, (ROWS,))]


def get_init_inputs():
    return []
