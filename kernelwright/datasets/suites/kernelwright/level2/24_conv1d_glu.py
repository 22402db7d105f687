"""Convolution along time and a gated linear unit (Dauphin et al., 2017): half of the channels gate the others."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH = 4
CHANNELS = 32
FILTERS = 40
LENGTH = 400

PROBLEM = {
    "title": "Convolution of sequences with gating",
    "category": "conv_epilogue",
    "note": (
        "Value and gate of an output come from channels that lie far apart; exchanged halves give numbers of the same "
        "size."
    ),
    "heavy_ops": ["aten.convolution"],
    "inputs": {"x": {"fill": "normal", "low": -100.0, "high": 100.0}},
    "variants": {
        "cpu": [
            {"BATCH": 4, "CHANNELS": 32, "FILTERS": 40, "LENGTH": 400},
            {"BATCH": 3, "CHANNELS": 7, "FILTERS": 11, "LENGTH": 131},
            {"BATCH": 1, "CHANNELS": 3, "FILTERS": 2, "LENGTH": 5},
        ],
        "gpu": [
            {"BATCH": 16, "CHANNELS": 128, "FILTERS": 128, "LENGTH": 4096},
            {"BATCH": 3, "CHANNELS": 65, "FILTERS": 33, "LENGTH": 1021},
        ],
        "interpreter": [
            {"BATCH": 2, "CHANNELS": 8, "FILTERS": 6, "LENGTH": 32},
            {"BATCH": 1, "CHANNELS": 3, "FILTERS": 5, "LENGTH": 13},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, 2 * filters, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, length) -> (batch, filters, length)."""
        return F.glu(self.conv(x), dim=1)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, LENGTH)]


def get_init_inputs():
    return [CHANNELS, FILTERS]
