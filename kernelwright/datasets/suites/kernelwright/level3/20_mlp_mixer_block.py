"""The block of MLP-Mixer (Tolstikhin et al., 2021): two layers over tokens, then two over channels, normalised, with
residuals."""

import torch
from torch import nn

BATCH = 4
TOKENS = 49
WIDTH = 96
TOKEN_HIDDEN = 64
HIDDEN = 160

PROBLEM = {
    "title": "MLP-Mixer block",
    "category": "block",
    "note": (
        "The first pair of layers runs down columns and the second along rows: mixing one direction twice has the "
        "same shapes."
    ),
    "heavy_ops": ["aten.addmm", "aten.mm"],
    "inputs": {"x": {"fill": "normal", "low": -100.0, "high": 100.0}},
    "variants": {
        "cpu": [
            {"BATCH": 4, "TOKENS": 49, "WIDTH": 96, "TOKEN_HIDDEN": 64, "HIDDEN": 160},
            {"BATCH": 3, "TOKENS": 13, "WIDTH": 37, "TOKEN_HIDDEN": 11, "HIDDEN": 29},
            {"BATCH": 1, "TOKENS": 5, "WIDTH": 7, "TOKEN_HIDDEN": 3, "HIDDEN": 9},
        ],
        "gpu": [
            {"BATCH": 32, "TOKENS": 196, "WIDTH": 512, "TOKEN_HIDDEN": 256, "HIDDEN": 2048},
            {"BATCH": 5, "TOKENS": 77, "WIDTH": 130, "TOKEN_HIDDEN": 45, "HIDDEN": 333},
        ],
        "interpreter": [
            {"BATCH": 1, "TOKENS": 8, "WIDTH": 16, "TOKEN_HIDDEN": 12, "HIDDEN": 24},
            {"BATCH": 2, "TOKENS": 5, "WIDTH": 7, "TOKEN_HIDDEN": 3, "HIDDEN": 9},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, tokens: int, width: int, token_hidden: int, hidden: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.over_tokens = nn.Sequential(nn.Linear(tokens, token_hidden), nn.GELU(), nn.Linear(token_hidden, tokens))
        self.over_channels = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, tokens, width) -> the same shape."""
        x = x + self.over_tokens(self.first_norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.over_channels(self.second_norm(x))


def get_inputs():
    return [torch.randn(BATCH, TOKENS, WIDTH)]


def get_init_inputs():
    return [TOKENS, WIDTH, TOKEN_HIDDEN, HIDDEN]
