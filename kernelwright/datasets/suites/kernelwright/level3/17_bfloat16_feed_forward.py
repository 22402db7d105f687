"""A feed-forward layer in bfloat16 with GELU and a residual sum; every operator rounds its result to bfloat16."""

import torch
import torch.nn.functional as F
from torch import nn

TOKENS = 128
WIDTH = 192
HIDDEN = 256

PROBLEM = {
    "title": "Feed-forward block in bfloat16",
    "category": "block",
    "note": (
        "What may stay in float32 is more exact and allowed; sums in bfloat16 are not, since the budget is that of "
        "honest arithmetic."
    ),
    "dtype": "bfloat16",
    "heavy_ops": ["aten.addmm"],
    "inputs": {"x": {"fill": "normal", "low": -100.0, "high": 100.0}},
    "variants": {
        "cpu": [
            {"TOKENS": 128, "WIDTH": 192, "HIDDEN": 256},
            {"TOKENS": 37, "WIDTH": 45, "HIDDEN": 77},
            {"TOKENS": 3, "WIDTH": 7, "HIDDEN": 5},
        ],
        "gpu": [{"TOKENS": 4096, "WIDTH": 1024, "HIDDEN": 4096}, {"TOKENS": 333, "WIDTH": 130, "HIDDEN": 515}],
        "interpreter": [{"TOKENS": 16, "WIDTH": 32, "HIDDEN": 48}, {"TOKENS": 5, "WIDTH": 13, "HIDDEN": 9}],
    },
}


class Model(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden, dtype=torch.bfloat16)
        self.down = nn.Linear(hidden, width, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (tokens, width) bfloat16 -> (tokens, width) bfloat16."""
        return x + self.down(F.gelu(self.up(x)))


def get_inputs():
    return [torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16)]


def get_init_inputs():
    return [WIDTH, HIDDEN]
