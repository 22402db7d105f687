"""Local response normalisation (Krizhevsky et al., 2012): y = x / (k + alpha/n sum of x^2 over n channels
around)^beta."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH = 4
CHANNELS = 32
SIZE = 48

PROBLEM = {
    "title": "Local response normalisation",
    "category": "normalization",
    "note": (
        "Channels at both ends have fewer neighbours and the same divisor; a window that wraps or shrinks is off in "
        "those alone, so alpha is large enough to show it."
    ),
    "inputs": {"x": {"fill": "normal", "low": -100.0, "high": 100.0}},
    "variants": {
        "cpu": [
            {"BATCH": 4, "CHANNELS": 32, "SIZE": 48},
            {"BATCH": 3, "CHANNELS": 17, "SIZE": 19},
            {"BATCH": 1, "CHANNELS": 7, "SIZE": 3},
        ],
        "gpu": [{"BATCH": 32, "CHANNELS": 96, "SIZE": 56}, {"BATCH": 5, "CHANNELS": 65, "SIZE": 37}],
        "interpreter": [{"BATCH": 2, "CHANNELS": 8, "SIZE": 8}, {"BATCH": 1, "CHANNELS": 6, "SIZE": 7}],
    },
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, size, size) -> the same shape."""
        return F.local_response_norm(x, size=5, alpha=0.5, beta=0.75, k=1.0)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return []
