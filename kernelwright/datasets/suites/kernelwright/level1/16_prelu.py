"""PReLU (He et al., 2015): y = x where x > 0, else slope[c] * x, with one slope a channel."""

import torch
from torch import nn

BATCH = 4
CHANNELS = 48
SIZE = 56

PROBLEM = {
    "title": "PReLU of images",
    "category": "activation",
    "note": (
        "The slopes are weights and are drawn anew between calls: one slope folded in, or one for all channels, is "
        "wrong."
    ),
    "inputs": {"x": {"fill": "normal", "low": -10000.0, "high": 10000.0}},
    "variants": {
        "cpu": [
            {"BATCH": 4, "CHANNELS": 48, "SIZE": 56},
            {"BATCH": 3, "CHANNELS": 17, "SIZE": 19},
            {"BATCH": 1, "CHANNELS": 5, "SIZE": 3},
        ],
        "gpu": [{"BATCH": 32, "CHANNELS": 256, "SIZE": 64}, {"BATCH": 5, "CHANNELS": 96, "SIZE": 37}],
        "interpreter": [{"BATCH": 2, "CHANNELS": 8, "SIZE": 8}, {"BATCH": 1, "CHANNELS": 6, "SIZE": 7}],
    },
}


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.prelu = nn.PReLU(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, size, size) -> the same shape."""
        return self.prelu(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [CHANNELS]
