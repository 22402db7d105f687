"""A linear layer whose weights are constants: packing them once is allowed."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "gemm",
    "weights": "constants",
    "heavy_ops": ["aten.addmm"],
    "inputs": {"x": {"fill": "normal", "low": -100.0, "high": 100.0}},
    "variants": {"cpu": [{"ROWS": 16, "FEATURES": 64}, {"ROWS": 3, "FEATURES": 17}]},
}
ROWS = 16
FEATURES = 64


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 32)

    def forward(self, x):
        return self.linear(x)


def get_inputs():
    return [torch.randn(ROWS, FEATURES)]


def get_init_inputs():
    return [FEATURES]
