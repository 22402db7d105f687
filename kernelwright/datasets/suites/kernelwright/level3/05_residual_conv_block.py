"""Basic residual block (He et al., 2016) in eval mode: y = relu(x + bn(conv(relu(bn(conv(x))))))."""

import torch
from torch import nn

BATCH = 2
CHANNELS = 24
SIZE = 32

PROBLEM = {
    "title": "Residual convolution block",
    "category": "block",
    "note": "Statistics of both normalisations change between calls; the last ReLU comes after the residual sum.",
    "heavy_ops": ["aten.convolution"],
    "inputs": {"x": {"fill": "normal", "low": -1e3, "high": 1e3}},
    "variants": {
        "cpu": [
            {"BATCH": 2, "CHANNELS": 24, "SIZE": 32},
            {"BATCH": 3, "CHANNELS": 11, "SIZE": 17},
            {"BATCH": 1, "CHANNELS": 3, "SIZE": 5},
        ],
        "gpu": [{"BATCH": 32, "CHANNELS": 64, "SIZE": 56}, {"BATCH": 5, "CHANNELS": 45, "SIZE": 37}],
        "interpreter": [{"BATCH": 1, "CHANNELS": 8, "SIZE": 10}, {"BATCH": 2, "CHANNELS": 5, "SIZE": 7}],
    },
}


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, kernel_size=3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, kernel_size=3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, size, size) -> the same shape."""
        y = torch.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return torch.relu(x + y)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [CHANNELS]
