"""RMS normalisation in bfloat16."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "normalization",
    "dtype": "bfloat16",
    "inputs": {"x": {"fill": "normal", "low": -1e3, "high": 1e3}},
    "variants": {"cpu": [{"ROWS": 32, "COLS": 256}, {"ROWS": 5, "COLS": 67}]},
}
ROWS = 32
COLS = 256


class Model(nn.Module):
    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + 1e-5)).to(x.dtype)


def get_inputs():
    return [torch.randn(ROWS, COLS, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
