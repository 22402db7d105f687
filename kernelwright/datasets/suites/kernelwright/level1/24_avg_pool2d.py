"""Average pooling, 3 by 3 in steps of 2 with a border of 1 that does not count: borders divide by 4 or 6."""

import torch
from torch import nn

BATCH = 4
CHANNELS = 48
SIZE = 64

PROBLEM = {
    "title": "Average pooling of images",
    "category": "pooling",
    "note": (
        "The divisor depends on the place; one of 9 everywhere is wrong at the borders of every variant, and odd "
        "sizes end in another kind of window than even ones."
    ),
    "inputs": {"x": {"fill": "normal", "low": -10000.0, "high": 10000.0}},
    "variants": {
        "cpu": [
            {"BATCH": 4, "CHANNELS": 48, "SIZE": 64},
            {"BATCH": 3, "CHANNELS": 17, "SIZE": 23},
            {"BATCH": 1, "CHANNELS": 5, "SIZE": 3},
        ],
        "gpu": [{"BATCH": 32, "CHANNELS": 256, "SIZE": 112}, {"BATCH": 5, "CHANNELS": 96, "SIZE": 37}],
        "interpreter": [{"BATCH": 2, "CHANNELS": 8, "SIZE": 16}, {"BATCH": 1, "CHANNELS": 6, "SIZE": 7}],
    },
}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, size, size) -> (batch, channels, ceil(size / 2), ceil(size / 2))."""
        return self.pool(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return []
