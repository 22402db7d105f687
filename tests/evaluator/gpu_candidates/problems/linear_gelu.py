"""A linear layer and GELU in bfloat16."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "fused",
    "dtype": "bfloat16",
    "inputs": {"x": {"fill": "normal", "low": -30.0, "high": 30.0}},
    "variants": {
        "interpreter": [{"ROWS": 16, "IN": 64, "OUT": 32}, {"ROWS": 9, "IN": 48, "OUT": 40}],
        "gpu": [{"ROWS": 1024, "IN": 1024, "OUT": 1024}],
    },
}
ROWS = 16
IN = 64
OUT = 32


class Model(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, dtype=torch.bfloat16)

    def forward(self, x):
        return nn.functional.gelu(self.linear(x).float()).to(x.dtype)


def get_inputs():
    return [torch.randn(ROWS, IN, dtype=torch.bfloat16)]


def get_init_inputs():
    return [IN, OUT]
