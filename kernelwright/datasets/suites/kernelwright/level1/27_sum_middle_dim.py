"""Sum over the middle dimension: y[b, p] = sum_k x[b, k, p]."""

import torch
from torch import nn

BATCH = 16
TERMS = 96
POINTS = 400

PROBLEM = {
    "title": "Sum over the middle dimension",
    "category": "reduction",
    "note": (
        "Mixed signs over many powers of two cancel: sums in lower precision, or with terms left out, show against "
        "float64."
    ),
    "inputs": {"x": {"fill": "normal", "low": -10000.0, "high": 10000.0}},
    "variants": {
        "cpu": [
            {"BATCH": 16, "TERMS": 96, "POINTS": 400},
            {"BATCH": 3, "TERMS": 37, "POINTS": 45},
            {"BATCH": 1, "TERMS": 5, "POINTS": 3},
        ],
        "gpu": [{"BATCH": 64, "TERMS": 512, "POINTS": 1024}, {"BATCH": 5, "TERMS": 130, "POINTS": 333}],
        "interpreter": [{"BATCH": 2, "TERMS": 16, "POINTS": 32}, {"BATCH": 1, "TERMS": 7, "POINTS": 13}],
    },
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, terms, points) -> (batch, points)."""
        return torch.sum(x, dim=1)


def get_inputs():
    return [torch.randn(BATCH, TERMS, POINTS)]


def get_init_inputs():
    return []
