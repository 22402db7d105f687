"""The block of MobileNetV2 (Sandler et al., 2018): wide by 1x1, depthwise 3x3, narrow by 1x1, each normalised, and a
residual."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH = 2
CHANNELS = 16
EXPANDED = 96
SIZE = 28

PROBLEM = {
    "title": "Inverted residual block",
    "category": "block",
    "note": (
        "ReLU6 cuts at 6 after a normalisation whose statistics change between calls: folding is allowed in the call "
        "only."
    ),
    "heavy_ops": ["aten.convolution"],
    "inputs": {"x": {"fill": "normal", "low": -100.0, "high": 100.0}},
    "variants": {
        "cpu": [
            {"BATCH": 2, "CHANNELS": 16, "EXPANDED": 96, "SIZE": 28},
            {"BATCH": 3, "CHANNELS": 5, "EXPANDED": 13, "SIZE": 11},
            {"BATCH": 1, "CHANNELS": 3, "EXPANDED": 7, "SIZE": 5},
        ],
        "gpu": [
            {"BATCH": 32, "CHANNELS": 64, "EXPANDED": 384, "SIZE": 28},
            {"BATCH": 5, "CHANNELS": 17, "EXPANDED": 65, "SIZE": 19},
        ],
        "interpreter": [
            {"BATCH": 1, "CHANNELS": 4, "EXPANDED": 12, "SIZE": 8},
            {"BATCH": 2, "CHANNELS": 3, "EXPANDED": 5, "SIZE": 7},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, channels: int, expanded: int) -> None:
        super().__init__()
        self.wide = nn.Conv2d(channels, expanded, 1, bias=False)
        self.wide_norm = nn.BatchNorm2d(expanded)
        self.depthwise = nn.Conv2d(expanded, expanded, 3, padding=1, groups=expanded, bias=False)
        self.depthwise_norm = nn.BatchNorm2d(expanded)
        self.narrow = nn.Conv2d(expanded, channels, 1, bias=False)
        self.narrow_norm = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, size, size) -> the same shape."""
        hidden = F.relu6(self.wide_norm(self.wide(x)))
        hidden = F.relu6(self.depthwise_norm(self.depthwise(hidden)))
        return x + self.narrow_norm(self.narrow(hidden))


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [CHANNELS, EXPANDED]
