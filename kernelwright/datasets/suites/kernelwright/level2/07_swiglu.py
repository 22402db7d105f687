"""SwiGLU gate (Shazeer, 2020): y = silu(a) * b for the two halves a, b of the features; silu(a) = a * sigmoid(a)."""

import torch
import torch.nn.functional as F
from torch import nn

TOKENS = 512
HIDDEN = 512

PROBLEM = {
    "title": "SwiGLU gate",
    "category": "activation",
    "note": (
        "Gate and value are halves of one row; exchanged, they give numbers of the same size. Large gates must not "
        "overflow."
    ),
    "inputs": {"x": {"fill": "normal", "low": -1e4, "high": 1e4}},
    "variants": {
        "cpu": [
            {"TOKENS": 512, "HIDDEN": 512},
            {"TOKENS": 61, "HIDDEN": 331},
            {"TOKENS": 3, "HIDDEN": 5},
        ],
        "gpu": [{"TOKENS": 8192, "HIDDEN": 4096}, {"TOKENS": 1021, "HIDDEN": 1365}],
        "interpreter": [{"TOKENS": 16, "HIDDEN": 128}, {"TOKENS": 5, "HIDDEN": 43}],
    },
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (tokens, 2 * hidden) -> (tokens, hidden)."""
        a, b = x.chunk(2, dim=-1)
        return F.silu(a) * b


def get_inputs():
    return [torch.randn(TOKENS, 2 * HIDDEN)]


def get_init_inputs():
    return []
