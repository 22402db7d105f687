"""RMS normalisation in bfloat16."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "normalization",
    "dtype": "bfloat16",
    "inputs": {"x": {"fill": "normal", "low": -1e3, "high": 1e3}},
    "variants": {
        "interpreter": [{"ROWS": 4, "COLS": 64}, {"ROWS": 3, "COLS": 38}],
        "gpu": [{"ROWS": 4096, "COLS": 1024}],
    },
}
ROWS = 4
COLS = 64
EPS = 1e-5


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features, dtype=torch.bfloat16))

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + EPS) * self.weight.float()).to(x.dtype)


def get_inputs():
    return [torch.randn(ROWS, COLS, dtype=torch.bfloat16)]


def get_init_inputs():
    return [COLS]
